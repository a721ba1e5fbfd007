"""Requests about streams and super streams."""
