"""A stream broker that does what a test tells it; written from the protocol, not from rbfly.

    async with FakeBroker(at={Step.OPEN: SILENT}) as fake:
        client = streams_client(fake.uri)

It answers the handshake and the requests of the client as RabbitMQ does.  `at` changes what it
does at a step of the handshake, `on` what it does with any command.  Everything runs in callbacks
of the loop, so that it adds no task to those of the client.  It fails a test that has left a
connection open.
"""

import asyncio
import struct
import zlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import IntEnum
from types import TracebackType
from typing import Self, cast

OK = 0x0001
CLOSE_TIMEOUT = 10.0  # seconds for the client to close its connections before the broker does

DECLARE_PUBLISHER = 0x0001
PUBLISH = 0x0002
PUBLISH_CONFIRM = 0x0003
PUBLISH_ERROR = 0x0004
QUERY_PUBLISHER_SEQUENCE = 0x0005
DELETE_PUBLISHER = 0x0006
SUBSCRIBE = 0x0007
DELIVER = 0x0008
CREDIT = 0x0009
STORE_OFFSET = 0x000A
QUERY_OFFSET = 0x000B
UNSUBSCRIBE = 0x000C
CREATE = 0x000D
DELETE = 0x000E
METADATA = 0x000F
METADATA_UPDATE = 0x0010
CLOSE = 0x0016
HEARTBEAT = 0x0017
STREAM_STATS = 0x001C


class Step(IntEnum):
    """Steps of the handshake in their order; the value is the key of the client's frame."""

    PEER_PROPERTIES = 0x0011
    SASL_HANDSHAKE = 0x0012
    SASL_AUTHENTICATE = 0x0013
    TUNE = 0x0014
    OPEN = 0x0015
    EXCHANGE_COMMAND_VERSIONS = 0x001B


def string(text: str) -> bytes:
    data = text.encode()
    return struct.pack('>H', len(data)) + data


def string_map(items: Mapping[str, str]) -> bytes:
    pairs = b''.join(string(key) + string(value) for key, value in items.items())
    return struct.pack('>I', len(items)) + pairs


def frame(key: int, body: bytes, version: int = 1) -> bytes:
    return struct.pack('>IHH', 4 + len(body), key, version) + body


def chunk(offset: int, messages: Iterable[bytes], timestamp: int = 1_700_000_000_000) -> bytes:
    """A chunk of uncompressed messages, as RabbitMQ writes it."""
    entries = [struct.pack('>I', len(message)) + message for message in messages]
    data = b''.join(entries)
    return (
        struct.pack('>BBHIqQQ', 0x50, 0, len(entries), len(entries), timestamp, 1, offset)
        + struct.pack('>IIIBBBB', zlib.crc32(data), len(data), 0, 0, 0, 0, 0)
        + data
    )


def stats(**values: int) -> bytes:
    """Body of an answer to StreamStats."""
    pairs = b''.join(string(key) + struct.pack('>q', value) for key, value in values.items())
    return struct.pack('>I', len(values)) + pairs


def deliver(subscription_id: int, data: bytes) -> bytes:
    return frame(DELIVER, struct.pack('>B', subscription_id) + data)


@dataclass(frozen=True)
class Frame:
    """A frame that the client sent; `body` is what follows key and version."""

    key: int
    version: int
    body: bytes

    @property
    def correlation_id(self) -> int:
        return int(struct.unpack_from('>I', self.body)[0])

    @property
    def publishing_ids(self) -> list[int]:
        """Ids of a Publish frame of either version."""
        (count,) = struct.unpack_from('>I', self.body, 1)
        ids, at = [], 5
        for _ in range(count):
            ids.append(struct.unpack_from('>Q', self.body, at)[0])
            at += 8
            if self.version == 2:
                (length,) = struct.unpack_from('>H', self.body, at)
                at += 2 + (0 if length == 0xFFFF else length)
            (length,) = struct.unpack_from('>I', self.body, at)
            at += 4 + length
        assert at == len(self.body)
        return ids


class FakeConnection(asyncio.Protocol):
    """One client at the broker.

    :ivar frames: what it has sent, in order.
    :ivar reads: the same as it came.
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
    """Answer with bytes that are no frame."""
    connection.send(b'HTTP/1.1 400 Bad Request\r\n\r\n')


def TRUNCATED(connection: FakeConnection, request: Frame) -> None:  # noqa: N802
    """Answer with a frame that ends within its fields."""
    head = struct.pack('>IHI', request.correlation_id, OK, 3)
    connection.send(frame(0x8000 | request.key, head + b'\xff\xfe\x00'))


def refuse(code: int = 0x11) -> Handler:
    """Answer a request with a code, and a Publish with a PublishError of it."""

    def handler(connection: FakeConnection, request: Frame) -> None:
        if request.key != PUBLISH:
            connection.answer(request, code=code)
            return
        body = struct.pack('>BI', request.body[0], len(request.publishing_ids))
        body += b''.join(struct.pack('>QH', i, code) for i in request.publishing_ids)
        connection.send(frame(PUBLISH_ERROR, body))

    return handler


class FakeBroker:
    """Listens on loopback.

    :param at: handler of a step of the handshake.
    :param on: handler of another command, by key.
    :param version: what it says its version is.
    :param mechanisms: SASL mechanisms that it offers.
    :param tune: `frame_max` and `heartbeat` that it proposes.
    :param write: how it writes to the client's transport; all at once by default.
    :ivar connections: all there have been.
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
            raise AssertionError('the client has left a connection open') from None
        finally:
            for connection in self.connections:
                connection.transport.abort()

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
        """What RabbitMQ does."""
        if request.key == Step.PEER_PROPERTIES:
            properties = {'product': 'RabbitMQ', 'version': self.version}
            connection.answer(request, string_map(properties))
        elif request.key == Step.SASL_HANDSHAKE:
            names = b''.join(map(string, self.mechanisms))
            connection.answer(request, struct.pack('>I', len(self.mechanisms)) + names)
        elif request.key == Step.SASL_AUTHENTICATE:
            connection.answer(request)
            self.send_tune(connection)
        elif request.key == Step.OPEN:
            host, port = '127.0.0.1', str(self.port)
            body = string_map({'advertised_host': host, 'advertised_port': port})
            connection.answer(request, body)
        elif request.key == Step.EXCHANGE_COMMAND_VERSIONS:
            connection.answer(request, struct.pack('>IHHH', 1, PUBLISH, 1, 2))
        elif request.key == METADATA:
            (length,) = struct.unpack_from('>H', request.body, 8)
            name = request.body[8 : 10 + length]
            broker = struct.pack('>IH', 1, 0) + string('127.0.0.1') + struct.pack('>I', self.port)
            stream = struct.pack('>I', 1) + name + struct.pack('>HHI', OK, 0, 0)
            body = request.body[:4] + broker + stream
            connection.send(frame(0x8000 | METADATA, body))
        elif request.key == STREAM_STATS:
            empty = stats(first_chunk_id=-1, last_chunk_id=-1, committed_chunk_id=-1)
            connection.answer(request, empty)
        elif request.key in (QUERY_PUBLISHER_SEQUENCE, QUERY_OFFSET):
            connection.answer(request, struct.pack('>Q', 0))
        elif request.key == PUBLISH:
            ids = request.publishing_ids
            body = struct.pack('>BI', request.body[0], len(ids))
            body += b''.join(struct.pack('>Q', item) for item in ids)
            connection.send(frame(PUBLISH_CONFIRM, body))
        elif request.key == CLOSE:
            connection.answer(request)
            connection.transport.close()
        elif request.key in (
            DECLARE_PUBLISHER,
            DELETE_PUBLISHER,
            SUBSCRIBE,
            UNSUBSCRIBE,
            CREATE,
            DELETE,
        ):
            connection.answer(request)
        # Tune, Credit, StoreOffset, Heartbeat and the answer to a Close get none.

    def send_tune(self, connection: FakeConnection) -> None:
        connection.send(frame(Step.TUNE, struct.pack('>II', *self.tune)))
