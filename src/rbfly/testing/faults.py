"""What is to go wrong; the rest of the broker asks here."""

import zlib
from collections import deque
from random import Random

from ..protocol.const import ResponseCode

CRC, ENTRIES = 32, 48  # where they are in a chunk


class Faults:
    """Faults that were asked for.

    :ivar random: what is left to chance.
    :ivar refusing: new connections are closed at once.
    :ivar stalled: nothing is read, and nothing written.
    :ivar delay: seconds until what is written is sent.
    :ivar most: bytes that are sent at once; 0 for no limit.
    :ivar silent: nothing is delivered.
    :ivar authentication: code for whoever authenticates; 0 for none.
    :ivar withholding: confirms wait.
    :ivar shuffling: confirms come in any order.
    :ivar lost: so many messages more are stored and never confirmed.
    :ivar errors: codes for the next messages, which are not stored.
    :ivar damaged: so many chunks more are sent with a wrong CRC.
    :ivar corrupted: so many are sent with an entry that does not end within them.
    :ivar left: bytes until every connection is cut; None for no cut.
    """

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.left: int | None = None
        self.heal()

    def heal(self) -> None:
        self.refusing = False
        self.stalled = False
        self.delay = 0.0
        self.most = 0
        self.silent = False
        self.authentication = 0
        self.withholding = False
        self.shuffling = False
        self.lost = 0
        self.errors: deque[int] = deque()
        self.damaged = 0
        self.corrupted = 0
        self.left = None

    @property
    def holding(self) -> bool:
        """Whether what is written is not sent as it is and at once."""
        return self.stalled or self.delay > 0 or self.most > 0

    def pieces(self, data: bytes) -> list[bytes]:
        """In what is sent at once each."""
        if not self.most:
            return [data]
        found, at = [], 0
        while at < len(data):
            size = self.random.randint(1, self.most)
            found.append(data[at : at + size])
            at += size
        return found

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

    def refusals(self, count: int) -> list[int]:
        """Codes for the first of so many messages; without its publisher, the rest is refused."""
        codes: list[int] = []
        while self.errors and len(codes) < count:
            codes.append(self.errors.popleft())
            if codes[-1] == ResponseCode.PUBLISHER_DOES_NOT_EXIST:
                codes += codes[-1:] * (count - len(codes))
        return codes

    def confirmed(self, ids: list[int]) -> list[int]:
        """Those of the publishing ids whose confirms are not lost."""
        lost, self.lost = self.lost, max(0, self.lost - len(ids))
        return ids[lost:] if lost else ids

    def ordered(self, ids: list[int]) -> list[list[int]]:
        """Publishing ids, by the frames that confirm them."""
        if not self.shuffling or not ids:
            return [ids]
        ids = self.random.sample(ids, len(ids))
        at = self.random.randint(0, len(ids))
        return [ids[at:], ids[:at]]

    def chunk(self, data: bytes) -> bytes:
        """A chunk as it is sent."""
        if self.corrupted:
            self.corrupted -= 1
            entries = b'\x7f\xff\xff\xff' + data[ENTRIES + 4 :]  # the size of the first one
            crc = zlib.crc32(entries).to_bytes(4)
            return b''.join((data[:CRC], crc, data[CRC + 4 : ENTRIES], entries))
        if self.damaged:
            self.damaged -= 1
            crc = bytes(byte ^ 0xFF for byte in data[CRC : CRC + 4])
            return b''.join((data[:CRC], crc, data[CRC + 4 :]))
        return data
