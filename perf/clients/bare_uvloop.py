"""Floor: an asyncio protocol sends the frames of the raw socket, with one future per round trip."""

import asyncio

from .. import wire
from ..lanes import Kind
from .base import Target, Work, bodies


class Confirms(asyncio.Protocol):
    """Counts confirms, and wakes the waiting lane when all have arrived."""

    def __init__(self) -> None:
        self.rest = b''
        self.pending = 0
        self.waiter: asyncio.Future[None] | None = None

    def data_received(self, data: bytes) -> None:
        if self.rest:
            data = self.rest + data
        try:
            count, used = wire.confirmed(data)
        except wire.WireError as ex:
            self.fail(ex)
            return
        self.rest = data[used:]
        self.pending -= count
        if self.pending <= 0 and self.waiter is not None:
            self.waiter.set_result(None)
            self.waiter = None

    def connection_lost(self, exc: Exception | None) -> None:
        self.fail(exc or wire.WireError('broker closed the connection'))

    def fail(self, exc: Exception) -> None:
        if self.waiter is not None:
            self.waiter.set_exception(exc)
            self.waiter = None


class Publish(Work):
    async def open(self) -> None:
        connection = wire.Connection(self.target.address)
        connection.declare_publisher(self.target.stream)
        connection.socket.setblocking(False)
        self.transport, self.protocol = await asyncio.get_running_loop().create_connection(
            Confirms, sock=connection.socket
        )

    async def prepare(self, count: int) -> None:
        self.messages = wire.publish_frames(bodies(count, self.kind.body), self.kind.frame)

    async def run(self) -> int:
        create_future = asyncio.get_running_loop().create_future
        write = self.transport.write
        protocol = self.protocol
        size = self.kind.frame
        count = 0
        for frame in self.messages:
            protocol.pending = size
            protocol.waiter = future = create_future()
            write(frame)
            await future
            count += size
        return count

    async def close(self) -> None:
        self.transport.close()


class PollingPublish(Publish):
    """A callback that schedules itself keeps the event loop from sleeping."""

    async def run(self) -> int:
        call_soon = asyncio.get_running_loop().call_soon

        def poll() -> None:
            if polling:
                call_soon(poll)

        polling = True
        poll()
        try:
            return await super().run()
        finally:
            polling = False


def make(kind: Kind, target: Target, polls: bool = False) -> Work:
    return (PollingPublish if polls else Publish)(kind, target)
