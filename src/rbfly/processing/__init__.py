"""Processes messages of streams, on the public API of :mod:`rbfly.streams` only."""

from ._ends import Stream
from ._pipe import PipeProgress, pipe

__all__ = ['PipeProgress', 'Stream', 'pipe']
