"""The faults that a test has requested, and their effect on data."""

import zlib
from collections import deque
from random import Random

from ..protocol.const import ResponseCode

CRC, ENTRIES = 32, 48  # positions in a chunk


class Faults:
    """The faults, all off by default."""

    def __init__(self, seed: int) -> None:
        self.random: Random = Random(seed)
        self.heal()

    def heal(self) -> None:
        """End all faults; the random choices continue."""
        self.refusing = False  # close new connections at once
        self.stalled = False  # neither read nor write
        self.delay: float = 0.0  # seconds before data is sent
        self.piece_max = 0  # maximum number of bytes to send at once; 0 for no limit
        self.silent = False  # deliver no chunks
        self.authentication = 0  # response code that refuses authentication; 0 for none
        self.withholding = False  # keep confirms back
        self.shuffling = False  # confirm in random order
        self.lost: int = 0  # number of messages to store and never confirm
        self.errors: deque[int] = deque()  # response codes that refuse the next messages
        self.damaged: int = 0  # number of chunks to deliver with a wrong CRC
        self.corrupted: int = (
            0  # number of chunks to deliver with an entry that extends past the end
        )
        self.bytes_left: int | None = None  # bytes before all connections are cut; None for no cut

    @property
    def buffering(self) -> bool:
        """Whether data cannot be sent whole and at once."""
        return self.stalled or self.delay > 0 or self.piece_max > 0

    def pieces(self, data: bytes) -> list[bytes]:
        """Split data into the pieces to send."""
        if not self.piece_max:
            return [data]
        found, at = [], 0
        while at < len(data):
            size = self.random.randint(1, self.piece_max)
            found.append(data[at : at + size])
            at += size
        return found

    def before_cut(self, data: bytes) -> bytes:
        """Return the part of some bytes that comes before the cut, and count it."""
        if self.bytes_left is None:
            return data
        data = data[: self.bytes_left]
        self.bytes_left -= len(data)
        return data

    @property
    def cut_due(self) -> bool:
        return self.bytes_left == 0

    def refusals(self, count: int) -> list[int]:
        """Return codes that refuse the first of `count` messages.

        The code for a missing publisher also refuses all later messages.
        """
        codes: list[int] = []
        while self.errors and len(codes) < count:
            codes.append(self.errors.popleft())
            if codes[-1] == ResponseCode.PUBLISHER_DOES_NOT_EXIST:
                codes += codes[-1:] * (count - len(codes))
        return codes

    def confirmed(self, ids: list[int]) -> list[int]:
        """Return the publishing ids without those whose confirms are lost."""
        lost, self.lost = self.lost, max(0, self.lost - len(ids))
        return ids[lost:] if lost else ids

    def ordered(self, ids: list[int]) -> list[list[int]]:
        """Distribute publishing ids over the frames that confirm them."""
        if not self.shuffling or not ids:
            return [ids]
        ids = self.random.sample(ids, len(ids))
        at = self.random.randint(0, len(ids))
        return [ids[at:], ids[:at]]

    def chunk(self, data: bytes) -> bytes:
        """Damage a chunk before it is delivered."""
        if self.corrupted:
            self.corrupted -= 1
            entries = b'\x7f\xff\xff\xff' + data[ENTRIES + 4 :]  # the size of the first entry
            crc = zlib.crc32(entries).to_bytes(4)
            return b''.join((data[:CRC], crc, data[CRC + 4 : ENTRIES], entries))
        if self.damaged:
            self.damaged -= 1
            crc = bytes(byte ^ 0xFF for byte in data[CRC : CRC + 4])
            return b''.join((data[:CRC], crc, data[CRC + 4 :]))
        return data
