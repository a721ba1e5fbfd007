"""Messages that other clients write against the specification can be read."""

import copy
import pickle
from typing import Any
from uuid import UUID

import pytest

from rbfly.amqp import (
    AMQPHeader,
    AMQPProperties,
    DataBody,
    MessageCtx,
    SequenceBody,
    decode_amqp,
    encode_amqp_bytes,
    stream_message_ctx,
)
from rbfly.error import AMQPDecoderError
from rbfly.types import AMQPArray, Symbol

BODY = '005375a00162'
PROPERTIES = '005373c00401a10169'
APP_PROPERTIES = '005374c10602a1016b5401'
DELIVERY = '005371c10d02a307782d6f70742d61a10176'
NOT_UTF8 = b'\xff\xfe'
# A message with a boolean of 2 in its application properties: they, or its body, are undecodable.
BAD_SECTION = '005374c10602a1016b5602' + BODY
BAD_BODY = APP_PROPERTIES + '0053775602'


def read(data: str) -> Any:
    """Untyped: fields have types that the API does not promise."""
    return decode_amqp(bytes.fromhex(data))


def properties(*fields: bytes) -> Any:
    """Properties that begin with these encoded fields."""
    value = b''.join(fields)
    head = bytes((0, 0x53, 0x73, 0xC0, len(value) + 1, len(fields)))
    return decode_amqp(head + value).properties


# -- structure


@pytest.mark.parametrize(
    ('data', 'expected'),
    [
        # no body
        ('', MessageCtx(None)),
        (APP_PROPERTIES, MessageCtx(None, app_properties={'k': 1})),
        ('005378c10602a301785401', MessageCtx(None, footer={'x': 1})),
        # any order
        (BODY + DELIVERY, MessageCtx(b'b', delivery_annotations={'x-opt-a': 'v'})),
        (BODY + PROPERTIES, MessageCtx(b'b', properties=AMQPProperties(message_id='i'))),
        (
            APP_PROPERTIES + PROPERTIES + BODY,
            MessageCtx(b'b', properties=AMQPProperties(message_id='i'), app_properties={'k': 1}),
        ),
        # null
        ('00537540', MessageCtx(None)),
        ('00537640', MessageCtx(None)),
        ('00537540' + BODY, MessageCtx(b'b')),
        ('005374400053714000537040' + BODY, MessageCtx(b'b')),
        # twice: the last one counts, but data and sequences are one body
        (
            '005373c00401a10168' + PROPERTIES + BODY,
            MessageCtx(b'b', properties=AMQPProperties(message_id='i')),
        ),
        ('00537754010053775402', MessageCtx(2)),
        (BODY + APP_PROPERTIES + BODY, MessageCtx(DataBody([b'b', b'b']), app_properties={'k': 1})),
        ('005376c0030154010053764500537640', MessageCtx(SequenceBody([[1], []]))),
        # several kinds of body: the first one counts
        (BODY + '0053775401', MessageCtx(b'b')),
        # text in a data section, single items in sequence sections
        ('005375a10162', MessageCtx('b')),
        ('005375a10162' + BODY, MessageCtx(DataBody([b'b', b'b']))),
        ('00537654010053765402', MessageCtx(SequenceBody([[1], [2]]))),
    ],
)
def test_structure(data: str, expected: MessageCtx) -> None:
    ctx = read(data)
    expected = decode_amqp(encode_amqp_bytes(expected))  # a str key becomes a Symbol
    assert ctx == expected
    assert type(ctx.body) is type(expected.body)
    if isinstance(ctx.body, DataBody | SequenceBody):
        assert ctx.body.sections == expected.body.sections
    assert encode_amqp_bytes(ctx) == bytes.fromhex(data)
    assert ctx.raw == bytes.fromhex(data)


def test_view_of_a_body_that_is_followed_by_other_sections() -> None:
    assert read(BODY + DELIVERY).body_view() == b'b'
    assert read(BODY + DELIVERY + BODY).body_view() == b'bb'
    with pytest.raises(TypeError):
        read('005375a10162').body_view()
    with pytest.raises(TypeError):
        read(DELIVERY).body_view()


def test_keys_of_the_other_string_type() -> None:
    assert read('005374c10602a3016b5401' + BODY).app_properties == {'k': 1}
    assert read('005372c10602a1016b5401' + BODY).annotations == {Symbol('k'): 1}
    assert read(BODY + '005378c10602a101785401').footer == {Symbol('x'): 1}
    # other keys stay as they are
    assert read('005374c105025401' + '5402' + BODY).app_properties == {1: 2}
    assert read('005374c10602a101ff5401' + BODY).app_properties == {b'\xff': 1}
    assert read('005372c1050254ff5402' + BODY).annotations == {-1: 2}


# -- fields


def test_one_odd_property_hides_no_other() -> None:
    found = properties(b'\xa1\x01i', b'\x40', b'\x40', b'\x40', b'\x40', b'\xa1\x02' + NOT_UTF8)
    assert found.message_id == 'i'
    assert found.correlation_id == NOT_UTF8


def test_properties_of_other_types() -> None:
    text = 'text/zażółć'.encode()
    found = properties(
        b'\x54\xfb',  # message_id: -5
        b'\xa1\x01u',  # user_id: a string
        b'\xa3\x01t',  # to: a symbol
        b'\x54\x05',  # subject: an int
        b'\x40',
        b'\x41',  # correlation_id: true
        b'\xa3' + bytes([len(text)]) + text,
        b'\xa3\x02' + NOT_UTF8,
        b'\xa1\x01x',  # absolute_expiry_time: a string
        b'\x40',
        b'\x45',  # group_id: a list
        b'\x54\xff',  # group_sequence: -1
        b'\x40',
        b'\xa1\x01y',  # one field too many
    )
    assert found.message_id == -5
    assert found.user_id == 'u'
    assert found.to == Symbol('t')
    assert found.subject == 5
    assert found.correlation_id is True
    assert str(found.content_type) == 'text/zażółć'
    assert type(found.content_encoding) is Symbol
    assert found.absolute_expiry_time == 'x'
    assert found.group_id == []
    assert found.group_sequence == -1
    assert pickle.loads(pickle.dumps(found)) == found
    repr(found)
    # a program can send a received section in another message
    again = decode_amqp(encode_amqp_bytes(stream_message_ctx('x', properties=found)))
    assert again.properties == found


def test_header_of_other_types() -> None:
    ctx = read('005370c00f06' + '5401' + '71000001ff' + '54ff' + '40' + 'a10161' + '40' + BODY)
    found = ctx.header
    assert (found.durable, found.priority, found.ttl) == (1, 511, -1)
    assert (found.first_acquirer, found.delivery_count) == (False, 'a')
    assert pickle.loads(pickle.dumps(found)) == found
    again = decode_amqp(encode_amqp_bytes(stream_message_ctx('x', header=found)))
    assert again.header == found


def test_text_that_is_not_utf8() -> None:
    assert read('005377a102fffe').body == NOT_UTF8
    assert read('005377b100000002fffe').body == NOT_UTF8
    assert read('005377c10802a101ffa102fffe').body == {b'\xff': NOT_UTF8}
    for data in ('005377a302fffe', '005377a302c3a9', '005377a3' + '28' + 'ff' * 40):
        odd = read(data).body
        assert type(odd) is Symbol
        assert hash(odd) == hash(read(data).body)
        assert pickle.loads(pickle.dumps(odd)) == odd
        repr(odd)
        # encoded from a list: the same bytes
        assert bytes.fromhex(data)[3:] in encode_amqp_bytes([odd])


def test_arrays_of_odd_text() -> None:
    strings = read('005377' + 'f0' + '0000000b' + '00000001' + 'b1' + '00000002fffe').body
    assert strings == AMQPArray(str, [NOT_UTF8])
    assert decode_amqp(encode_amqp_bytes(strings)).body == strings
    symbols = read('005377' + 'f0' + '0000000b' + '00000001' + 'b3' + '00000002fffe').body
    assert decode_amqp(encode_amqp_bytes(symbols)).body == symbols


@pytest.mark.parametrize('data', ['e00100', 'f000000004' + '00000000'])
def test_empty_array_without_constructor(data: str) -> None:
    assert read('005377' + data).body == AMQPArray(type(None))
    inside = bytes.fromhex('005377c0') + bytes([len(data) // 2 + 3, 2]) + bytes.fromhex(data)
    assert decode_amqp(inside + b'\x54\x01').body == [AMQPArray(type(None)), 1]


def test_array_of_booleans_by_pyamqp() -> None:
    assert list(read('005377e005035601' + '4241').body) == [True, False, True]


# -- contexts


@pytest.mark.parametrize('data', [BAD_SECTION, BAD_BODY])
def test_undecodable_parts_hide_no_other(data: str) -> None:
    bad, good = ('app_properties', 'body') if data == BAD_SECTION else ('body', 'app_properties')
    ctx = read(data)
    for _ in range(2):
        with pytest.raises(AMQPDecoderError):
            getattr(ctx, bad)
    assert getattr(ctx, good) == (b'b' if good == 'body' else {'k': 1})
    assert 'Message(' in repr(ctx)
    for other in (copy.copy(ctx), copy.deepcopy(ctx), pickle.loads(pickle.dumps(ctx)), read(data)):
        assert other == ctx
        assert encode_amqp_bytes(other) == bytes.fromhex(data)
        with pytest.raises(AMQPDecoderError):
            getattr(other, bad)
    assert ctx != read(BODY)
    changed = read(data)
    setattr(changed, bad, {'k': 2})
    assert changed != ctx
    assert getattr(decode_amqp(encode_amqp_bytes(changed)), bad) == {'k': 2}


# Not our form: wide sizes, a header of defaults, an empty map, an int as long.
FOREIGN_MESSAGE = (
    '00537045'
    + '005372d10000000400000000'
    + '00537345'
    + '005374d10000000900000002a1016b5501'
    + '005377d10000000900000002a1016b5501'
)


def read_all(ctx: MessageCtx) -> None:
    """Also read the sections and bodies that a program can change in place."""
    repr(ctx)
    _ = ctx.header, ctx.properties, ctx.footer, ctx.delivery_annotations, ctx.annotations


def test_unchanged_message_is_sent_on_as_its_bytes() -> None:
    data = bytes.fromhex(FOREIGN_MESSAGE)
    ctx = decode_amqp(data)
    assert encode_amqp_bytes(ctx) == data
    assert ctx.body == {'k': 1}
    read_all(ctx)
    assert encode_amqp_bytes(ctx) == data
    for other in (copy.copy(ctx), copy.deepcopy(ctx), pickle.loads(pickle.dumps(ctx))):
        assert encode_amqp_bytes(other) == data
    # the ids of a message are not in its bytes
    ctx.stream_publish_id = 5
    assert encode_amqp_bytes(ctx) == data


def test_read_message_that_cannot_be_encoded_is_sent_on_as_its_bytes() -> None:
    """An application property has a symbol as key, which is not UTF-8."""
    data = '005374c10802a302fffea10161' + BODY
    ctx = read(data)
    read_all(ctx)
    assert ctx.app_properties == {'\udcff\udcfe': 'a'}
    for other in (ctx, copy.copy(ctx), pickle.loads(pickle.dumps(ctx))):
        assert encode_amqp_bytes(other).hex() == data


@pytest.mark.parametrize('value', [True, 1.0, [1], {'k': 2}, 'x'])
def test_changed_values_are_sent(value: Any) -> None:
    """Equality does not show a change from 1 to True."""
    for change in ('body', 'app_properties', 'footer'):
        ctx = decode_amqp(bytes.fromhex(FOREIGN_MESSAGE))
        getattr(ctx, change)['k'] = value
        for other in (ctx, copy.copy(ctx), pickle.loads(pickle.dumps(ctx))):
            found = getattr(decode_amqp(encode_amqp_bytes(other)), change)
            assert list(found.values()) == [value]
            assert type(next(iter(found.values()))) is type(value)


def test_changed_message_keeps_its_other_sections() -> None:
    section = '005374c10602a101ff5401'
    ctx = read('005372c1050254ff5402' + section + BODY)
    ctx.body = 'new'
    read_all(ctx)
    assert encode_amqp_bytes(ctx).hex() == '005372c1050254ff5402' + section + '005377a1036e6577'
    ctx.app_properties = {'a': 1}
    ctx.annotations = None
    assert encode_amqp_bytes(ctx).hex() == '005374c10602a101615401' + '005377a1036e6577'


def test_replaced_by_an_equal_section() -> None:
    ctx = read(APP_PROPERTIES + BODY)
    for other in (ctx, copy.copy(ctx)):
        other.app_properties = {}
        assert encode_amqp_bytes(other).hex() == BODY
        assert encode_amqp_bytes(copy.copy(other)).hex() == BODY
        other.header = AMQPHeader(durable=True)
        assert encode_amqp_bytes(copy.copy(other)).hex() == '005370c0020141' + BODY


def test_copy_keeps_the_bytes_of_its_message_only() -> None:
    chunk = memoryview(b'x' * 1000 + bytes.fromhex(APP_PROPERTIES + BODY))[1000:]
    ctx: Any = decode_amqp(chunk)
    other: Any = copy.copy(ctx)
    assert len(ctx.raw.obj) > 1000
    assert len(other.raw.obj) == len(chunk)
    assert other.app_properties == {'k': 1}


def test_uuid_as_text() -> None:
    """What RabbitMQ makes of an AMQP 0.9.1 correlation id that is a UUID's 16 bytes."""
    value = UUID('ffeeddcc-bbaa-9988-7766-554433221100').bytes
    found = properties(*[b'\x40'] * 5, b'\xa1\x10' + value)
    assert found.correlation_id == value
