"""Reports messages that are missing: retention has removed them, or the stream ends before them."""

from __future__ import annotations

import logging

from ...error import OffsetGapError
from ...net.cluster import Cluster
from ...net.observer import Observer, facts
from ...protocol._cursor import MessageCursor
from ...protocol.start import Start
from ..types import OnGap

logger: logging.Logger = logging.getLogger('rbfly.streams')


class GapCheck:
    """Compares the offset that a subscription is to read next with those of the stream.

    :param on_gap: what to do about a gap, besides notifying the observers.
    :param is_filtered: the broker skips chunks.
    """

    def __init__(self, cluster: Cluster, stream: str, on_gap: OnGap, is_filtered: bool) -> None:
        self._cluster = cluster
        self._stream = stream
        self._on_gap = on_gap
        self._is_filtered = is_filtered
        self.start_over()

    def start_over(self) -> None:
        """The stream was deleted."""
        self._reported = 0  # offset before which every gap was reported
        self._is_end_reported = False

    def expected(self, start: Start, cursor: MessageCursor) -> int | None:
        """Return the offset to check; None for none."""
        if self._on_gap == 'ignore':
            return None
        if self._is_filtered and cursor.position is not None:
            return None  # the broker does not report how many chunks it has skipped since
        return start.expected(cursor)

    def check(self, expected: int | None, first: int | None, end: int | None) -> None:
        """Report the offsets that are missing, each one once.

        :param first: id of the first chunk; -1 for none, None if it is unknown.
        :param end: end of the stream if it is before the offset, else None.
        :raises OffsetGapError: offsets are missing, and `on_gap` is `'raise'`.
        """
        if self._on_gap == 'ignore' or expected is None or first is None:
            return
        if end is not None and not self._is_end_reported:
            self._is_end_reported = True
            error = OffsetGapError(self._stream, expected, end)
        elif first > max(expected, self._reported):
            error = OffsetGapError(self._stream, max(expected, self._reported), first)
            self._reported = first
        else:
            return
        self._cluster.observers.notify(Observer.on_gap, error.stream, error.wanted, error.first)
        if self._on_gap == 'raise':
            raise error
        prefix = self._cluster.settings.log_prefix
        extra = facts(
            prefix,
            'offset_gap',
            kind='subscription',
            stream=error.stream,
            offset=error.wanted,
            first=error.first,
        )
        logger.warning('%s%s', prefix, error, extra=extra)
