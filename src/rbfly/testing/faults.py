"""What is to go wrong; the rest of the broker asks here."""

from collections import deque


class Faults:
    """Faults that were asked for.

    :ivar refusing: new connections are closed at once.
    :ivar stalled: nothing is read, and nothing written.
    :ivar authentication: code for whoever authenticates; 0 for none.
    :ivar withholding: confirms wait.
    :ivar lost: so many messages more are stored and never confirmed.
    :ivar errors: codes for the next messages, which are not stored.
    :ivar damaged: so many chunks more are sent with a wrong CRC.
    :ivar left: bytes until every connection is cut; None for no cut.
    """

    def __init__(self) -> None:
        self.left: int | None = None
        self.heal()

    def heal(self) -> None:
        self.refusing = False
        self.stalled = False
        self.authentication = 0
        self.withholding = False
        self.lost = 0
        self.errors: deque[int] = deque()
        self.damaged = 0
        self.left = None

    def passing(self, data: bytes) -> bytes:
        """What of these bytes still gets through."""
        if self.left is None:
            return data
        data = data[: self.left]
        self.left -= len(data)
        return data

    @property
    def cutting(self) -> bool:
        return self.left == 0

    def confirmed(self, ids: list[int]) -> list[int]:
        """Those of the publishing ids whose confirms are not lost."""
        lost, self.lost = self.lost, max(0, self.lost - len(ids))
        return ids[lost:] if lost else ids

    def chunk(self, data: bytes) -> bytes:
        """A chunk as it is sent."""
        if not self.damaged:
            return data
        self.damaged -= 1
        return b''.join((data[:32], bytes(byte ^ 0xFF for byte in data[32:36]), data[36:]))
