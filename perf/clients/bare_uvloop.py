"""Floor: an asyncio protocol sends the frames of the raw socket, with one future per round trip."""

import asyncio
from collections.abc import Callable

from brokers import wire

from ..lanes import Kind
from .base import Target, Work, bodies
from .open_loop import OpenLoop

CREDIT = wire.CREDIT_ONE.pack(7, wire.CREDIT, 1, 0, 1)


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


class SubEntries(Publish):
    """A frame is one sub-entry."""

    async def prepare(self, count: int) -> None:
        size = self.kind.size
        self.messages = wire.sub_entry_frames(bodies(count), size, self.kind.frame)

    async def run(self) -> int:
        return self.kind.size * await super().run()


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


class Frames(asyncio.Protocol):
    """Splits received data into frames."""

    def __init__(self, work: OpenLoop, frame: Callable[[int, bytes], None]) -> None:
        self.work = work
        self.frame = frame
        self.rest = b''

    def data_received(self, data: bytes) -> None:
        if self.rest:
            data = self.rest + data
        pos = 0
        end = len(data)
        try:
            while end - pos >= 8:
                size, key, _ = wire.HEAD.unpack_from(data, pos)
                if end - pos < 4 + size:
                    break
                self.frame(key, data[pos + 8 : pos + 4 + size])
                pos += 4 + size
        except Exception as ex:
            self.work.fail(ex)
        self.rest = data[pos:]

    def connection_lost(self, exc: Exception | None) -> None:
        self.work.fail(exc or wire.WireError('broker closed the connection'))


class AtFixedRate(OpenLoop):
    """Sends all due messages in one frame; they are encoded before the clock starts."""

    async def open(self) -> None:
        consumer = wire.Connection(self.target.address)
        consumer.subscribe(self.target.stream, start=wire.OFFSET_NEXT)
        publisher = wire.Connection(self.target.address)
        publisher.declare_publisher(self.target.stream)
        self.publisher = await self.connect(publisher, self.on_confirm)
        self.consumer = await self.connect(consumer, self.on_deliver)

    async def connect(
        self, connection: wire.Connection, frame: Callable[[int, bytes], None]
    ) -> asyncio.WriteTransport:
        connection.socket.setblocking(False)
        transport, _ = await asyncio.get_running_loop().create_connection(
            lambda: Frames(self, frame), sock=connection.socket
        )
        return transport

    async def prepare(self, count: int) -> None:
        await super().prepare(count)
        self.messages = [wire.data_section(body) for body in self.bodies]

    def send(self, first: int, end: int) -> None:
        frame = wire.publish_frame(0, self.number + first, self.messages[first:end])
        self.publisher.write(frame)

    def on_confirm(self, key: int, body: bytes) -> None:
        if key != wire.PUBLISH_CONFIRM:
            wire.refuse(key, body)
            return
        for pos in range(5, len(body), 8):
            self.confirmed(int.from_bytes(body[pos : pos + 8], 'big') - self.number)

    def on_deliver(self, key: int, body: bytes) -> None:
        if key != wire.DELIVER:
            wire.refuse(key, body)
            return
        self.consumer.write(CREDIT)
        for message in wire.read_chunk(body[1:])[1]:
            self.consumed(message[5:])  # skip the header of the data section

    async def close(self) -> None:
        self.publisher.close()
        self.consumer.close()


def make(kind: Kind, target: Target, polls: bool = False) -> Work:
    if kind.work.startswith('sub-'):
        return SubEntries(kind, target)
    way = AtFixedRate if kind.rate else PollingPublish if polls else Publish
    return way(kind, target)
