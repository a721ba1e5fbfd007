"""Golden vectors from an independent encoder, verified with RabbitMQ and Qpid Proton."""

import contextlib
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import pytest
from amqp_values import (
    MALFORMED,
    MESSAGES,
    REFUSED,
    SECTIONS,
    VALUE,
    VALUES,
    VECTORS,
    decode_value,
    encode_value,
    python_value,
    vector_name,
)

from rbfly.amqp import (
    AMQPHeader,
    AMQPProperties,
    DataBody,
    MessageCtx,
    decode_amqp,
    encode_amqp_bytes,
    stream_message_ctx,
)
from rbfly.error import AMQPDecoderError, AMQPEncoderTypeError
from rbfly.types import Described, Long, Symbol, Timestamp

# The vectors have the smallest array form; this codec encodes arrays with wide constructors.
WIDE_ARRAYS = {'array smallint', 'array empty symbol', 'array of list', 'array described'}


def expected_value(value: Any) -> Any:
    """Convert a vector's value to what decoding returns."""
    if isinstance(value, Timestamp):
        return datetime.fromtimestamp(int(value) / 1000, UTC)
    return value


def test_all_vectors_are_loaded() -> None:
    assert len(VECTORS) == 97
    assert len(VALUES) + len(MESSAGES) + len(MALFORMED) == 97


@pytest.mark.parametrize('vector', VALUES, ids=vector_name)
def test_value(vector: dict[str, str]) -> None:
    data = bytes.fromhex(vector['hex'])
    value = python_value(vector['python'])
    decoded = decode_value(data)
    expected = expected_value(value)
    assert decoded == expected or (decoded != decoded and expected != expected)
    if isinstance(expected, (bool, type(None), str, bytes)):
        assert type(decoded) is type(expected)

    encoded = encode_value(value)
    if 'non-canonical' in vector['note'] or vector['name'] in WIDE_ARRAYS:
        copy = decode_value(encoded)
        assert copy == decoded
    else:
        assert encoded.hex() == data.hex()
    # check the same value as a descriptor, key or item of another value
    assert decode_value(encode_value(Described(Symbol('d'), value))).value == expected or (
        decoded != decoded
    )


UUID_1 = UUID('550e8400-e29b-41d4-a716-446655440000')
FULL = AMQPProperties(
    message_id=5,
    user_id=b'guest',
    to='q',
    subject='s',
    reply_to='r',
    correlation_id=UUID_1,
    content_type=Symbol('text/plain'),
    content_encoding=Symbol('gzip'),
    absolute_expiry_time=datetime.fromtimestamp(1700000000, UTC),
    creation_time=datetime.fromtimestamp(1600000000, UTC),
    group_id='g',
    group_sequence=3,
    reply_to_group_id='rg',
)
CONTENT: dict[str, MessageCtx] = {
    'section data': stream_message_ctx(b'hi'),
    'section data, symbolic': stream_message_ctx(b'hi'),
    'section data, ulong64 descriptor': stream_message_ctx(b'hi'),
    'section amqp-value': stream_message_ctx('hi'),
    'section header short': stream_message_ctx(b'', header=AMQPHeader(durable=True)),
    'section properties': stream_message_ctx(b'', properties=FULL),
    'section application-properties': stream_message_ctx(
        b'', app_properties={'a': Long(1), 'b': True, 'n': None}
    ),
    'section message-annotations': stream_message_ctx(b'', annotations={Symbol('x-k'): 'v'}),
    'message two data + footer': stream_message_ctx(
        DataBody([b'a', b'b']), footer={Symbol('x-h'): 'y'}
    ),
    'message all sections': stream_message_ctx(
        b'hi',
        header=AMQPHeader(durable=True),
        delivery_annotations={Symbol('x-d'): Long(1)},
        annotations={Symbol('x-m'): Long(1)},
        properties=AMQPProperties(message_id='id'),
        app_properties={'k': 'v'},
        footer={Symbol('x-f'): b'z'},
    ),
    'stored AMQP 0.9.1 minimal': stream_message_ctx(
        b'hello',
        header=AMQPHeader(first_acquirer=True),
        annotations={Symbol('x-exchange'): '', Symbol('x-routing-key'): 'fs-091'},
    ),
    'stored MQTT 5': stream_message_ctx(
        b'v5 full',
        header=AMQPHeader(durable=True, first_acquirer=True),
        annotations={
            Symbol('x-h'): 'hv',
            Symbol('x-exchange'): 'amq.topic',
            Symbol('x-routing-key'): 'sensors.c',
        },
        properties=AMQPProperties(
            reply_to='/exchanges/amq.topic/resp.topic',
            correlation_id=b'\x01\x02corr',
            content_type='text/plain',
        ),
        app_properties={'k': 'v'},
    ),
    'stored AMQP 1.0 value': stream_message_ctx(
        'strval',
        header=AMQPHeader(first_acquirer=True),
        annotations={Symbol('x-exchange'): '', Symbol('x-routing-key'): 'fs-10'},
    ),
}
# Not our form: descriptors of other widths, headers with explicit defaults.
OTHER_FORM = {'section data, symbolic', 'section data, ulong64 descriptor'}
EMPTY_DATA = bytes.fromhex('005375a000')


def message_bytes(vector: dict[str, str]) -> bytes:
    """The bytes of a message; a vector that lacks a body gets an empty one."""
    data = bytes.fromhex(vector['hex'])
    return data + EMPTY_DATA if decode_amqp(data).body is None else data


def test_all_message_vectors_have_contents() -> None:
    assert {str(v['name']) for v in MESSAGES} == set(CONTENT)


@pytest.mark.parametrize('vector', MESSAGES, ids=vector_name)
def test_message(vector: dict[str, str]) -> None:
    data = message_bytes(vector)
    expected = CONTENT[vector['name']]
    ctx = decode_amqp(data)
    assert ctx == expected
    assert type(ctx.body) is type(expected.body)
    encoded = encode_amqp_bytes(expected)
    if vector['name'] in OTHER_FORM or vector['name'].startswith('stored'):
        assert decode_amqp(encoded) == expected
    else:
        assert encoded.hex() == data.hex()
    assert decode_amqp(encode_amqp_bytes(ctx)) == expected


@pytest.mark.parametrize('vector', REFUSED, ids=vector_name)
def test_malformed(vector: dict[str, str]) -> None:
    data = bytes.fromhex(vector['hex'])
    with pytest.raises(AMQPDecoderError) as info:
        _ = decode_amqp(data).body
    assert info.value.position is not None
    assert 0 <= info.value.position <= len(data)
    if not data.startswith(VALUE[:2]):
        with pytest.raises(AMQPDecoderError):
            decode_value(data)


def read_everything(data: bytes) -> object:
    ctx = decode_amqp(data)
    sections = tuple(getattr(ctx, name) for name in SECTIONS)
    # what was decoded can be encoded
    assert encode_amqp_bytes(ctx) == data
    rebuilt = stream_message_ctx(**dict(zip(SECTIONS, sections, strict=True)))
    with contextlib.suppress(AMQPEncoderTypeError):  # keys of types that only others write
        assert decode_amqp(encode_amqp_bytes(rebuilt)) == rebuilt or 'nan' in repr(ctx.body)
    return sections


def check_error(error: AMQPDecoderError, data: bytes) -> None:
    assert error.position is not None
    assert 0 <= error.position <= len(data)
    assert str(error)


def damaged(data: bytes) -> list[bytes]:
    cuts = [data[:n] for n in range(len(data))]
    flips = [
        data[:i] + bytes([data[i] ^ mask]) + data[i + 1 :]
        for i in range(len(data))
        for mask in (0xFF, 0x01, 0x80, 0x10)
    ]
    return cuts + flips


@pytest.mark.parametrize('vector', VALUES + MESSAGES, ids=vector_name)
def test_damaged(vector: dict[str, str]) -> None:
    data = bytes.fromhex(vector['hex'])
    data = message_bytes(vector) if vector in MESSAGES else VALUE + data
    read_everything(data)
    for other in damaged(data):
        try:
            read_everything(other)
        except AMQPDecoderError as ex:
            check_error(ex, other)


@pytest.mark.parametrize('vector', VALUES, ids=vector_name)
def test_truncated_data_is_never_valid(vector: dict[str, str]) -> None:
    data = VALUE + bytes.fromhex(vector['hex'])
    for n in range(1, len(data)):
        with pytest.raises(AMQPDecoderError):
            _ = decode_amqp(data[:n]).body
