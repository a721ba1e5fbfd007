"""AMQP 1.0 values: type aliases, and classes for the AMQP types that Python lacks.

A `datetime` is sent as an AMQP timestamp, which counts milliseconds from 1970 in UTC.  RbFly treats
a naive one, without `tzinfo`, as UTC, not as local time.  It rounds microseconds down to
milliseconds, also before 1970.  A subscription returns an aware `datetime` in UTC.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, ClassVar, Protocol, TypeAlias
from uuid import UUID

from .amqp._types import (
    AMQPArray,
    Byte,
    Char,
    Decimal32,
    Decimal64,
    Decimal128,
    Described,
    Float32,
    Int,
    Long,
    Short,
    Symbol,
    Timestamp,
    UByte,
    UInt,
    ULong,
    UShort,
)

__all__ = [
    'AMQPAnnotations',
    'AMQPAppProperties',
    'AMQPArray',
    'AMQPBody',
    'AMQPMap',
    'AMQPMessageId',
    'AMQPRecord',
    'AMQPScalar',
    'AMQPSequence',
    'Byte',
    'Char',
    'Decimal32',
    'Decimal64',
    'Decimal128',
    'Described',
    'Float32',
    'Int',
    'Long',
    'Short',
    'Symbol',
    'Timestamp',
    'UByte',
    'UInt',
    'ULong',
    'UShort',
]

# Includes subclasses: bool and the integer classes, Float32, Char, and Decimal* of bytes.
AMQPScalar: TypeAlias = (
    int | float | str | bytes | bytearray | memoryview | Symbol | datetime | UUID | None
)
"""A value that contains no other values."""


class Dataclass(Protocol):
    """An instance of a dataclass."""

    __dataclass_fields__: ClassVar[dict[str, Any]]


class Struct(Protocol):
    """A Struct of msgspec."""

    __struct_fields__: ClassVar[tuple[str, ...]]


class Model(Protocol):
    """A model of pydantic."""

    __pydantic_fields__: ClassVar[dict[str, Any]]


AMQPRecord: TypeAlias = Dataclass | Struct | Model
"""An object with fields, which is sent as a map, see :doc:`/guides/types`."""

AMQPBody: TypeAlias = (
    AMQPScalar | Described | AMQPArray | Sequence[Any] | Mapping[Any, Any] | AMQPRecord
)
"""Any AMQP value, or an object with fields; also the type of a message body to send.  Type checkers
do not check the values in a sequence or mapping: sending one that AMQP 1.0 has no type for raises
:class:`~rbfly.error.AMQPEncoderError`."""

AMQPSequence: TypeAlias = Sequence[Any]
AMQPMap: TypeAlias = Mapping[Any, Any]
AMQPAppProperties: TypeAlias = dict[str, AMQPScalar]
"""Application properties as the specification allows them; RbFly also encodes other values, see
`stream_message_ctx`."""

AMQPAnnotations: TypeAlias = dict[Symbol | str | int, AMQPBody]
AMQPMessageId: TypeAlias = int | UUID | bytes | str
