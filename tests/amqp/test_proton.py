"""Compare the codec with Qpid Proton's, in both directions.

Known differences:

- Proton encodes lists, maps and arrays with 32-bit sizes, this codec in the smallest form;
- Proton encodes a Python int as long, this codec according to its range;
- Proton refuses a described descriptor; it drops what follows a described value that is nested in
  another described value;
- Proton refuses strings that are not UTF-8 and symbols that are not ASCII; this codec does not;
- Proton accepts maps with an odd count, values other than 0 and 1 for 0x56, and unlimited nesting;
  this codec refuses them;
- Proton decodes integer widths, float32 and char to classes of its own, and timestamps to int.
"""

import uuid
from datetime import UTC, datetime
from typing import Any

import proton
import pytest
from amqp_values import REFUSED, VALUES, decode_value, encode_value, outcome, vector_name
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

import rbfly.types as t
from rbfly.amqp import (
    AMQPHeader,
    AMQPProperties,
    SequenceBody,
    decode_amqp,
    encode_amqp_bytes,
)
from rbfly.amqp import stream_message_ctx as make
from tests.sizes import sized

PROTON_REFUSES = {'described nested descriptor'}

TYPES: dict[int, Any] = {
    proton.Data.NULL: type(None),
    proton.Data.BOOL: bool,
    proton.Data.UINT: t.UInt,
    proton.Data.INT: t.Int,
    proton.Data.LONG: t.Long,
    proton.Data.ULONG: t.ULong,
    proton.Data.STRING: str,
    proton.Data.SYMBOL: t.Symbol,
    proton.Data.LIST: list,
}


def proton_decode(data: bytes) -> Any:
    d = proton.Data()
    remaining = data
    while remaining:
        remaining = remaining[d.decode(remaining) :]
    d.rewind()
    assert d.next() is not None
    return from_proton(d.get_object())


def from_proton(value: Any) -> Any:
    """Convert a value decoded by Proton to what this codec would return."""
    undescribed: Any = proton.UNDESCRIBED
    match value:
        case proton.Described():
            return t.Described(from_proton(value.descriptor), from_proton(value.value))
        case proton.Array():
            descriptors = (
                () if value.descriptor is undescribed else (from_proton(value.descriptor),)
            )
            items = [from_proton(item) for item in value.elements]
            return t.AMQPArray(TYPES[value.type], items, descriptors=descriptors)
        case list():
            return [from_proton(item) for item in value]
        case dict():
            return {from_proton(k): from_proton(v) for k, v in value.items()}
        case proton.symbol():
            return t.Symbol(str(value))
        case proton.char():
            return t.Char(str(value))
        case proton.timestamp():
            return datetime.fromtimestamp(int(value) / 1000, UTC)
        case proton.decimal32():
            return t.Decimal32(int(value).to_bytes(4, 'big'))
        case proton.decimal64():
            return t.Decimal64(int(value).to_bytes(8, 'big'))
        case proton.decimal128():
            return t.Decimal128(bytes(value))
        case memoryview():
            return bytes(value)
        case bool() | None | str() | bytes() | uuid.UUID():
            return value
        case float():
            return float(value)
        case int():
            return int(value)
    raise AssertionError(type(value))


def to_proton(value: Any) -> Any:
    """Convert a value of this codec for encoding by Proton."""
    names = {
        t.UByte: proton.ubyte,
        t.UShort: proton.ushort,
        t.UInt: proton.uint,
        t.ULong: proton.ulong,
        t.Byte: proton.byte,
        t.Short: proton.short,
        t.Int: proton.int32,
        t.Float32: proton.float32,
        t.Timestamp: proton.timestamp,
    }
    if type(value) in names:
        return names[type(value)](value)
    match value:
        case t.Symbol():
            return proton.symbol(str(value))
        case t.Char():
            return proton.char(str(value))
        case datetime():
            return proton.timestamp(round(value.timestamp() * 1000))
        case t.Described():
            return proton.Described(to_proton(value.descriptor), to_proton(value.value))
        case list():
            return [to_proton(item) for item in value]
        case dict():
            return {to_proton(k): to_proton(v) for k, v in value.items()}
        case t.Long():
            return int(value)
    return value


@pytest.mark.parametrize(
    'vector', [v for v in VALUES if v['name'] not in PROTON_REFUSES], ids=vector_name
)
def test_vectors(vector: dict[str, str]) -> None:
    data = bytes.fromhex(vector['hex'])
    mine = decode_value(data)
    other = proton_decode(data)
    assert other == mine or (other != other and mine != mine)


@pytest.mark.parametrize('vector', REFUSED, ids=vector_name)
def test_malformed_values(vector: dict[str, str]) -> None:
    data = bytes.fromhex(vector['hex'])
    if data.startswith(b'\x00\x53') or not data:
        return
    assert outcome(lambda: decode_value(data)) == 'AMQPDecoderError'


scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(0, 255).map(t.UByte),
    st.integers(0, 2**16 - 1).map(t.UShort),
    st.integers(0, 2**32 - 1).map(t.UInt),
    st.integers(0, 2**64 - 1).map(t.ULong),
    st.integers(-128, 127).map(t.Byte),
    st.integers(-(2**15), 2**15 - 1).map(t.Short),
    st.integers(-(2**31), 2**31 - 1).map(t.Int),
    st.integers(-(2**63), 2**63 - 1).map(t.Long),
    st.floats(allow_nan=False),
    st.floats(width=32, allow_nan=False).map(t.Float32),
    st.text(max_size=300),
    st.binary(max_size=300),
    st.text(st.characters(min_codepoint=1, max_codepoint=127), max_size=20).map(t.Symbol),
    st.uuids(),
    st.characters(exclude_categories=['Cs']).map(t.Char),
    st.datetimes(
        min_value=datetime(1900, 1, 1), max_value=datetime(2100, 1, 1), timezones=st.just(UTC)
    ).map(lambda v: v.replace(microsecond=v.microsecond // 1000 * 1000)),
)
keys = st.text(max_size=40) | st.integers(0, 2**31 - 1).map(t.Int)
values = st.recursive(
    scalars,
    lambda inner: st.one_of(
        st.lists(inner, max_size=20),
        st.dictionaries(keys, inner, max_size=20),
        st.builds(t.Described, st.text(max_size=5), scalars),
    ),
    max_leaves=40,
)
profile = settings(max_examples=sized(50, 200), phases=[Phase.explicit, Phase.generate])


@profile
@given(values)
def test_proton_decodes_our_encoding(value: Any) -> None:
    assert proton_decode(encode_value(value)) == value


@profile
@given(values)
def test_we_decode_proton_encoding(value: Any) -> None:
    d = proton.Data()
    d.put_object(to_proton(value))
    assert decode_value(bytes(d.encode())) == value


@profile
@given(scalars)
def test_scalars_have_the_same_encoding(value: Any) -> None:
    d = proton.Data()
    d.put_object(to_proton(value))
    assert encode_value(value) == bytes(d.encode())


def test_message_encoded_by_proton() -> None:
    message = proton.Message(
        body='text',
        durable=True,
        priority=7,
        id='id',
        user_id=b'user',
        subject='subject',
        correlation_id=uuid.UUID(int=9),
        content_type='text/plain',
        properties={'a': 1, 'b': 'c'},
        annotations={proton.symbol('x-a'): 'b'},
    )
    ctx = decode_amqp(message.encode())
    assert ctx.body == 'text'
    assert ctx.header.durable is True
    assert ctx.header.priority == 7
    assert ctx.properties.message_id == 'id'
    assert ctx.properties.user_id == b'user'
    assert ctx.properties.subject == 'subject'
    assert ctx.properties.correlation_id == uuid.UUID(int=9)
    assert ctx.properties.content_type == t.Symbol('text/plain')
    assert ctx.app_properties == {'a': 1, 'b': 'c'}
    assert ctx.annotations == {t.Symbol('x-a'): 'b'}


def test_message_decoded_by_proton() -> None:
    data = encode_amqp_bytes(
        make(
            {'k': [1, None]},
            header=AMQPHeader(durable=True, priority=7, ttl=1000),
            properties=AMQPProperties(
                message_id=5, to='to', reply_to='r', creation_time=datetime(2024, 1, 2)
            ),
            app_properties={'a': 'b'},
            annotations={'x-a': 1},
        )
    )
    message = proton.Message()
    message.decode(data)
    assert message.body == {'k': [1, None]}
    assert message.durable is True
    assert message.priority == 7
    assert message.ttl == 1.0
    assert message.id == 5
    assert message.address == 'to'
    assert message.reply_to == 'r'
    assert message.creation_time == datetime(2024, 1, 2, tzinfo=UTC).timestamp()
    assert message.properties == {'a': 'b'}
    assert message.annotations == {proton.symbol('x-a'): 1}


# -- sequence body; of several sections, Proton only keeps the last


def test_sequence_body() -> None:
    data = encode_amqp_bytes(SequenceBody([[1, 'a', None]]))
    message = proton.Message()
    message.decode(data)
    assert message.body == [1, 'a', None]
    assert message.inferred
    body = decode_amqp(message.encode()).body
    assert type(body) is SequenceBody
    assert body.sections == [[1, 'a', None]]
