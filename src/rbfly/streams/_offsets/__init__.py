"""Stored offsets, and what a subscription resolves to an offset."""
