"""Processes messages of streams, on the public API of :mod:`rbfly.streams` only."""

from ._failures import OnError, dead_letter, retry
from ._process import process
from ._processing import ProcessSummary

__all__ = ['OnError', 'ProcessSummary', 'dead_letter', 'process', 'retry']
