"""Processes messages of streams, on the public API of :mod:`rbfly.streams` only."""

from ._ends import Stream
from ._failures import OnError, dead_letter, retry
from ._pipe import PipeProgress, pipe
from ._process import process
from ._processing import ProcessSummary

__all__ = [
    'OnError',
    'PipeProgress',
    'ProcessSummary',
    'Stream',
    'dead_letter',
    'pipe',
    'process',
    'retry',
]
