"""Where a subscription starts, and where it resumes after its connection was lost.

The broker resolves `NEXT`, `LAST` and a timestamp against the current end of the stream, which
moves on while there is no connection.  RbFly resolves them against the end at the first attempt:
the last chunk that was committed then.  If that chunk contains stored offsets instead of messages,
the broker never delivers it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .offset import OFFSET_MAX, Offset, OffsetSource, OffsetType

if TYPE_CHECKING:
    from ._cursor import MessageCursor

BY_END = (OffsetType.NEXT, OffsetType.LAST, OffsetType.TIMESTAMP)


class Start:
    """Where a subscription starts, and where it resumes.

    If `source` is set, the caller calls it, and `choose` with the result; then, if `reference` is
    set, it queries the stored offset; if `needs_chunks` returns true, the chunk ids; if `moved_end`
    returns an end, what the offset means there.  Then it calls `subscribe_at`.

    :param offset: where the subscription is to start, or an async function that returns it.
    :ivar offset: the same, with a reference resolved.
    :ivar source: the function, until its result is known; else None.
    """

    def __init__(self, offset: Offset | OffsetSource) -> None:
        self._original = offset
        self._restart(offset)

    def _restart(self, offset: Offset | OffsetSource) -> None:
        self.offset: Offset = offset if isinstance(offset, Offset) else Offset.NEXT
        self.source = None if isinstance(offset, Offset) else offset
        self._dropped = 0  # messages to skip at the offset
        self._end: int | None = None  # last chunk at the first attempt; -1: none, None: unknown
        self._at: Offset | None = None  # `LAST` or a time, resolved against that end

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

    def expected(self, cursor: MessageCursor) -> int | None:
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

    def moved_end(self, cursor: MessageCursor) -> int | None:
        """Return the last chunk at the first attempt, if `LAST` or a time is to be resolved there.

        Nothing was read since, but the stream may have grown: see `resolve_at`.
        """
        if cursor.position is not None or self._at is not None or self._end == -1:
            return None
        return self._end if self.offset.type in (OffsetType.LAST, OffsetType.TIMESTAMP) else None

    def resolve_at(self, offset: Offset | None) -> None:
        """Start where `LAST` or the time was at the first attempt; None for after the end."""
        if offset is None:
            self.offset = Offset.NEXT
        else:
            self._at = offset

    def subscribe_at(
        self, cursor: MessageCursor, first: int | None, committed: int | None
    ) -> Offset:
        """Return the offset to subscribe at, and set what the cursor drops.

        :param first: id of the first chunk; None if it is unknown.
        :param committed: id of the last committed chunk, -1 for none, None if it is unknown.
        """
        position = cursor.position
        if position is not None:
            cursor.resume(position, cursor.skip_through_chunk)
            if position < cursor.last_chunk.id:  # a batch of several chunks was dropped
                cursor.last_chunk.forget()
            if cursor.last_chunk.id < 0:
                return Offset.offset(position)  # or every chunk was damaged
            return self._seek(cursor, first, committed)
        if self.offset.type not in BY_END:
            cursor.resume(self.expected(cursor) or 0)
            return self.offset
        is_first_attempt = self._end is None
        if self._end is None:
            self._end = committed
        if self._end == -1:  # everything in the stream was published since
            cursor.resume()
            return Offset.FIRST
        if self._end is None or self.offset.type != OffsetType.NEXT:
            cursor.resume()
            return self._at or self.offset
        # The broker also delivers the last chunk, which the cursor drops: see LastChunk.
        cursor.resume(0, self._end)
        cursor.last_chunk.assume(self._end)
        return Offset.LAST if is_first_attempt else self._seek(cursor, first, committed)

    def _seek(self, cursor: MessageCursor, first: int | None, committed: int | None) -> Offset:
        # The offset of the last chunk, which identifies the stream.
        offset = cursor.last_chunk.seek(first, committed)
        return Offset.FIRST if offset < 0 else Offset.offset(offset)

    def start_over(self, opened: bool) -> None:
        """The stream was deleted: start at the first message of the next one.

        :param opened: the subscription was open on the deleted stream.  If it was not, and the end
            of that stream is unknown, it starts at its original offset in the next stream.
        """
        self._restart(Offset.FIRST if opened or self._end is not None else self._original)
