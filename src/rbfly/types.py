"""Types of values that AMQP 1.0 messages consist of: aliases for type checkers, and classes for the
AMQP types that Python lacks.

A `datetime` is sent as an AMQP timestamp, which counts milliseconds from 1970 in UTC.  RbFly treats
a naive one, without `tzinfo`, as UTC, not as local time.  It rounds microseconds down to
milliseconds, also before 1970.  A subscription returns an aware `datetime` in UTC.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, TypeAlias
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

# bool and the integer classes are int, Float32 is float, Char is str, Decimal* are bytes.
AMQPScalar: TypeAlias = (
    int | float | str | bytes | bytearray | memoryview | Symbol | datetime | UUID | None
)
"""A value that holds no other ones."""

AMQPBody: TypeAlias = (
    AMQPScalar | Described | AMQPArray | Sequence['AMQPBody'] | Mapping[Any, 'AMQPBody']
)
"""Any AMQP value, and the body of a message."""

AMQPSequence: TypeAlias = Sequence[AMQPBody]
AMQPMap: TypeAlias = Mapping[Any, AMQPBody]
AMQPAppProperties: TypeAlias = dict[str, AMQPScalar]
"""As the specification has them; other values are written too, see `stream_message_ctx`."""

AMQPAnnotations: TypeAlias = dict[Symbol | str | int, AMQPBody]
AMQPMessageId: TypeAlias = int | UUID | bytes | str
