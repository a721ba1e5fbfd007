"""Where a subscription ends."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from .offset import Offset, OffsetType

if TYPE_CHECKING:
    from ._chunk import Chunk
    from ._cursor import MessageCursor

OFFSET_MAX = 2**64 - 1


class End:
    """Where a subscription ends: before an offset, or after a chunk, perhaps before a time.

    :param until: `'now'` for the end of the stream, an offset, or a time.
    :ivar is_now: it ends no later than the last chunk that the leader has committed when it opens.
    :ivar last: an offset whose chunk is the last to deliver; None until it is known.
    """

    def __init__(self, until: Literal['now'] | Offset) -> None:
        self._offset = OFFSET_MAX  # of the first message that is not delivered
        self._time: float | None = None  # milliseconds; of the first chunk that is not delivered
        self.is_now: bool = True
        if isinstance(until, Offset):
            value = until.value
            if isinstance(value, int) and until.type == OffsetType.OFFSET:
                self.is_now, self._offset = False, value
            elif isinstance(value, int | float):
                self._time = round(value * 1000)
        self.start_over()

    def start_over(self) -> None:
        """The stream was deleted: a new one has an end of its own."""
        self.last: int | None = None if self.is_now else self._offset - 1

    def on_committed(self, chunk_id: int) -> None:
        """The leader has committed a chunk; -1: none.  What it commits later may be left out."""
        if self.last is None:
            self.last = chunk_id

    def stop(self, chunk: Chunk) -> int:
        """Return the offset from which on a chunk's messages are not delivered."""
        if self._time is not None and chunk.timestamp >= self._time:
            return 0
        if self.is_now and self.last is not None and chunk.offset > self.last:
            return 0
        return self._offset

    def is_reached(self, cursor: MessageCursor) -> bool:
        """Return True if the cursor has passed the last message before the end."""
        if self.last is None:
            return False
        if self.is_now:
            return cursor.last_chunk.id >= self.last
        return cursor.position is not None and cursor.position > self.last
