"""A raw client, which sends and receives single frames."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import urlsplit

from rbfly.protocol import commands, message_frames
from rbfly.protocol.chunks import PublishEntry, message
from rbfly.protocol.commands import Command, OneWay, Request, Response
from rbfly.protocol.const import Key
from rbfly.protocol.fields import Reader

TIMEOUT = 10.0  # seconds; only a bug makes a test wait that long
# The same for the first answer: RabbitMQ 4.0 sometimes accepts no connection for 10 s, see `until`.
ACCEPT_TIMEOUT = 30.0


def numbered_entries(*ids: int, filter: bytes | None = None) -> tuple[PublishEntry, ...]:
    """Return entries of a Publish frame: each message is its publishing id."""
    return tuple(PublishEntry(i, filter, message(b'%d' % i)) for i in ids)


def decode_frame(key: int, version: int, body: bytes) -> Request | Response | OneWay:
    return message_frames.decode(key, version, Reader(body, strict=True))


class RawClient:
    """A connection.

    :ivar aside: other frames received while :meth:`ask` waited for a response.
    """

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self.aside: list[Any] = []
        self.sent = 0

    def write(self, *frames: bytes) -> None:
        self.writer.write(b''.join(frames))

    def send(self, *items: OneWay) -> None:
        self.write(*(item.encode() for item in items))

    async def receive(self, timeout: float = TIMEOUT) -> Any:
        """Return the next frame, or None when the connection ends."""
        if self.aside:
            return self.aside.pop(0)
        return await self._next(timeout)

    async def _next(self, timeout: float) -> Any:
        async with asyncio.timeout(timeout):
            try:
                size = int.from_bytes(await self.reader.readexactly(4))
                data = await self.reader.readexactly(size)
            except (asyncio.IncompleteReadError, ConnectionError):
                return None
        key, version = int.from_bytes(data[:2]), int.from_bytes(data[2:4])
        found = decode_frame(key, version, data[4:])
        return found.command if isinstance(found, Request) else found

    async def ask(self, command: Command[Any]) -> Response:
        """Send a request, and return its response."""
        self.sent += 1
        self.write(command.encode(self.sent))
        first = isinstance(command, commands.PeerProperties)
        timeout = ACCEPT_TIMEOUT if first else TIMEOUT
        while True:
            found = await self._next(timeout)
            assert found is not None, 'the connection has ended'
            if isinstance(found, Response) and found.command is type(command):
                assert found.correlation_id == self.sent
                return found
            self.aside.append(found)

    async def code(self, command: Command[Any]) -> int:
        return (await self.ask(command)).code

    async def value(self, command: Command[Any]) -> Any:
        response = await self.ask(command)
        assert response.code == 1
        return response.value

    async def handshake(self, vhost: str = '/') -> None:
        await self.value(commands.PeerProperties({}))
        await self.value(commands.SaslHandshake())
        await self.value(commands.SaslAuthenticate('PLAIN', b'\0guest\0guest'))
        tune = await self.receive()
        assert isinstance(tune, commands.Tune)
        self.send(tune)
        await self.value(commands.Open(vhost))

    async def deliver_v2(self) -> None:
        await self.value(commands.ExchangeCommandVersions({Key.DELIVER: (1, 2)}))


@contextlib.asynccontextmanager
async def connect(uri: str) -> AsyncIterator[RawClient]:
    """Connect without a handshake."""
    address = urlsplit(uri)
    reader, writer = await asyncio.open_connection(address.hostname, address.port)
    try:
        yield RawClient(reader, writer)
    finally:
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()


@contextlib.asynccontextmanager
async def connect_and_open(uri: str) -> AsyncIterator[RawClient]:
    """Connect, and open the virtual host."""
    async with connect(uri) as client:
        await client.handshake()
        yield client
