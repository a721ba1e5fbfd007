"""Where a subscription starts, and where it resumes after its connection was lost.

The broker resolves `NEXT`, `LAST` and a timestamp against the current end of the stream, which
moves on while there is no connection.  RbFly resolves them against the end at the first attempt:
the last chunk that was committed then.  If that chunk contains stored offsets instead of messages,
the broker never delivers it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from .offset import Offset, OffsetSource, OffsetType

if TYPE_CHECKING:
    from ._chunk import Chunk
    from ._cursor import MessageCursor

OFFSET_MAX = 2**64 - 1
BY_END = (OffsetType.NEXT, OffsetType.LAST, OffsetType.TIMESTAMP)


class Start:
    """Where a subscription starts, and where it resumes.

    If `source` is set, the caller calls it, and `choose` with the result; then, if `reference` is
    set, it queries the stored offset; if `needs_chunks` returns true, the chunk ids.  Then it calls
    `subscribe_at`.

    :param offset: where the subscription is to start, or an async function that returns it.
    :ivar offset: the same, with a reference resolved.
    :ivar source: the function, until its result is known; else None.
    :ivar is_probe: the last offset that `subscribe_at` returned only serves to find the start: the
        cursor reports the first chunk, and the caller subscribes again.
    """

    def __init__(self, offset: Offset | OffsetSource) -> None:
        self._wanted = offset
        self._restart(offset)

    def _restart(self, offset: Offset | OffsetSource) -> None:
        self.offset: Offset = offset if isinstance(offset, Offset) else Offset.NEXT
        self.source = None if isinstance(offset, Offset) else offset
        self._dropped = 0  # messages to skip at the offset
        self._end: int | None = None  # last chunk at the first attempt; -1: none, None: unknown
        self.is_probe: bool = False
        self._last: int | None = None  # last chunk of messages up to the end
        self._back = -1  # how far before the end to look for it; -1: at LAST
        self._is_reached = False  # the time, by the newest chunk
        self._is_past: bool | None = None  # the time is before the end

    def choose(self, offset: Offset) -> None:
        """Start at the offset that the source has returned."""
        self.offset, self.source = offset, None

    @property
    def reference(self) -> str | None:
        """Name of the stored offset to query; None if there is none, or it is resolved."""
        return str(self.offset.value) if self.offset.type == OffsetType.REFERENCE else None

    def resolve(self, stored: int | None) -> None:
        """Replace the reference by the stored offset; None for none."""
        if stored is None:
            self.offset = self.offset.default or Offset.FIRST
        elif stored == OFFSET_MAX:  # a group has stored the offset before the first message
            self.offset = Offset.offset(0)
        else:
            # The broker sends the last message read again; the cursor drops it: see LastChunk.
            self.offset = Offset.offset(stored)
            self._dropped = 1

    def wanted(self, cursor: MessageCursor) -> int | None:
        """Return the offset of the next message; None if the start is not an offset."""
        if cursor.position is None and self.offset.type == OffsetType.OFFSET:
            assert isinstance(self.offset.value, int)
            return self.offset.value + self._dropped
        return cursor.position

    def needs_chunks(self, cursor: MessageCursor) -> bool:
        """True if `subscribe_at` needs the ids of the first and the last committed chunk."""
        if cursor.position is not None:
            return cursor.last_chunk.id >= 0
        return self.offset.type in BY_END

    def missing_end(self, cursor: MessageCursor, committed: int | None) -> int | None:
        """Return the last chunk at the first attempt, if it is missing and nothing was read since.

        :param committed: id of the last committed chunk, -1 for none, None if it is unknown.
        """
        end = self._end
        if cursor.position is None and end is not None and committed is not None:
            return end if committed < end else None
        return None

    def subscribe_at(
        self, cursor: MessageCursor, first: int | None, committed: int | None
    ) -> Offset:
        """Return the offset to subscribe at, and set what the cursor drops.

        :param first: id of the first chunk; None if it is unknown.
        :param committed: id of the last committed chunk, -1 for none, None if it is unknown.
        """
        position = cursor.position
        kind = self.offset.type
        self.is_probe = False
        if position is not None:
            cursor.resume(position, cursor.skip_through_chunk)
            if position < cursor.last_chunk.id:  # a batch of several chunks was dropped
                cursor.last_chunk.forget()
            if cursor.last_chunk.id < 0:
                return Offset.offset(position)  # or every chunk was damaged
            return self._seek(cursor, first, committed)
        if kind not in BY_END:
            cursor.resume(self.wanted(cursor) or 0)
            return self.offset
        again = self._end is not None
        if self._end is None:
            self._end = committed
        if self._end == -1:  # everything in the stream was published since
            cursor.resume()
            return Offset.FIRST
        if self._end is None or not (again or kind == OffsetType.NEXT):
            cursor.resume()
            return self.offset
        if kind == OffsetType.LAST:
            return self._find_last(cursor, self._end, first)
        if kind == OffsetType.TIMESTAMP and self._is_past is not False:
            return self._find_time(cursor)
        # The broker also delivers the last chunk, which the cursor drops: see LastChunk.
        cursor.resume(0, self._end)
        cursor.last_chunk.assume(self._end)
        return self._seek(cursor, first, committed) if again else Offset.LAST

    def _seek(self, cursor: MessageCursor, first: int | None, committed: int | None) -> Offset:
        # The offset of the last chunk, which identifies the stream.
        offset = cursor.last_chunk.seek(first, committed)
        return Offset.FIRST if offset < 0 else Offset.offset(offset)

    def _probe(
        self, cursor: MessageCursor, offset: Offset, on_chunk: Callable[[Chunk], None]
    ) -> Offset:
        self.is_probe = True
        cursor.resume(probe=on_chunk)
        return offset

    def _find_last(self, cursor: MessageCursor, end: int, first: int | None) -> Offset:
        if self._last is None:
            offset = end - max(self._back, 0)
            if offset > (first or 0):
                at = Offset.LAST if self._back < 0 else Offset.offset(offset)
                return self._probe(cursor, at, self._on_last)
            self._last = 0
        cursor.resume()
        return Offset.offset(self._last)

    def _on_last(self, chunk: Chunk) -> None:
        assert self._end is not None
        if chunk.offset <= self._end:
            self._last = chunk.offset
        else:  # look at the end, then ever farther before it
            self._back = 2 * self._back + 1 if self._back >= 0 else 0

    def _find_time(self, cursor: MessageCursor) -> Offset:
        if self._is_past is None:
            if self._is_reached:
                return self._probe(cursor, self.offset, self._on_time)
            return self._probe(cursor, Offset.LAST, self._on_newest)
        cursor.resume()
        return self.offset

    def _on_newest(self, chunk: Chunk) -> None:
        assert isinstance(self.offset.value, int | float)
        self._is_reached = chunk.timestamp >= round(self.offset.value * 1000)
        if not self._is_reached:
            self._is_past = False

    def _on_time(self, chunk: Chunk) -> None:
        assert self._end is not None
        self._is_past = chunk.offset <= self._end  # otherwise the chunks between are older

    def start_over(self, opened: bool) -> None:
        """The stream was deleted: start at the first message of the next one.

        :param opened: the subscription was open on the deleted stream.  If it was not, and the end
            of that stream is unknown, it starts at its original offset in the next stream.
        """
        self._restart(Offset.FIRST if opened or self._end is not None else self._wanted)
