"""Processes messages of streams, on the public API of :mod:`rbfly.streams` only."""
