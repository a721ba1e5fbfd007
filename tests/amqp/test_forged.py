"""Values that constructors would refuse, and values that grow: errors of the family, no crash."""

from typing import Any

import pytest

from rbfly.amqp import DataBody, SequenceBody, decode_amqp, encode_amqp_bytes
from rbfly.error import AMQPDecoderError, AMQPEncoderError
from rbfly.types import AMQPArray, Decimal32, Decimal64, Decimal128, Int, UByte


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
def test_value_that_has_no_form(value: Any) -> None:
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


def test_decimal_is_no_message_id() -> None:
    with pytest.raises(AMQPDecoderError):
        _ = decode_amqp(bytes.fromhex('005373c006017400000000005375a000')).properties


@pytest.mark.parametrize('double', [lambda a: [a, a], lambda a: {'a': a, 'b': a}])
def test_shared_values_do_not_double_without_bound(double: Any) -> None:
    value: Any = b'x' * 1000
    for _ in range(60):
        value = double(value)
    with pytest.raises(AMQPEncoderError, match='MiB'):
        encode_amqp_bytes(value)


@pytest.mark.parametrize('tail', [b'\x00', b'\x00\x53', b'\x00\x53\x75', b'\x00\x53\x75\xb0\x00'])
def test_view_of_bytes_that_change_under_it(tail: bytes) -> None:
    data = bytearray(encode_amqp_bytes(b'0123456789'))
    ctx = decode_amqp(memoryview(data).toreadonly())
    data[:] = b'\xb0' * (len(data) - len(tail)) + tail
    try:
        view = ctx.body_view()
    except AMQPDecoderError:
        return
    assert len(view) <= len(data)
