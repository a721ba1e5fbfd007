"""A subscription on the broker: chunks against credit."""

from collections.abc import Mapping

from ..protocol.commands import Deliver, DeliverV2
from .faults import Faults
from .stream import StoredChunk, Stream
from .wire import Wire


class Subscription:
    """A subscription.

    :ivar at: number of the chunk to be sent next.
    :ivar credit: how many chunks the client takes.
    :ivar limit: credit above which a burst of chunks begins.
    :ivar version: of the Deliver frames.
    """

    def __init__(
        self,
        wire: Wire,
        id: int,
        stream: Stream,
        at: int,
        credit: int,
        properties: Mapping[str, str],
        version: int,
        faults: Faults,
    ) -> None:
        self.id = id
        self.stream = stream
        self.at = at
        self.credit = credit
        self.limit = credit // 2
        self._wire = wire
        self.version = version
        self._faults = faults
        self._interrupted = False  # a burst, by a client that does not read
        self._filters = frozenset(
            value.encode() for name, value in properties.items() if name.startswith('filter.')
        )
        self._unfiltered = properties.get('match-unfiltered') == 'true' or b'' in self._filters

    def wants(self, chunk: StoredChunk) -> bool:
        """Whether a chunk is sent; one that is holds other messages as well."""
        if chunk.type:
            return False
        if not self._filters:
            return True
        return bool(chunk.filters & self._filters) or (self._unfiltered and chunk.unfiltered)

    def grant(self, chunks: int) -> None:
        self.credit += chunks
        self.send()

    def send(self) -> None:
        """What there is, as far as credit and the connection allow."""
        if self.credit <= self.limit and not self._interrupted:
            return
        self._interrupted = False
        while self.credit > 0 and not self._wire.ended:
            if self._wire.paused or self._faults.silent:
                self._interrupted = True
                break
            chunk = self.stream.at(self.at)
            if chunk is None:
                break
            self.at = max(self.at, self.stream.dropped) + 1
            if self.wants(chunk):
                self.credit -= 1
                self._deliver(chunk)

    def _deliver(self, chunk: StoredChunk) -> None:
        data = self._faults.chunk(chunk.data)
        if self.version == 1:
            frame = Deliver(self.id, data).encode()
        else:
            frame = DeliverV2(self.id, self.stream.chunks[-1].offset, data).encode()
        self._wire.write(frame)
