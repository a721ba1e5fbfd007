"""Floor of an open loop: two bare asyncio protocols, one publishing and one consuming."""

import asyncio
from collections.abc import Callable

from .. import wire
from ..lanes import Kind
from .base import Target, Work
from .open_loop import OpenLoop

CREDIT = wire.CREDIT_ONE.pack(7, wire.CREDIT, 1, 0, 1)


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


class Floor(OpenLoop):
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


def make(kind: Kind, target: Target) -> Work:
    return Floor(kind, target)
