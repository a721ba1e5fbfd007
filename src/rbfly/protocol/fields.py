"""Fields of the stream protocol: the type annotation of a field defines its encoding.

    U8, I64, String, ...     as named; integers are big-endian
    tuple[U64, U16]          one after the other
    tuple[U64, ...]          an array: count u32 | items
    dict[String, I64]        an array of keys and values

Subclasses of :class:`Fields` only declare their fields.
"""

import struct
from collections.abc import Callable, Mapping
from functools import cache
from types import GenericAlias
from typing import (
    Annotated,
    Any,
    Generic,
    Self,
    TypeVar,
    get_args,
    get_origin,
)

from ..error import ArgumentError, ArgumentOverflowError, FrameError, counted
from ..record import Record
from .offset import Offset, OffsetType

T = TypeVar('T')

NAME_MAX = 255  # bytes of a publisher, consumer or offset reference
STRING_MAX = 0xFFFE  # 0xffff is the length of a null string
NULL = 0xFFFF
NULL_BYTES = 0xFFFF_FFFF
TIME_MAX = 2**50  # milliseconds, to the year 37,648; larger values are not exact in seconds


def too_long(size: int, limit: int) -> FrameError:
    """Return the error for a frame above the limit; its size shows what a wrong port sends."""
    first = size.to_bytes(4, 'big')
    problem = f'a frame of {size} bytes exceeds the limit of {limit}'
    if first == b'AMQP':
        problem = "the port is one for AMQP: it answered 'AMQP'; streams usually have port 5552"
    elif first == b'HTTP':
        problem = "the port is one for HTTP: it answered 'HTTP'; streams usually have port 5552"
    elif first[:2] in (b'\x15\x03', b'\x16\x03'):
        problem = f'it answered with TLS {first.hex()}; is it a TLS port?'
    return FrameError(problem)


class Reader:
    """Reads the fields of a frame in order.

    :param strict: reject strings that are null or not UTF-8; otherwise replace invalid bytes.
    :raises FrameError: the frame ends within a field.
    """

    def __init__(self, data: bytes, strict: bool = False) -> None:
        self.data = data
        self.at: int = 0
        self.strict = strict

    def take(self, n: int) -> bytes:
        start, end = self.at, self.at + n
        if end > len(self.data):
            raise FrameError(f'frame ends at byte {len(self.data)}, within a field')
        self.at = end
        return self.data[start:end]

    def u16(self) -> int:
        return int.from_bytes(self.take(2), 'big')

    def u32(self) -> int:
        return int.from_bytes(self.take(4), 'big')

    def items(self, decode: Callable[['Reader'], T], size: int) -> tuple[T, ...]:
        """Read an array of items that have at least `size` bytes each."""
        n = self.u32()
        if n * size > self.left:
            length = counted(len(self.data), 'byte')
            raise FrameError(f'frame of {length} declares {counted(n, "item")}')
        return tuple([decode(self) for _ in range(n)])

    def string(self) -> str:
        n = self.u16()
        if n == NULL and not self.strict:
            return ''
        try:
            return self.take(n).decode(errors='strict' if self.strict else 'replace')
        except UnicodeDecodeError:
            raise FrameError('a string is not valid UTF-8') from None

    @property
    def left(self) -> int:
        return len(self.data) - self.at

    @property
    def at_end(self) -> bool:
        return self.left == 0


class Codec(Generic[T]):
    """Encodes and decodes a field.

    :ivar size: minimum size in bytes.
    :ivar empty: value in a response that reports an error.
    """

    __class_getitem__: Any = classmethod(GenericAlias)  # faster than that of Generic

    def __init__(
        self, encode: Callable[[T], bytes], decode: Callable[[Reader], T], size: int, empty: T
    ) -> None:
        self.encode = encode
        self.decode = decode
        self.size = size
        self.empty = empty


def codec_of(kind: Any) -> Codec[Any]:
    """Return the codec for the type of a field."""
    origin, args = get_origin(kind), get_args(kind)
    if origin is Annotated:
        codec: Codec[Any] = kind.__metadata__[0]
        return codec
    if origin is dict:
        pairs = array(record(*map(codec_of, args)))
        return Codec(
            lambda items: pairs.encode(items.items()), lambda reader: dict(pairs.decode(reader)),
            pairs.size, {},
        )  # fmt: skip
    if origin is tuple:
        return array(codec_of(args[0])) if args[-1] is ... else record(*map(codec_of, args))
    assert kind is None, kind
    return Codec(lambda value: b'', lambda reader: None, 0, None)


def array(item: Codec[Any]) -> Codec[Any]:
    def encode(items: Any) -> bytes:
        return struct.pack('>I', len(items)) + b''.join(map(item.encode, items))

    return Codec(encode, lambda reader: reader.items(item.decode, item.size), 4, ())


def record(*parts: Codec[Any]) -> Codec[Any]:
    def encode(values: Any) -> bytes:
        return b''.join(part.encode(value) for part, value in zip(parts, values, strict=True))

    size = sum(part.size for part in parts)
    return Codec(encode, lambda reader: tuple([part.decode(reader) for part in parts]), size, ())


def optional(codec: Codec[Any], absent: Callable[[], Any]) -> Codec[Any]:
    """A trailing field that may be missing and is then decoded as `absent()`."""
    return Codec(
        lambda value: b'' if value is None else codec.encode(value),
        lambda reader: absent() if reader.at_end else codec.decode(reader),
        0, None,
    )  # fmt: skip


class Fields(Record):
    """Base of records whose fields are encoded and decoded according to their types."""

    @classmethod
    @cache
    def codecs(cls) -> tuple[tuple[str, Codec[Any]], ...]:
        return tuple((name, codec_of(kind)) for name, kind in cls.field_types.items())

    def body(self) -> bytes:
        """Encode the fields.

        :raises ArgumentError: a string does not fit into its field.
        :raises ArgumentOverflowError: a number does not fit into its field.
        """
        try:
            return b''.join([codec.encode(getattr(self, name)) for name, codec in self.codecs()])
        except struct.error as ex:
            raise ArgumentOverflowError(f'{type(self).__name__}: {ex}') from None

    @classmethod
    def read(cls, reader: Reader) -> Self:
        return cls(*[codec.decode(reader) for _, codec in cls.codecs()])


# -- numbers


def integer(format: str) -> Codec[int]:
    packer = struct.Struct(f'>{format}')
    size = packer.size
    return Codec(packer.pack, lambda reader: packer.unpack(reader.take(size))[0], size, 0)


U8 = Annotated[int, integer('B')]
U16 = Annotated[int, integer('H')]
U32 = Annotated[int, integer('I')]
U64 = Annotated[int, integer('Q')]
I16 = Annotated[int, integer('h')]
I64 = Annotated[int, integer('q')]


# -- text and bytes


def string(value: str) -> bytes:
    try:
        data = value.encode()
    except UnicodeEncodeError:
        raise ArgumentError(f'{clip(value)} is not valid Unicode') from None
    if len(data) > STRING_MAX:
        raise ArgumentError(f'{clip(value)} is longer than {STRING_MAX} bytes')
    return len(data).to_bytes(2) + data


def reference(value: str, what: str) -> bytes:
    """Encode a string that the broker limits to 255 bytes."""
    data = string(value)
    if len(data) - 2 > NAME_MAX:
        raise ArgumentError(f'{what} {clip(value)} is longer than {NAME_MAX} bytes')
    return data


def clip(value: str) -> str:
    return repr(value if len(value) <= 32 else value[:29] + '...')


def text(encode: Callable[[str], bytes]) -> Codec[str]:
    return Codec(encode, lambda reader: reader.string(), 2, '')


def read_bytes(reader: Reader) -> bytes:
    n = reader.u32()
    return b'' if n == NULL_BYTES else reader.take(n)


String = Annotated[str, text(string)]
PublisherName = Annotated[str, text(lambda value: reference(value, 'publisher name'))]
OffsetReference = Annotated[str, text(lambda value: reference(value, 'offset reference'))]
Bytes = Annotated[
    bytes, Codec[bytes](lambda value: struct.pack('>I', len(value)) + value, read_bytes, 4, b'')
]
SHORT = Codec[bytes](
    lambda value: struct.pack('>H', len(value)) + value,
    lambda reader: reader.take(reader.u16()),
    2,
    b'',
)
# The remaining bytes of the frame.
Rest = Annotated[bytes, Codec[bytes](bytes, lambda reader: reader.take(reader.left), 0, b'')]

MAP = codec_of(dict[String, String])
string_map: Callable[[Mapping[str, str]], bytes] = MAP.encode
LastMap = Annotated[Mapping[str, str], optional(MAP, dict)]
# As RabbitMQ encodes it; the protocol's specification says 4 bytes for the length.
Challenge = Annotated[bytes | None, optional(SHORT, lambda: None)]


# -- where to start

NO_OFFSET = b'\0\0'


def offset_spec(offset: Offset | None) -> bytes:
    if offset is None:
        return NO_OFFSET
    if offset.type == OffsetType.OFFSET:
        return struct.pack('>HQ', offset.type, offset.value)
    if offset.type == OffsetType.TIMESTAMP:
        assert isinstance(offset.value, int | float)
        return struct.pack('>Hq', offset.type, round(offset.value * 1000))
    return struct.pack('>H', offset.type)


def read_offset(reader: Reader) -> Offset:
    code = reader.u16()
    if code == OffsetType.OFFSET:
        return Offset.offset(int.from_bytes(reader.take(8), 'big'))
    if code == OffsetType.TIMESTAMP:
        milliseconds = int.from_bytes(reader.take(8), 'big', signed=True)
        return Offset.timestamp(max(-TIME_MAX, min(milliseconds, TIME_MAX)) / 1000)
    if OffsetType.FIRST <= code <= OffsetType.NEXT:
        return Offset(OffsetType(code))
    raise FrameError(f'unknown offset type {code}')


def read_any_offset(reader: Reader) -> Offset | None:
    if reader.data[reader.at : reader.at + 2] == NO_OFFSET:
        reader.u16()
        return None
    return read_offset(reader)


OffsetSpec = Annotated[Offset, Codec(offset_spec, read_offset, 2, Offset.offset(0))]
AnyOffsetSpec = Annotated[Offset | None, Codec(offset_spec, read_any_offset, 2, None)]
