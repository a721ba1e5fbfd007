"""Stores offsets, and determines which offsets a stream has."""
