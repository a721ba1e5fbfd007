"""Objects that bypass constructors, grow, or lie raise encoder errors and never crash."""

import subprocess
import sys
from collections import UserDict
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, timezone
from typing import Any
from uuid import UUID

import pytest

from rbfly.amqp import (
    AMQPProperties,
    DataBody,
    MessageCtx,
    SequenceBody,
    decode_amqp,
    encode_amqp,
    encode_amqp_bytes,
    stream_message_ctx,
)
from rbfly.error import AMQPDecoderError, AMQPEncoderError, AMQPEncoderTypeError
from rbfly.types import (
    AMQPArray,
    Decimal32,
    Decimal64,
    Decimal128,
    Float32,
    Int,
    Timestamp,
    UByte,
)


@pytest.mark.parametrize(('kind', 'size'), [(Decimal32, 4), (Decimal64, 8), (Decimal128, 16)])
def test_decimal_body_is_a_value(kind: type[Any], size: int) -> None:
    value = kind(bytes(range(size)))
    body = decode_amqp(encode_amqp_bytes(value)).body
    assert type(body) is type(value)
    assert body == value


@pytest.mark.parametrize(
    'value',
    [
        int.__new__(Int, 2**200),
        int.__new__(Int, 2**40),
        int.__new__(UByte, 256),
        int.__new__(UByte, -1),
        AMQPArray.__new__(AMQPArray),
        bytes.__new__(Decimal32, b'x' * 1000),
        {(1, 2): 3},
        {frozenset(): 1},
    ],
    ids=lambda value: type(value).__name__,
)
def test_value_without_wire_type(value: Any) -> None:
    for body in (value, [value], {'key': value}):
        with pytest.raises(AMQPEncoderError):
            encode_amqp_bytes(body)


@pytest.mark.parametrize(
    ('body', 'name'), [(DataBody([b'a']), 'sections'), (SequenceBody([[1]]), 'lengths')]
)
def test_sections_cannot_be_replaced(body: Any, name: str) -> None:
    before = encode_amqp_bytes(body)
    with pytest.raises(AttributeError):
        setattr(body, name, None)
    assert encode_amqp_bytes(body) == before


def test_decimal_is_not_a_message_id() -> None:
    with pytest.raises(AMQPEncoderTypeError):
        AMQPProperties(message_id=Decimal32(bytes(4)))


@pytest.mark.long
@pytest.mark.parametrize('double', [lambda a: [a, a], lambda a: {'a': a, 'b': a}])
def test_shared_values_do_not_grow_without_bound(double: Any) -> None:
    value: Any = b'x' * 1000
    for _ in range(60):
        value = double(value)
    with pytest.raises(AMQPEncoderError, match='MiB'):
        encode_amqp_bytes(value)


@pytest.mark.parametrize('tail', [b'\x00', b'\x00\x53', b'\x00\x53\x75', b'\x00\x53\x75\xb0\x00'])
def test_view_of_changing_bytes(tail: bytes) -> None:
    data = bytearray(encode_amqp_bytes(b'0123456789'))
    ctx = decode_amqp(memoryview(data).toreadonly())
    data[:] = b'\xb0' * (len(data) - len(tail)) + tail
    try:
        view = ctx.body_view()
    except AMQPDecoderError:
        return
    assert len(view) <= len(data)


# --- contexts that change during decoding ---


def test_context_initialized_again_during_decoding(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hashing a UUID runs Python code; the decoder must keep the bytes alive meanwhile."""
    pairs = {UUID(int=i): i for i in range(300)}
    data = encode_amqp_bytes(stream_message_ctx([pairs], app_properties={'k': pairs}))
    plain_hash = UUID.__hash__
    ctx = decode_amqp(bytearray(data))

    def forget(value: UUID) -> int:
        ctx.__init__('new')
        return plain_hash(value)

    monkeypatch.setattr(UUID, '__hash__', forget)
    assert ctx.body == 'new'
    ctx = decode_amqp(bytearray(data))
    decoded = ctx.app_properties['k']
    monkeypatch.undo()
    assert decoded == pairs


DEEP = """
from rbfly.amqp import encode_amqp_bytes
from rbfly.error import AMQPEncoderError
from rbfly.types import Described

value = None
for _ in range(10**6):
    value = Described(1, value)
try:
    encode_amqp_bytes(value)
except AMQPEncoderError:
    del value
    print('freed')
"""


@pytest.mark.long
def test_a_million_nested_described_are_freed() -> None:
    # in a subprocess, since a stack overflow would kill this one
    result = subprocess.run([sys.executable, '-c', DEEP], capture_output=True, text=True)
    assert result.stdout == 'freed\n', result.stderr


# --- values whose code raises or lies ---


def fail(*_: Any) -> Any:
    raise ZeroDivisionError


class EvilClass:
    __class__ = property(fail)


class EvilMeta(type):
    __mro__ = property(fail)


class EvilOrder(metaclass=EvilMeta):
    pass


class EvilFloat(float):
    __float__ = fail


class EvilInt(int):
    __le__ = __ge__ = fail


class NoSize(UserDict[str, int]):
    __len__ = fail


class OffsetBy(datetime):
    offset: Any

    def utcoffset(self) -> Any:
        return self.offset


class NoZone(datetime):
    tzinfo = property(fail)


def offset_by(offset: Any) -> OffsetBy:
    value = OffsetBy(2020, 1, 1, tzinfo=UTC)
    value.offset = offset
    return value


class NoBytes(tuple[int, ...]):
    __class__ = Decimal128  # type: ignore[assignment]


def test_lying_class_does_not_expose_memory() -> None:
    with pytest.raises(AMQPEncoderTypeError, match='in an array of Decimal128'):
        encode_amqp_bytes(AMQPArray(Decimal128, [NoBytes(range(16))]))


def test_longest_offsets() -> None:
    for micros in (-86_399_999_999, 86_399_999_999):
        offset = timedelta(microseconds=micros)
        assert encode_amqp_bytes(offset_by(offset)) == encode_amqp_bytes(
            datetime(2020, 1, 1) - offset
        )


def test_datetime_uses_its_original_timezone() -> None:
    zone = timezone(timedelta(hours=2))
    assert encode_amqp_bytes(NoZone(2020, 1, 1, tzinfo=zone)) == encode_amqp_bytes(
        datetime(2020, 1, 1, tzinfo=zone)
    )


@pytest.mark.parametrize(
    'make',
    [
        EvilClass,
        EvilOrder,
        lambda: AMQPArray(Float32, [EvilFloat(1)]),
        lambda: AMQPArray(int, [EvilInt(1)]),
        lambda: AMQPArray(AMQPArray, [AMQPArray.__new__(AMQPArray)]),
        lambda: offset_by(timedelta(days=999999999)),
        lambda: offset_by(7),
        lambda: offset_by(timedelta(days=1)),
        lambda: offset_by(timedelta(days=-1)),
        lambda: offset_by(timedelta(days=-1, microseconds=-1)),
        lambda: offset_by(timedelta(days=-5, microseconds=5)),
    ],
    ids=[
        'class',
        'order',
        'float',
        'int',
        'array',
        'datetime',
        'no offset',
        'day',
        'minus a day',
        'more',
        'five days',
    ],
)
def test_errors_of_values_become_encoder_errors(make: Any) -> None:
    value = make()
    for body in (value, [value], {'key': value}):
        with pytest.raises(AMQPEncoderError):
            encode_amqp_bytes(body)
        with pytest.raises(AMQPEncoderError):
            encode_amqp(bytearray(1000), stream_message_ctx(body))


@pytest.mark.parametrize(
    'section',
    [
        {'properties': AMQPProperties.__new__(AMQPProperties)},
        {'properties': AMQPProperties(creation_time=int.__new__(Timestamp, 2**70))},
    ],
    ids=['properties', 'time'],
)
def test_errors_of_sections_become_encoder_errors(section: Any) -> None:
    with pytest.raises(AMQPEncoderError):
        encode_amqp_bytes(stream_message_ctx(1, **section))


def test_interrupt_propagates() -> None:
    class Interrupted(UserDict[str, int]):
        def __getitem__(self, key: str) -> int:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        encode_amqp_bytes([Interrupted(a=1)])


@pytest.mark.parametrize('name', ['annotations', 'app_properties', 'footer'])
def test_mapping_that_claims_to_be_empty(name: str) -> None:
    class Denying(UserDict[str, int]):
        def __bool__(self) -> bool:
            return False

    for mapping in (Denying({'x-a': 1}), NoSize({'x-a': 1})):
        sections: Any = {name: mapping}
        ctx = stream_message_ctx(1, **sections)
        assert list(getattr(decode_amqp(encode_amqp_bytes(ctx)), name).values()) == [1]


def test_huge_sequence_is_refused() -> None:
    with pytest.raises(AMQPEncoderError, match='items'):
        encode_amqp_bytes(range(10**15))


# --- bodies made of sections ---


class OwnData(DataBody):
    def __new__(cls, value: bytes) -> 'OwnData':
        return bytes.__new__(cls, value)


class OwnSequence(SequenceBody):
    def __init__(self, items: list[Any]) -> None:
        list.__init__(self, items)


def test_body_subclass_with_its_own_constructor() -> None:
    assert encode_amqp_bytes(OwnData(b'ab')) == encode_amqp_bytes(b'ab')
    assert encode_amqp_bytes(OwnSequence([1])) == encode_amqp_bytes(SequenceBody([[1]]))


@pytest.mark.parametrize('sections', [b'ab', [5], ['a'], [None]])
def test_data_sections_must_be_bytes(sections: Any) -> None:
    # bytes(5) would be five zeros, as would each byte of b'ab'
    with pytest.raises(AMQPEncoderTypeError, match='a data section must be bytes'):
        DataBody(sections)


@pytest.mark.parametrize('length', [1, 13])
def test_properties_from_a_list_whose_length_is_wrong(length: int) -> None:
    class Fields(list[object]):
        def __iter__(self) -> Iterator[object]:
            return iter(())

    assert AMQPProperties(Fields([None] * length)) == AMQPProperties()


def test_context_whose_section_is_replaced_while_the_old_one_is_freed() -> None:
    class Section(dict[str, int]):
        def __del__(self) -> None:
            context.__init__(b'new')

    context = MessageCtx(b'old', annotations=Section(a=1))
    context.annotations = {'b': 2}
    assert context.body == b'new'
    context.annotations = {'c': 3}
    assert context.annotations == {'c': 3}
