"""What a client has done on each stream, also through publishers and subscriptions that have ended.

Counters stay in the window of a publisher and in the cursor of a subscription while it is open.
Nothing here refers to the client, so whoever reads the totals does not keep it alive.
"""

from __future__ import annotations

from collections.abc import Callable
from threading import RLock

from .._turn import Sampler
from ..protocol._cursor import MessageCursor
from ..protocol._engine import Counters
from ..protocol._publish import PublishWindow

UNUSED = 1000  # streams without publishers and subscriptions whose totals are kept apart


class StreamTotals:
    """Totals of one stream.

    :ivar windows: of its open publishers.
    :ivar cursors: of its open subscriptions.
    :ivar reconnects: how often a publisher or subscription was declared again after it was lost.
    :ivar published: messages sent; it and the following ones are those of the publishers and
        subscriptions that have ended.
    :ivar last_confirm: seconds since the epoch; 0 for never.
    :ivar last_chunk: seconds since the epoch; 0 for never.
    """

    __slots__ = (
        'chunks',
        'confirmed',
        'consumed',
        'cursors',
        'last_chunk',
        'last_confirm',
        'published',
        'reconnects',
        'refused',
        'resent',
        'windows',
    )

    def __init__(self) -> None:
        self.windows: dict[PublishWindow, None] = {}
        self.cursors: dict[MessageCursor, None] = {}
        self.published: int = 0
        self.confirmed: int = 0
        self.refused: int = 0
        self.resent: int = 0
        self.consumed: int = 0
        self.chunks: int = 0
        self.reconnects: int = 0
        self.last_confirm: float = 0.0
        self.last_chunk: float = 0.0

    @property
    def is_unused(self) -> bool:
        """True if the stream has no publisher and no subscription."""
        return not self.windows and not self.cursors

    def add_window(self, window: PublishWindow) -> None:
        """Add what a publisher has counted."""
        self.published += window.published
        self.confirmed += window.confirmed
        self.refused += window.refused
        self.resent += window.repeated
        self.last_confirm = max(self.last_confirm, window.last_confirm or 0)

    def add_cursor(self, cursor: MessageCursor) -> None:
        """Add what a subscription has counted."""
        self.consumed += cursor.delivered_count
        self.chunks += cursor.queue.received
        self.last_chunk = max(self.last_chunk, cursor.queue.last_chunk or 0)

    def add(self, other: StreamTotals) -> None:
        """Add the totals of an unused stream."""
        self.published += other.published
        self.confirmed += other.confirmed
        self.refused += other.refused
        self.resent += other.resent
        self.consumed += other.consumed
        self.chunks += other.chunks
        self.reconnects += other.reconnects
        self.last_confirm = max(self.last_confirm, other.last_confirm)
        self.last_chunk = max(self.last_chunk, other.last_chunk)

    def current(self) -> tuple[StreamTotals, int]:
        """Return a copy that contains what open publishers and subscriptions have counted, and the
        number of unconfirmed messages."""
        copy, unconfirmed = StreamTotals(), 0
        copy.add(self)
        copy.windows, copy.cursors = self.windows.copy(), self.cursors.copy()
        for window in copy.windows:
            copy.add_window(window)
            unconfirmed += window.unsettled
        for cursor in copy.cursors:
            copy.add_cursor(cursor)
        return copy, unconfirmed


class Totals:
    """Totals of one client; they may be read from any thread.

    :param counters: totals of its connections.
    """

    def __init__(self, counters: Counters) -> None:
        self.counters = counters
        self._streams: dict[str, StreamTotals] = {}
        self._others = StreamTotals()  # of streams that are no longer kept apart
        self._limit = UNUSED
        self._lock = RLock()  # a thread may read while the event loop moves counts
        self._latency: Sampler | None = None
        self._sizes: Sampler | None = None

    def measure(
        self, on_confirm: Callable[[float], object], on_chunk: Callable[[int], object]
    ) -> None:
        """Call functions for some of the frames and chunks of publishers and subscriptions that
        open from now on.

        :param on_confirm: called with the seconds from sending a frame to its confirm.
        :param on_chunk: called with the number of entries of a chunk.
        """
        self._latency, self._sizes = Sampler(on_confirm), Sampler(on_chunk)

    def add_window(self, stream: str, window: PublishWindow) -> None:
        """Count what a publisher of a stream does."""
        if self._latency is not None:
            window.time_confirms(self._latency)
        with self._lock:
            self._get(stream).windows[window] = None

    def remove_window(self, stream: str, window: PublishWindow) -> None:
        """Keep the counts of a publisher that ends; do nothing if they are kept already."""
        with self._lock:
            totals = self._streams.get(stream)
            if totals is not None and window in totals.windows:
                del totals.windows[window]
                totals.add_window(window)

    def add_cursor(self, stream: str, cursor: MessageCursor) -> None:
        """Count what a subscription of a stream does."""
        if self._sizes is not None:
            cursor.queue.measure(self._sizes)
        with self._lock:
            self._get(stream).cursors[cursor] = None

    def remove_cursor(self, stream: str, cursor: MessageCursor) -> None:
        """Keep the counts of a subscription that ends; do nothing if they are kept already."""
        with self._lock:
            totals = self._streams.get(stream)
            if totals is not None and cursor in totals.cursors:
                del totals.cursors[cursor]
                totals.add_cursor(cursor)

    def on_reconnect(self, stream: str) -> None:
        """A publisher or a subscription was declared again after it was lost."""
        with self._lock:
            self._get(stream).reconnects += 1

    def _get(self, stream: str) -> StreamTotals:
        found = self._streams.get(stream)
        if found is None:
            if len(self._streams) >= self._limit:
                self._forget_unused()
            found = self._streams[stream] = StreamTotals()
        return found

    def _forget_unused(self) -> None:
        """Stop keeping the totals of unused streams apart."""
        for name in [name for name, item in self._streams.items() if item.is_unused]:
            self._others.add(self._streams.pop(name))
        self._limit = len(self._streams) + UNUSED

    def read(self) -> tuple[dict[str, tuple[StreamTotals, int]], StreamTotals]:
        """Return the totals and the number of unconfirmed messages of each stream, and the totals
        of streams that are no longer kept apart."""
        with self._lock:
            others = StreamTotals()
            others.add(self._others)
            return {name: item.current() for name, item in self._streams.items()}, others
