"""A publisher on the broker, and the entries of its Publish frames."""

import struct

from ..error import FrameError
from ..protocol.commands import PublishError, PublishV2, decode
from ..protocol.const import Key, ResponseCode
from .faults import Faults
from .stream import Entries, Stream
from .wire import Wire

CONFIRMS_MAX = 8192  # publishing ids of a frame
ENTRY = struct.Struct('>QI')


def read_publish(version: int, body: bytes) -> tuple[int, Entries]:
    """Publisher id and entries of a Publish frame; those without filter values are sliced.

    :raises FrameError: it is none.
    """
    if version == 2:
        command = decode(Key.PUBLISH, version, body)
        assert isinstance(command, PublishV2)
        numbers, filters, parts = [*zip(*command.entries, strict=True)] or [(), (), ()]
        return command.publisher_id, Entries([*numbers], [*parts], [*filters])
    if len(body) < 5:
        raise FrameError('a Publish frame ends before its entries')
    unpack, end = ENTRY.unpack_from, len(body)
    ids, data = [], []
    at = 5
    try:
        while at < end:
            number, size = unpack(body, at)
            start = at + 8
            if size >> 31:
                (size,) = struct.unpack_from('>I', body, start + 7)
                at = start + 11 + size
            else:
                at = start + 4 + size
            ids.append(number)
            data.append(body[start:at])
    except struct.error:
        at = end + 1
    if at != end:
        raise FrameError('a Publish frame ends within an entry')
    return body[0], Entries(ids, data)


class Publisher:
    """A publisher.

    :ivar live: whether it is still declared.
    """

    def __init__(self, wire: Wire, id: int, reference: str, stream: Stream, faults: Faults) -> None:
        self.id = id
        self.reference = reference
        self.stream = stream
        self.live = True
        self._wire = wire
        self._faults = faults
        self._withheld: list[int] = []

    def publish(self, entries: Entries) -> None:
        errors = self._faults.errors
        if errors:
            n = min(len(errors), len(entries.ids))
            refused = [(number, errors.popleft()) for number in entries.ids[:n]]
            self._wire.write(PublishError(self.id, tuple(refused)).encode())
            ids, data, filters = entries
            entries = Entries(ids[n:], data[n:], filters and filters[n:])
        self.stream.publish(self, entries)

    def confirm(self, publishing_ids: list[int]) -> None:
        if not self.live:
            return
        ids = self._withheld + self._faults.confirmed(publishing_ids)
        self._withheld = []
        if self._faults.withholding:
            self._withheld = ids
            return
        for part in self._faults.ordered(ids):
            for start in range(0, len(part), CONFIRMS_MAX):
                self._wire.write(confirms(self.id, part[start : start + CONFIRMS_MAX]))


def confirms(publisher_id: int, ids: list[int]) -> bytes:
    """`PublishConfirm`, in less time."""
    n = len(ids)
    return struct.pack(f'>IHHBI{n}Q', 9 + 8 * n, Key.PUBLISH_CONFIRM, 1, publisher_id, n, *ids)


def refuse_all(publisher_id: int, entries: Entries) -> bytes:
    """What is answered to who is no publisher."""
    code = ResponseCode.PUBLISHER_DOES_NOT_EXIST
    return PublishError(publisher_id, tuple((number, code) for number in entries.ids)).encode()
