"""A publisher on the broker."""

import struct
from collections.abc import Callable

from ..protocol.commands import PublishError
from ..protocol.const import Key, ResponseCode
from .faults import Faults
from .stream import Entries, Stream
from .wire import Wire

CONFIRMS_MAX = 8192  # publishing ids of a frame


class Publisher:
    """A publisher.

    :ivar live: whether it is still declared.
    """

    def __init__(
        self,
        wire: Wire,
        id: int,
        reference: str,
        stream: Stream,
        faults: Faults,
        forget: Callable[['Publisher'], None],
    ) -> None:
        self.id = id
        self.reference = reference
        self.stream = stream
        self.live = True
        self._wire = wire
        self._faults = faults
        self._forget = forget
        self._withheld: list[int] = []

    def publish(self, entries: Entries) -> None:
        ids, data, filters = entries
        codes = self._faults.refusals(len(ids))
        if codes:
            n = len(codes)
            self._wire.write(PublishError(self.id, (*zip(ids, codes, strict=False),)).encode())
            if codes[-1] == ResponseCode.PUBLISHER_DOES_NOT_EXIST:
                self._forget(self)
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
