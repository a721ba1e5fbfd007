"""The rare requests of the stream protocol as bytes.

    request    size u32 | key u16 | version u16 | correlation id u32 | body
    response   size u32 | key u16 (bit 15 set) | version u16 | correlation id u32 | code u16 | body
    one-way    size u32 | key u16 | version u16 | body

A command is a dataclass: `body()` gives the bytes of a request behind its correlation id, and
`parse()` reads those of the response behind its code.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Generic, TypeVar

from ..error import ArgumentError, ArgumentOverflowError, FrameError
from .const import RESPONSE, Key, OffsetCode, ResponseCode
from .offset import Offset, OffsetType

T = TypeVar('T')

HEARTBEAT = struct.pack('>IHH', 4, Key.HEARTBEAT, 1)
NAME_MAX = 255  # bytes of a publisher, consumer or offset reference
STRING_MAX = 0xFFFE  # 0xffff is the length of a null string


# -- bytes out


def string(value: str) -> bytes:
    try:
        data = value.encode()
    except UnicodeEncodeError:
        raise ArgumentError(f'{clip(value)} is not valid Unicode') from None
    if len(data) > STRING_MAX:
        raise ArgumentError(f'{clip(value)} is longer than {STRING_MAX} bytes')
    return struct.pack('>H', len(data)) + data


def reference(value: str, what: str) -> bytes:
    """A string that the broker takes up to 255 bytes."""
    data = string(value)
    if len(data) - 2 > NAME_MAX:
        raise ArgumentError(f'{what} {clip(value)} is longer than {NAME_MAX} bytes')
    return data


def clip(value: str) -> str:
    return repr(value if len(value) <= 32 else value[:29] + '...')


def array(items: Iterable[bytes]) -> bytes:
    parts = list(items)
    return struct.pack('>I', len(parts)) + b''.join(parts)


def string_map(items: Mapping[str, str]) -> bytes:
    return array(string(key) + string(value) for key, value in items.items())


def frame(key: int, body: bytes, version: int = 1) -> bytes:
    return struct.pack('>IHH', len(body) + 4, key, version) + body


def offset_spec(offset: Offset) -> bytes:
    if offset.type == OffsetType.OFFSET:
        return struct.pack('>HQ', OffsetCode.OFFSET, offset.value)
    if offset.type == OffsetType.TIMESTAMP:
        assert isinstance(offset.value, int | float)
        return struct.pack('>Hq', OffsetCode.TIMESTAMP, round(offset.value * 1000))
    return struct.pack('>H', offset.type)


# -- bytes in


class Reader:
    """Reads the fields of a frame in order.

    :raises FrameError: the frame ends before the field.
    """

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0

    def take(self, n: int) -> bytes:
        if n > len(self.data) - self.at:
            raise FrameError(f'frame ends at byte {len(self.data)}, within a field')
        self.at += n
        return self.data[self.at - n : self.at]

    def u8(self) -> int:
        return self.take(1)[0]

    def u16(self) -> int:
        return int.from_bytes(self.take(2), 'big')

    def u32(self) -> int:
        return int.from_bytes(self.take(4), 'big')

    def u64(self) -> int:
        return int.from_bytes(self.take(8), 'big')

    def i64(self) -> int:
        return int.from_bytes(self.take(8), 'big', signed=True)

    def string(self) -> str:
        n = self.u16()
        if n == 0xFFFF:
            return ''
        return self.take(n).decode(errors='replace')

    def array(self, item: Callable[[], T]) -> list[T]:
        return [item() for _ in range(self.u32())]

    def string_map(self) -> dict[str, str]:
        return dict(self.array(lambda: (self.string(), self.string())))

    @property
    def at_end(self) -> bool:
        return self.at == len(self.data)


# -- commands


class Command(Generic[T]):
    """A request; `T` is what its response holds."""

    key: ClassVar[Key]

    def body(self) -> bytes:
        raise NotImplementedError

    def parse(self, reader: Reader) -> T:
        raise NotImplementedError

    def encode(self, correlation_id: int) -> bytes:
        return frame(self.key, struct.pack('>I', correlation_id) + self.body())


class NoPayload(Command[None]):
    """A request whose response holds nothing but its code."""

    def parse(self, reader: Reader) -> None:
        pass


@dataclass(frozen=True)
class PeerProperties(Command[dict[str, str]]):
    properties: Mapping[str, str]
    key = Key.PEER_PROPERTIES

    def body(self) -> bytes:
        return string_map(self.properties)

    def parse(self, reader: Reader) -> dict[str, str]:
        return reader.string_map()


@dataclass(frozen=True)
class SaslHandshake(Command[list[str]]):
    key = Key.SASL_HANDSHAKE

    def body(self) -> bytes:
        return b''

    def parse(self, reader: Reader) -> list[str]:
        return reader.array(reader.string)


@dataclass(frozen=True)
class SaslAuthenticate(NoPayload):
    mechanism: str
    data: bytes = field(repr=False)  # holds the password
    key = Key.SASL_AUTHENTICATE

    def body(self) -> bytes:
        return string(self.mechanism) + struct.pack('>I', len(self.data)) + self.data


@dataclass(frozen=True)
class Open(Command[dict[str, str]]):
    vhost: str
    key = Key.OPEN

    def body(self) -> bytes:
        return string(self.vhost)

    def parse(self, reader: Reader) -> dict[str, str]:
        return {} if reader.at_end else reader.string_map()


@dataclass(frozen=True)
class Close(NoPayload):
    code: int = ResponseCode.OK
    reason: str = 'closed by the client'
    key = Key.CLOSE

    def body(self) -> bytes:
        return struct.pack('>H', self.code) + string(self.reason)


@dataclass(frozen=True)
class ExchangeCommandVersions(Command[dict[int, tuple[int, int]]]):
    """Versions by key; the broker switches to Deliver v2 where `(1, 2)` is sent for it."""

    versions: Mapping[int, tuple[int, int]]
    key = Key.EXCHANGE_COMMAND_VERSIONS

    def body(self) -> bytes:
        return array(struct.pack('>HHH', key, *span) for key, span in self.versions.items())

    def parse(self, reader: Reader) -> dict[int, tuple[int, int]]:
        return dict(reader.array(lambda: (reader.u16(), (reader.u16(), reader.u16()))))


@dataclass(frozen=True)
class Create(NoPayload):
    stream: str
    arguments: Mapping[str, str]
    key = Key.CREATE

    def body(self) -> bytes:
        return string(self.stream) + string_map(self.arguments)


@dataclass(frozen=True)
class Delete(NoPayload):
    stream: str
    key = Key.DELETE

    def body(self) -> bytes:
        return string(self.stream)


@dataclass(frozen=True)
class Broker:
    """A node's advertised address."""

    host: str
    port: int

    def __str__(self) -> str:
        return f'{self.host}:{self.port}'


@dataclass(frozen=True)
class StreamMetadata:
    """Where a stream is: code, the leader (None: none right now), the replicas."""

    code: int
    leader: Broker | None
    replicas: tuple[Broker, ...]


@dataclass(frozen=True)
class Metadata(Command[dict[str, StreamMetadata]]):
    """The one response without a code of its own."""

    streams: tuple[str, ...]
    key = Key.METADATA

    def body(self) -> bytes:
        return array(string(name) for name in self.streams)

    def parse(self, reader: Reader) -> dict[str, StreamMetadata]:
        brokers = dict(reader.array(lambda: (reader.u16(), Broker(reader.string(), reader.u32()))))

        def stream() -> tuple[str, StreamMetadata]:
            name, code, leader = reader.string(), reader.u16(), reader.u16()
            replicas = reader.array(reader.u16)
            found = tuple(brokers[ref] for ref in replicas if ref in brokers)
            return name, StreamMetadata(code, brokers.get(leader), found)

        return dict(reader.array(stream))


@dataclass(frozen=True)
class DeclarePublisher(NoPayload):
    publisher_id: int
    reference: str
    stream: str
    key = Key.DECLARE_PUBLISHER

    def body(self) -> bytes:
        name = reference(self.reference, 'publisher name')
        return struct.pack('>B', self.publisher_id) + name + string(self.stream)


@dataclass(frozen=True)
class DeletePublisher(NoPayload):
    publisher_id: int
    key = Key.DELETE_PUBLISHER

    def body(self) -> bytes:
        return struct.pack('>B', self.publisher_id)


@dataclass(frozen=True)
class QueryPublisherSequence(Command[int]):
    reference: str
    stream: str
    key = Key.QUERY_PUBLISHER_SEQUENCE

    def body(self) -> bytes:
        return reference(self.reference, 'publisher name') + string(self.stream)

    def parse(self, reader: Reader) -> int:
        return reader.u64()


@dataclass(frozen=True)
class Subscribe(NoPayload):
    subscription_id: int
    stream: str
    offset: Offset
    credit: int
    properties: Mapping[str, str]
    key = Key.SUBSCRIBE

    def body(self) -> bytes:
        return (
            struct.pack('>B', self.subscription_id)
            + string(self.stream)
            + offset_spec(self.offset)
            + struct.pack('>H', self.credit)
            + string_map(self.properties)
        )


@dataclass(frozen=True)
class Unsubscribe(NoPayload):
    subscription_id: int
    key = Key.UNSUBSCRIBE

    def body(self) -> bytes:
        return struct.pack('>B', self.subscription_id)


@dataclass(frozen=True)
class QueryOffset(Command[int]):
    reference: str
    stream: str
    key = Key.QUERY_OFFSET

    def body(self) -> bytes:
        return reference(self.reference, 'offset reference') + string(self.stream)

    def parse(self, reader: Reader) -> int:
        return reader.u64()


@dataclass(frozen=True)
class StreamStats(Command[dict[str, int]]):
    """Positions of a stream; -1 for those that an empty one does not have."""

    stream: str
    key = Key.STREAM_STATS

    def body(self) -> bytes:
        return string(self.stream)

    def parse(self, reader: Reader) -> dict[str, int]:
        return dict(reader.array(lambda: (reader.string(), reader.i64())))


# -- one-way frames


def credit(subscription_id: int, chunks: int) -> bytes:
    return struct.pack('>IHHBh', 7, Key.CREDIT, 1, subscription_id, chunks)


def store_offset(name: str, stream: str, offset: int) -> bytes:
    if not 0 <= offset < 2**64:
        raise ArgumentOverflowError(f'offset must be in 0 to 2**64 - 1, not {offset}')
    body = reference(name, 'offset reference') + string(stream) + struct.pack('>Q', offset)
    return frame(Key.STORE_OFFSET, body)


@dataclass(frozen=True)
class Tune:
    """Limits: `frame_max` in bytes and `heartbeat` in seconds; 0 is unlimited, or none."""

    frame_max: int
    heartbeat: int

    def encode(self) -> bytes:
        return frame(Key.TUNE, struct.pack('>II', self.frame_max, self.heartbeat))

    @staticmethod
    def parse(body: bytes) -> Tune:
        reader = Reader(body)
        return Tune(reader.u32(), reader.u32())

    def agree(self, other: Tune) -> Tune:
        """The smaller of both, where 0 gives way to the other."""

        def smaller(a: int, b: int) -> int:
            return min(a, b) if a and b else a or b

        return Tune(
            smaller(self.frame_max, other.frame_max), smaller(self.heartbeat, other.heartbeat)
        )


def close_response(correlation_id: int) -> bytes:
    body = struct.pack('>IH', correlation_id, ResponseCode.OK)
    return frame(Key.CLOSE | RESPONSE, body)


@dataclass(frozen=True)
class ServerClose:
    """The broker's own Close request."""

    correlation_id: int
    code: int
    reason: str

    @staticmethod
    def parse(body: bytes) -> ServerClose:
        reader = Reader(body)
        return ServerClose(reader.u32(), reader.u16(), reader.string())


@dataclass(frozen=True)
class MetadataUpdate:
    """The publishers and subscriptions on a stream are gone."""

    code: int
    stream: str

    @staticmethod
    def parse(body: bytes) -> MetadataUpdate:
        reader = Reader(body)
        return MetadataUpdate(reader.u16(), reader.string())
