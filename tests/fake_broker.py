"""A scripted broker: each test says how it answers a command.

    async with FakeBroker(at={Step.OPEN: SILENT}) as fake:
        client = streams_client(fake.uri)

By default it answers every request with success, and keeps no state; it has no super streams. `at`
replaces the answer at a step of the handshake, `on` the answer to any command. It has no timers and
no tasks, so tests see only those of the client, on any clock. It fails a test that leaves a
connection open.

The keys of commands are attributes of this module. Frames written by hand here are malformed on
purpose; `tests/protocol` checks the protocol itself.
"""

import asyncio
import struct
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import IntEnum
from types import TracebackType
from typing import Any, Self, cast

from rbfly.protocol import commands, message_frames
from rbfly.protocol.chunks import message, write_chunk
from rbfly.protocol.commands import NodeAddress, Request, StreamMetadata
from rbfly.protocol.commands import frame as frame
from rbfly.protocol.commands import string as string
from rbfly.protocol.commands import string_map as string_map
from rbfly.protocol.const import Key, ResponseCode
from rbfly.protocol.message_frames import Publish, PublishV2
from tests.raw_client import decode_frame

OK = 0x0001
CLOSE_TIMEOUT = 10.0  # seconds in which the client must close its connections


def __getattr__(name: str) -> int:
    return cast(int, getattr(Key, name))


class Step(IntEnum):
    """The steps of the handshake, in order; the value is the key of the client's frame."""

    PEER_PROPERTIES = Key.PEER_PROPERTIES
    SASL_HANDSHAKE = Key.SASL_HANDSHAKE
    SASL_AUTHENTICATE = Key.SASL_AUTHENTICATE
    TUNE = Key.TUNE
    OPEN = Key.OPEN
    EXCHANGE_COMMAND_VERSIONS = Key.EXCHANGE_COMMAND_VERSIONS


def chunk(offset: int, messages: Iterable[bytes], timestamp: int = 1_700_000_000_000) -> bytes:
    """A chunk of messages."""
    return write_chunk([*map(message, messages)], offset=offset, timestamp=timestamp)


def deliver(subscription_id: int, data: bytes) -> bytes:
    return message_frames.Deliver(subscription_id, data).encode()


@dataclass(frozen=True)
class Frame:
    """A frame of the client; `body` follows the version."""

    key: int
    version: int
    body: bytes

    @property
    def correlation_id(self) -> int:
        return int(struct.unpack_from('>I', self.body)[0])

    def decode(self) -> Any:
        """Return the command of a request, or the one-way command."""
        found = decode_frame(self.key, self.version, self.body)
        return found.command if isinstance(found, Request) else found

    @property
    def publishing_ids(self) -> list[int]:
        """Publishing ids of a Publish frame of either version."""
        return [entry.publishing_id for entry in self.decode().entries]


class FakeConnection(asyncio.Protocol):
    """The connection of a client.

    :ivar frames: frames received.
    :ivar reads: data received, one item for each read.
    :ivar lost: done when the connection is closed.
    """

    transport: asyncio.Transport

    def __init__(self, broker: 'FakeBroker') -> None:
        self.broker = broker
        self.frames: list[Frame] = []
        self.reads: list[bytes] = []
        self.lost: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._buffer = b''

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.broker.connections.append(self)

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.lost.done():
            self.lost.set_result(None)

    def data_received(self, data: bytes) -> None:
        self.reads.append(data)
        self._buffer += data
        while len(self._buffer) >= 4:
            (size,) = struct.unpack_from('>I', self._buffer)
            if len(self._buffer) < 4 + size:
                break
            key, version = struct.unpack_from('>HH', self._buffer, 4)
            received = Frame(key, version, self._buffer[8 : 4 + size])
            self._buffer = self._buffer[4 + size :]
            self.frames.append(received)
            self.broker.received(self, received)

    def commands(self) -> list[int]:
        return [item.key for item in self.frames]

    def send(self, data: bytes) -> None:
        self.broker.write(self, data)

    def answer(self, request: Frame, body: bytes = b'', code: int = OK) -> None:
        head = struct.pack('>IH', request.correlation_id, code)
        self.send(frame(0x8000 | request.key, head + body))

    def respond(self, request: Frame, value: Any = None, code: int = OK) -> None:
        """Send the response to a request."""
        self.send(request.decode().respond(request.correlation_id, value, code))


Handler = Callable[[FakeConnection, Frame], None]


def SILENT(connection: FakeConnection, request: Frame) -> None:  # noqa: N802 - a constant
    """Do not answer."""


def CLOSING(connection: FakeConnection, request: Frame) -> None:  # noqa: N802
    """Close the connection instead of answering."""
    connection.transport.close()


def RESETTING(connection: FakeConnection, request: Frame) -> None:  # noqa: N802
    """Reset the connection instead of answering."""
    connection.transport.abort()


def GARBAGE(connection: FakeConnection, request: Frame) -> None:  # noqa: N802
    """Answer with bytes that do not form a frame."""
    connection.send(b'HTTP/1.1 400 Bad Request\r\n\r\n')


def TRUNCATED(connection: FakeConnection, request: Frame) -> None:  # noqa: N802
    """Answer with a frame that ends within a field."""
    head = struct.pack('>IHI', request.correlation_id, OK, 3)
    connection.send(frame(0x8000 | request.key, head + b'\xff\xfe\x00'))


def refuse(code: int = 0x11) -> Handler:
    """Answer a request with a code, and a Publish with a PublishError of that code."""

    def handler(connection: FakeConnection, request: Frame) -> None:
        if request.key != Key.PUBLISH:
            connection.respond(request, code=code)
            return
        errors = tuple((i, code) for i in request.publishing_ids)
        connection.send(message_frames.PublishError(request.decode().publisher_id, errors).encode())

    return handler


class FakeBroker:
    """A broker on loopback.

    :param at: handlers of steps of the handshake.
    :param on: handlers of commands, by key.
    :param version: version in its properties.
    :param mechanisms: SASL mechanisms that it offers.
    :param tune: `frame_max` and `heartbeat` that it proposes.
    :param write: writes to the client's transport; by default everything at once.
    :ivar connections: all connections, including closed ones.
    """

    def __init__(
        self,
        *,
        at: Mapping[Step, Handler] | None = None,
        on: Mapping[int, Handler] | None = None,
        version: str = '4.0.5',
        mechanisms: Iterable[str] = ('PLAIN', 'AMQPLAIN'),
        tune: tuple[int, int] = (1048576, 60),
        write: Callable[[FakeConnection, bytes], None] | None = None,
    ) -> None:
        self.connections: list[FakeConnection] = []
        self.handlers: dict[int, Handler] = dict(on or {})
        self.handlers.update({int(step): handler for step, handler in (at or {}).items()})
        self.version = version
        self.mechanisms = list(mechanisms)
        self.tune = tune
        self._write = write
        self._server: asyncio.Server | None = None
        self.port = 0

    @property
    def uri(self) -> str:
        return f'rabbitmq-stream://guest:guest@127.0.0.1:{self.port}/'

    @property
    def connection(self) -> FakeConnection:
        """The first connection."""
        return self.connections[0]

    async def __aenter__(self) -> Self:
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: FakeConnection(self), '127.0.0.1', 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        assert self._server is not None
        self._server.close()
        try:
            if kind is None:
                async with asyncio.timeout(CLOSE_TIMEOUT):
                    await asyncio.gather(*(connection.lost for connection in self.connections))
        except TimeoutError:
            raise AssertionError('the client left a connection open') from None
        finally:
            for connection in self.connections:
                connection.transport.abort()

    def has_received(self, key: int) -> bool:
        """True if a client has sent a command with that key."""
        return any(key in connection.commands() for connection in self.connections)

    def write(self, connection: FakeConnection, data: bytes) -> None:
        if self._write is not None:
            self._write(connection, data)
        else:
            connection.transport.write(data)

    def received(self, connection: FakeConnection, request: Frame) -> None:
        handler = self.handlers.get(request.key)
        if handler is not None:
            handler(connection, request)
        else:
            self.default(connection, request)

    def default(self, connection: FakeConnection, request: Frame) -> None:
        """Answer as RabbitMQ does after success."""
        command = request.decode()
        if isinstance(command, Publish | PublishV2):
            confirm = message_frames.PublishConfirm(
                command.publisher_id, tuple(request.publishing_ids)
            )
            connection.send(confirm.encode())
        elif isinstance(command, commands.Partitions):
            connection.respond(request, code=ResponseCode.STREAM_DOES_NOT_EXIST)
        elif isinstance(command, commands.Command):
            connection.respond(request, self.answer(command))
            if isinstance(command, commands.SaslAuthenticate):
                self.send_tune(connection)
            elif isinstance(command, commands.Close):
                connection.transport.close()
        # Tune, Credit, StoreOffset, Heartbeat and the response to a Close have no answer.

    def answer(self, command: commands.Command[Any]) -> Any:
        """Return the value of a response; None for no value, and for 0."""
        host, port = '127.0.0.1', self.port
        match command:
            case commands.PeerProperties():
                return {'product': 'RabbitMQ', 'version': self.version}
            case commands.SaslHandshake():
                return self.mechanisms
            case commands.Open():
                return {'advertised_host': host, 'advertised_port': str(port)}
            case commands.ExchangeCommandVersions():
                return {Key.PUBLISH: (1, 2)}
            case commands.Metadata(streams=names):
                return {name: StreamMetadata(OK, NodeAddress(host, port), ()) for name in names}
            case commands.StreamStats():
                return dict.fromkeys(('first_chunk_id', 'last_chunk_id', 'committed_chunk_id'), -1)

    def send_tune(self, connection: FakeConnection) -> None:
        connection.send(commands.Tune(*self.tune).encode())
