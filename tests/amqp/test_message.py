"""Messages: sections, contexts, the public functions, and compatibility with earlier RbFly."""

import contextlib
import copy
import gc
import inspect
import pickle
import sys
from datetime import UTC, datetime
from enum import Enum
from functools import partial
from typing import Any
from uuid import UUID

import pytest
from amqp_values import SECTIONS

import rbfly.amqp
import rbfly.streams as rbs
import rbfly.types
from rbfly.amqp import (
    AMQPHeader,
    AMQPProperties,
    DataBody,
    Message,
    MessageCtx,
    SequenceBody,
    decode_amqp,
    encode_amqp,
    encode_amqp_bytes,
    get_message_ctx,
    set_message_ctx,
    stream_message_ctx,
)
from rbfly.error import (
    AMQPDecoderError,
    AMQPEncoderError,
    AMQPEncoderOverflowError,
    AMQPEncoderTypeError,
    AMQPEncoderValueError,
    RbFlyBufferError,
)
from rbfly.types import AMQPArray, Char, Described, Int, Symbol, Timestamp, ULong

NOW = datetime(2024, 5, 6, 7, 8, 9, 123000, tzinfo=UTC)


def full_message() -> MessageCtx:
    return stream_message_ctx(
        {'a': [1, None]},
        publish_id=7,
        header=AMQPHeader(durable=True, priority=9, ttl=1000, delivery_count=3),
        delivery_annotations={Symbol('x-d'): 1},
        annotations={Symbol('x-m'): [1, 'a'], Symbol('x-n'): None},
        properties=AMQPProperties(message_id=UUID(int=5), subject='s', creation_time=NOW),
        app_properties={'k': 'v', 'n': 1},
        footer={Symbol('x-f'): b'z'},
    )


def round_trip(message: Any) -> MessageCtx:
    return decode_amqp(encode_amqp_bytes(message))


# --- sections ---


def test_round_trip_of_all_sections() -> None:
    ctx = full_message()
    other = round_trip(ctx)
    assert other.body == ctx.body
    assert other.header == ctx.header
    assert other.delivery_annotations == ctx.delivery_annotations
    assert other.annotations == ctx.annotations
    assert other.properties == ctx.properties
    assert other.app_properties == ctx.app_properties
    assert other.footer == ctx.footer
    assert other.stream_publish_id == 0
    assert not other.is_set_stream_publish_id
    assert round_trip(other) == other


@pytest.mark.parametrize('name', SECTIONS)
def test_one_section_set_later(name: str) -> None:
    full = full_message()
    ctx = stream_message_ctx(b'')
    setattr(ctx, name, getattr(full, name))
    assert getattr(round_trip(ctx), name) == getattr(full, name)
    received = round_trip(b'')
    setattr(received, name, getattr(full, name))
    assert getattr(round_trip(received), name) == getattr(full, name)
    received = round_trip(full)
    setattr(received, name, None)
    assert not getattr(round_trip(received), name) or name in ('header', 'properties')
    if name in ('header', 'properties'):
        assert getattr(round_trip(received), name) in (AMQPHeader(), AMQPProperties())


def test_mutated_section_is_encoded() -> None:
    ctx = stream_message_ctx(b'x')
    ctx.app_properties['a'] = 1
    ctx.annotations[Symbol('x-a')] = 2
    ctx.footer[Symbol('x-b')] = 3
    ctx.delivery_annotations[Symbol('x-c')] = 4
    other = round_trip(ctx)
    assert other.app_properties == {'a': 1}
    assert other.annotations == {Symbol('x-a'): 2}
    assert other.footer == {Symbol('x-b'): 3}
    assert other.delivery_annotations == {Symbol('x-c'): 4}
    other.app_properties['b'] = 2
    assert round_trip(other).app_properties == {'a': 1, 'b': 2}


def test_dicts_are_not_shared() -> None:
    first = stream_message_ctx(b'a')
    first.app_properties['leak'] = 1
    assert stream_message_ctx(b'b').app_properties == {}
    assert stream_message_ctx(b'b').annotations is not stream_message_ctx(b'b').annotations
    mine = {'a': 1}
    assert stream_message_ctx(b'', app_properties=mine).app_properties is mine


def test_empty_sections_are_not_encoded() -> None:
    ctx = MessageCtx(b'x', AMQPHeader(), {}, {}, AMQPProperties(), {}, {})
    assert encode_amqp_bytes(ctx).hex() == '005375a00178'
    assert ctx.header == AMQPHeader()
    assert ctx.properties == AMQPProperties()


@pytest.mark.parametrize(
    ('header', 'data'),
    [
        (AMQPHeader(durable=True), 'c0020141'),
        (AMQPHeader(priority=0), 'c00402405000'),
        (AMQPHeader(ttl=0), 'c00403404043'),
        (AMQPHeader(ttl=300), 'c0080340407' + '00000012c'),
        (AMQPHeader(first_acquirer=True), 'c0050440404041'),
        (AMQPHeader(delivery_count=5), 'c00705404040405205'),
        (AMQPHeader(durable=False, priority=4, delivery_count=0), None),
    ],
)
def test_header_on_the_wire(header: AMQPHeader, data: str | None) -> None:
    ctx = stream_message_ctx(b'', header=header)
    expected = ('005370' + data if data else '') + '005375a000'
    assert encode_amqp_bytes(ctx).hex() == expected
    assert round_trip(ctx).header == header


def test_header() -> None:
    header = AMQPHeader([True, 5, 10, True, 2])
    assert header == AMQPHeader(
        durable=True, priority=5, ttl=10, first_acquirer=True, delivery_count=2
    )
    assert (header.durable, header.priority, header.ttl) == (True, 5, 10)
    assert (header.first_acquirer, header.delivery_count) == (True, 2)
    for empty in (AMQPHeader(), AMQPHeader(None), AMQPHeader([]), AMQPHeader([None] * 5)):
        assert empty.durable is False
        assert empty.priority == 4
        assert empty.ttl is None
        assert empty.first_acquirer is False
        assert empty.delivery_count == 0
        assert empty == AMQPHeader()
        assert hash(empty) == hash(AMQPHeader())
    assert header != AMQPHeader()
    assert header != 1  # type: ignore[comparison-overlap]
    assert eval(repr(header)) == header
    for other in (copy.copy(header), copy.deepcopy(header), pickle.loads(pickle.dumps(header))):
        assert other == header
    with pytest.raises(AttributeError):
        header.ttl = 5  # type: ignore[misc]


@pytest.mark.parametrize(
    ('fields', 'error'),
    [
        ({'durable': 1}, AMQPEncoderTypeError),
        ({'priority': 'a'}, AMQPEncoderTypeError),
        ({'priority': True}, AMQPEncoderTypeError),
        ({'priority': 256}, AMQPEncoderOverflowError),
        ({'ttl': -1}, AMQPEncoderOverflowError),
        ({'ttl': 2**32}, AMQPEncoderOverflowError),
        ({'first_acquirer': 'a'}, AMQPEncoderTypeError),
        ({'delivery_count': 2**32}, AMQPEncoderOverflowError),
        ({'fields': [None] * 6}, AMQPEncoderTypeError),
    ],
)
def test_invalid_header(fields: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error):
        AMQPHeader(**fields)


PROPERTIES: list[tuple[str, Any, Any]] = [
    ('message_id', 5, 5),
    ('message_id', 2**64 - 1, 2**64 - 1),
    ('message_id', ULong(5), 5),
    ('message_id', 'a', 'a'),
    ('message_id', b'a', b'a'),
    ('message_id', bytearray(b'a'), b'a'),
    ('message_id', UUID(int=7), UUID(int=7)),
    ('user_id', b'u', b'u'),
    ('user_id', memoryview(b'u'), b'u'),
    ('to', 't', 't'),
    ('subject', 's' * 300, 's' * 300),
    ('reply_to', 'r', 'r'),
    ('correlation_id', 0, 0),
    ('correlation_id', '5', '5'),
    ('content_type', 'text/plain', Symbol('text/plain')),
    ('content_encoding', Symbol('gzip'), Symbol('gzip')),
    ('absolute_expiry_time', NOW, NOW),
    ('absolute_expiry_time', Timestamp(2**62), Timestamp(2**62)),
    ('creation_time', NOW.replace(tzinfo=None), NOW),
    ('group_id', 'g', 'g'),
    ('group_sequence', 2**32 - 1, 2**32 - 1),
    ('reply_to_group_id', 'rg', 'rg'),
]


@pytest.mark.parametrize(('name', 'value', 'read'), PROPERTIES)
def test_property(name: str, value: Any, read: Any) -> None:
    properties = AMQPProperties(**{name: value})
    received = round_trip(stream_message_ctx(b'', properties=properties)).properties
    assert getattr(received, name) == read
    assert type(getattr(received, name)) is type(read)
    for other in (n for n, _, _ in PROPERTIES if n != name):
        assert getattr(received, other) is None
    assert round_trip(stream_message_ctx(b'', properties=received)).properties == received


def test_integer_ids_are_encoded_as_ulong() -> None:
    data = encode_amqp_bytes(stream_message_ctx(b'', properties=AMQPProperties(message_id=5)))
    assert data.hex() == '005373c003015305' + '005375a000'


def test_properties() -> None:
    fields: list[Any] = [None] * 13
    fields[0], fields[12] = 'id', 'g'
    properties = AMQPProperties(fields)
    assert properties == AMQPProperties(message_id='id', reply_to_group_id='g')
    assert AMQPProperties(['id']) == AMQPProperties(message_id='id')
    assert properties != AMQPProperties()
    assert properties != 1  # type: ignore[comparison-overlap]
    assert hash(properties) == hash(AMQPProperties(fields))
    assert eval(repr(properties)) == properties
    assert repr(AMQPProperties()) == 'AMQPProperties()'
    for other in (
        copy.copy(properties),
        copy.deepcopy(properties),
        pickle.loads(pickle.dumps(properties)),
    ):
        assert other == properties
    with pytest.raises(AttributeError):
        properties.to = 'a'  # type: ignore[misc]


@pytest.mark.parametrize(
    ('fields', 'error'),
    [
        ({'message_id': 1.5}, AMQPEncoderTypeError),
        ({'message_id': True}, AMQPEncoderTypeError),
        ({'message_id': -1}, AMQPEncoderOverflowError),
        ({'correlation_id': 2**64}, AMQPEncoderOverflowError),
        ({'user_id': 'u'}, AMQPEncoderTypeError),
        ({'to': b't'}, AMQPEncoderTypeError),
        ({'content_type': b't'}, AMQPEncoderTypeError),
        ({'content_type': 'é'}, AMQPEncoderValueError),
        ({'creation_time': 5}, AMQPEncoderTypeError),
        ({'group_sequence': 2**32}, AMQPEncoderOverflowError),
        ({'fields': [None] * 14}, AMQPEncoderTypeError),
    ],
)
def test_invalid_properties(fields: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error):
        AMQPProperties(**fields)


def test_annotation_keys() -> None:
    ctx = stream_message_ctx(b'', annotations={'x-a': 1, Symbol('x-b'): 2, 5: 3})
    assert round_trip(ctx).annotations == {Symbol('x-a'): 1, Symbol('x-b'): 2, 5: 3}
    data = encode_amqp_bytes(stream_message_ctx(b'', annotations={5: None}))
    assert data.hex() == '005372c10402530540' + '005375a000'
    for key in (None, b'a', 1.5, True, Described(1, 2), Char('a')):
        for name in ('annotations', 'delivery_annotations', 'footer'):
            section: dict[str, Any] = {name: {key: 1}}
            with pytest.raises(AMQPEncoderTypeError):
                encode_amqp_bytes(stream_message_ctx(b'', **section))
    with pytest.raises(AMQPEncoderOverflowError):
        encode_amqp_bytes(stream_message_ctx(b'', annotations={-1: 1}))
    with pytest.raises(AMQPEncoderValueError):
        encode_amqp_bytes(stream_message_ctx(b'', annotations={'é': 1}))


def test_application_property_names() -> None:
    for key in (None, b'a', 1, Symbol('a')):
        names: Any = {key: 1}
        with pytest.raises(AMQPEncoderTypeError):
            encode_amqp_bytes(stream_message_ctx(b'', app_properties=names))


@pytest.mark.parametrize(
    'value', [[1], {'a': [1]}, AMQPArray(Int, [1]), Described(Symbol('d'), 1), [], {}], ids=repr
)
def test_application_property_of_compound_type(value: Any) -> None:
    # beyond the specification: any received message can be sent again
    properties = {'a': 'b', 'k': value}
    received = round_trip(stream_message_ctx(b'', app_properties=properties))
    assert received.app_properties == properties
    assert round_trip(received).app_properties == properties


@pytest.mark.parametrize(
    ('name', 'value'),
    [
        ('header', {}),
        ('header', AMQPProperties()),
        ('properties', {}),
        ('annotations', []),
        ('app_properties', 'a'),
        ('footer', 1),
    ],
)
def test_section_of_wrong_type(name: str, value: Any) -> None:
    with pytest.raises(AMQPEncoderTypeError):
        stream_message_ctx(b'', **{name: value})
    with pytest.raises(AMQPEncoderTypeError):
        setattr(stream_message_ctx(b''), name, value)


# --- bodies ---


class Data(bytes):
    pass


@pytest.mark.parametrize(
    ('body', 'data'),
    [
        (b'', '005375a000'),
        (b'a' * 255, '005375a0ff' + '61' * 255),
        (b'a' * 256, '005375b000000100' + '61' * 256),
        (Data(b'a'), '005375a00161'),
        (bytearray(b'a'), '005375a00161'),
        (memoryview(b'abc')[::2], '005375a0026163'),
        (DataBody([b'a', b'', b'b']), '005375a00161005375a000005375a00162'),
        (DataBody(), '005375a000'),
        (SequenceBody([[1, 'a'], []]), '005376c006025401a10161' + '00537645'),
        (SequenceBody(), '00537645'),
        (None, '00537740'),
        ('a', '005377a10161'),
        ([b'a'], '005377c00401a00161'),
        ((), '00537745'),
        (True, '00537741'),
        (5, '0053775405'),
        (Described(1, b''), '005377005301a000'),
    ],
)
def test_body(body: Any, data: str) -> None:
    assert encode_amqp_bytes(body).hex() == data
    assert encode_amqp_bytes(stream_message_ctx(body)).hex() == data
    received = decode_amqp(bytes.fromhex(data))
    assert received.body == (body if not isinstance(body, tuple) else [])
    assert encode_amqp_bytes(received).hex() == data


# --- several data sections, sequence body ---


def test_several_data_sections() -> None:
    received = round_trip(DataBody([b'a', bytearray(b'bc')]))
    assert received.body == b'abc'
    assert isinstance(received.body, DataBody)
    assert received.body.sections == (b'a', b'bc')
    assert bytes(received.body_view()) == b'abc'
    for other in (copy.copy(received.body), pickle.loads(pickle.dumps(received.body))):
        assert other == b'abc'
        assert other.sections == (b'a', b'bc')


def test_sequence_sections() -> None:
    received = round_trip(SequenceBody([[1], ['a', None]]))
    assert received.body == [1, 'a', None]
    assert isinstance(received.body, SequenceBody)
    assert received.body.sections == [[1], ['a', None]]
    other = pickle.loads(pickle.dumps(received.body))
    assert other.sections == received.body.sections
    received.body.append(5)
    assert received.body.sections == [[1, 'a', None, 5]]
    assert round_trip(received).body.sections == [[1, 'a', None, 5]]


def test_context_is_not_a_value() -> None:
    bodies: list[Any] = [stream_message_ctx(b''), [stream_message_ctx(b'')]]
    for body in bodies:
        with pytest.raises(AMQPEncoderTypeError):
            encode_amqp_bytes(stream_message_ctx(body))


# --- views ---


def test_raw() -> None:
    data = encode_amqp_bytes(full_message())
    ctx = decode_amqp(data)
    assert ctx.raw is not None
    assert bytes(ctx.raw) == data
    assert ctx.raw.obj is data
    assert stream_message_ctx(b'').raw is None
    received = decode_amqp(memoryview(b'..' + data + b'..')[2:-2])
    assert received.raw is not None
    assert bytes(received.raw) == data
    assert received == ctx
    ctx.body = 5
    assert bytes(ctx.raw) == data


@pytest.mark.parametrize('size', [0, 1, 255, 256, 100000])
def test_body_view(size: int) -> None:
    body = b'x' * size
    data = encode_amqp_bytes(stream_message_ctx(body, footer={'x-f': 1}))
    for message in (data, encode_amqp_bytes(body)):
        view = decode_amqp(message).body_view()
        assert isinstance(view, memoryview)
        assert view.obj is message
        assert bytes(view) == body
    assert bytes(stream_message_ctx(body).body_view()) == body
    for other in ('text', [1], None):
        with pytest.raises(TypeError):
            round_trip(other).body_view()


def test_views_keep_the_data_alive() -> None:
    ctx = decode_amqp(bytes(bytearray(encode_amqp_bytes(full_message()))))
    view = decode_amqp(bytes(bytearray(encode_amqp_bytes(b'x' * 1000)))).body_view()
    gc.collect()
    junk = [bytes([7]) * 1000 for _ in range(100)]
    assert ctx.body == {'a': [1, None]}
    assert ctx.app_properties == {'k': 'v', 'n': 1}
    assert bytes(view) == b'x' * 1000
    assert junk


def test_writable_data_is_copied() -> None:
    data = bytearray(encode_amqp_bytes(b'abc'))
    from_array = decode_amqp(data)
    with memoryview(data) as view:
        from_view = decode_amqp(view)
    data[-1] = 0x7A
    data.append(1)
    assert from_array.body == from_view.body == b'abc'


def test_memoryview_released_later() -> None:
    data = encode_amqp_bytes('abc')
    view = memoryview(data)
    ctx = decode_amqp(view)
    view.release()
    assert ctx.body == 'abc'
    assert decode_amqp(memoryview(data * 1)[::1]).body == 'abc'
    assert decode_amqp(memoryview(b''.join(bytes([b, 0]) for b in data))[::2]).body == 'abc'


@pytest.mark.parametrize('data', ['text', None, 5, [1]])
def test_data_of_wrong_type(data: Any) -> None:
    with pytest.raises(TypeError):
        decode_amqp(data)


# --- subclasses and misuse ---


class Mixed(str, Enum):  # noqa: UP042
    """`str()` of a member returns its name, not its contents."""

    A = 'x-a'


class LyingStr(str):
    def __str__(self) -> str:
        return 'another'


class LyingBytes(bytes):
    def __bytes__(self) -> bytes:
        return b'another'


@pytest.mark.parametrize(
    'value', [Mixed.A, LyingStr('x-a')], ids=lambda value: type(value).__name__
)
def test_contents_of_str_subclass_are_encoded(value: str) -> None:
    properties = AMQPProperties(subject=value, message_id=value, content_type=value)
    assert properties.subject == properties.message_id == 'x-a'
    assert properties.content_type == Symbol('x-a')
    assert Symbol(value) == Symbol('x-a')
    assert hash(Symbol(value)) == hash(Symbol('x-a'))
    ctx = round_trip(stream_message_ctx(1, annotations={value: 1}, app_properties={value: 2}))
    assert ctx.annotations == {Symbol('x-a'): 1}
    assert ctx.app_properties == {'x-a': 2}


def test_contents_of_bytes_subclass_are_encoded() -> None:
    value = LyingBytes(b'x-a')
    assert AMQPProperties(user_id=value).user_id == b'x-a'
    assert DataBody([value]).sections == (b'x-a',)
    assert round_trip(AMQPArray(bytes, [value])).body.items == (b'x-a',)


def test_symbol_name_of_wrong_type() -> None:
    for value in (None, b'a', 5):
        with pytest.raises(AMQPEncoderTypeError, match='a symbol name must be str'):
            Symbol(value)  # type: ignore[arg-type]


def test_fields_and_keywords_exclude_each_other() -> None:
    with pytest.raises(AMQPEncoderTypeError, match='not both'):
        AMQPHeader([True], priority=9)
    with pytest.raises(AMQPEncoderTypeError, match='not both'):
        AMQPProperties(['id'], subject='s')


# --- context ---


def test_context_from_rbfly_constructor() -> None:
    header, properties = AMQPHeader([True]), AMQPProperties(['id'])
    ctx = MessageCtx('b', header, {}, {Symbol('x-a'): 1}, properties, {'k': 1}, {})
    assert ctx.body == 'b'
    assert ctx.header is header
    assert ctx.delivery_annotations == {}
    assert ctx.annotations == {Symbol('x-a'): 1}
    assert ctx.properties is properties
    assert ctx.app_properties == {'k': 1}
    assert ctx.footer == {}
    ctx = MessageCtx(
        'b',
        None,
        None,
        None,
        None,
        None,
        None,
        stream_offset=2**64 - 1,
        stream_timestamp=1.5,
        stream_publish_id=3,
        is_set_stream_publish_id=True,
    )
    assert ctx.header == AMQPHeader()
    assert ctx.app_properties == ctx.annotations == ctx.footer == ctx.delivery_annotations == {}
    assert ctx.stream_offset == 2**64 - 1
    assert ctx.stream_timestamp == 1.5
    assert ctx.stream_publish_id == 3
    assert ctx.is_set_stream_publish_id
    ctx.stream_offset = 5
    assert ctx.stream_offset == 5
    with pytest.raises(OverflowError):
        ctx.stream_offset = -1
    keywords = MessageCtx(body='b', header=None, footer={})
    assert keywords.body == 'b'


def test_publish_id() -> None:
    assert not stream_message_ctx('a').is_set_stream_publish_id
    ctx = stream_message_ctx('a', publish_id=0)
    assert ctx.is_set_stream_publish_id
    assert ctx.stream_publish_id == 0
    assert stream_message_ctx('a', publish_id=2**64 - 1).stream_publish_id == 2**64 - 1


class Number:
    """An integer like numpy's: not an int, but with `__index__`."""

    def __index__(self) -> int:
        return 5


@pytest.mark.parametrize('name', ['publish_id', 'stream_offset', 'stream_publish_id'])
def test_ids_and_offsets(name: str) -> None:
    make: Any = stream_message_ctx if name == 'publish_id' else MessageCtx
    kept = 'stream_publish_id' if name == 'publish_id' else name
    for value in (0, 5, 2**64 - 1):
        assert getattr(make('a', **{name: value}), kept) == value
    assert getattr(make('a', **{name: Number()}), kept) == 5
    for wrong in (-1, 2**64, 10**30):
        with pytest.raises(
            AMQPEncoderOverflowError, match=f'^{name} must be from 0 to {2**64 - 1}$'
        ):
            make('a', **{name: wrong})
    for other in ('1', 1.0, b'1', True, [1]):
        kind = type(other).__name__
        with pytest.raises(AMQPEncoderTypeError, match=f'^{name} must be int, not {kind}$'):
            make('a', **{name: other})


def test_factory_arguments() -> None:
    assert Message(body='a').body == 'a'
    with pytest.raises(TypeError, match=r'^message\(\)'):
        Message()  # type: ignore[call-overload]
    with pytest.raises(TypeError):
        Message('a', 5)  # type: ignore[call-overload]
    with pytest.raises(TypeError):
        Message('a', nothing=5)  # type: ignore[call-overload]
    names = list(inspect.signature(Message).parameters)
    assert names[:2] == ['body', 'publish_id']
    assert set(names) >= {'header', 'properties', 'annotations', 'app_properties', 'footer'}


def test_every_way_to_create_a_message() -> None:
    """Python and Cython call a class in several ways; not all take the short one."""
    header = AMQPHeader(durable=True)
    for new in (Message, partial(type.__call__, Message), rbs.stream_message_ctx, rbs.MessageCtx):
        found = new('a')
        assert (found.body, found.publish_id, found.stream_offset) == ('a', None, 0)
        found = new('a', publish_id=0, header=header, stream_offset=5)
        assert (found.body, found.publish_id, found.header) == ('a', 0, header)
        assert (found.stream_publish_id, found.is_set_stream_publish_id) == (0, True)
        assert found.stream_offset == 5
        # the seven positional arguments of RbFly 0.10
        found = new('a', header, {'d': 1}, {'a': 2}, AMQPProperties(to='x'), {'p': 3}, {'f': 4})
        assert (found.body, found.header, found.app_properties) == ('a', header, {'p': 3})
        assert [*found.footer.values(), *found.annotations.values()] == [4, 2]
        assert found.properties.to == 'x'


def test_publish_id_can_be_set() -> None:
    message = Message('a')
    assert message.publish_id is None
    message.publish_id = 0
    assert (message.publish_id, message.is_set_stream_publish_id) == (0, True)
    message.publish_id = None
    assert (message.publish_id, message.stream_publish_id) == (None, 0)
    assert Message('a', stream_publish_id=7).publish_id == 7
    with pytest.raises(OverflowError, match='publish_id must be from 0'):
        Message('a', publish_id=-1)


def test_equality() -> None:
    ctx = full_message()
    assert ctx == full_message()
    assert ctx == copy.copy(ctx)
    assert ctx != 1  # type: ignore[comparison-overlap]
    assert ctx != 'a'  # type: ignore[comparison-overlap]
    for name, value in (
        ('body', 1),
        ('header', None),
        ('delivery_annotations', None),
        ('annotations', None),
        ('properties', None),
        ('app_properties', None),
        ('footer', None),
        ('stream_offset', 99),
        ('stream_timestamp', 99.0),
        ('stream_publish_id', 99),
    ):
        other = full_message()
        setattr(other, name, value)
        assert other != ctx, name
    with pytest.raises(TypeError):
        hash(ctx)
    with pytest.raises(TypeError):

        class Sub(MessageCtx):  # type: ignore[misc]
            pass


def test_copy_and_pickle() -> None:
    ctx = full_message()
    ctx.stream_offset, ctx.stream_timestamp = 10, 20.5
    received = round_trip(ctx)
    for message in (ctx, received):
        for other in (
            copy.copy(message),
            copy.deepcopy(message),
            pickle.loads(pickle.dumps(message)),
        ):
            assert other == message
            assert other.is_set_stream_publish_id == message.is_set_stream_publish_id
    assert copy.copy(ctx).body is ctx.body
    assert copy.deepcopy(ctx).body is not ctx.body


def test_repr() -> None:
    ctx = MessageCtx('a' * 50, app_properties={'k': 1}, stream_offset=5)
    text = repr(ctx)
    assert "body='aaaaaaaaaa...'" in text
    assert 'stream_offset=5' in text
    assert "app_properties={'k': 1}" in text
    assert "body=b'a'" in repr(MessageCtx(b'a'))
    assert len(repr(MessageCtx(list(range(1000))))) < 250


def test_sections_are_decoded_on_access() -> None:
    # application properties of which a boolean is 2, in a valid structure
    data = bytes.fromhex('005374c10602a101615602' + '005375a00161')
    ctx = decode_amqp(data)
    assert ctx.body == b'a'
    for _ in range(2):
        with pytest.raises(AMQPDecoderError) as info:
            _ = ctx.app_properties
        assert info.value.position == 9
    assert ctx.annotations == {}
    assert encode_amqp_bytes(ctx) == data
    ctx.app_properties = {}
    assert encode_amqp_bytes(ctx).hex() == '005375a00161'


def test_body_is_decoded_on_access() -> None:
    ctx = decode_amqp(bytes.fromhex('005374c10702a10161a10162' + '0053775602'))
    assert ctx.app_properties == {'a': 'b'}
    for _ in range(2):
        with pytest.raises(AMQPDecoderError):
            _ = ctx.body
    ctx.body = 5
    assert round_trip(ctx).body == 5


def test_context_variable() -> None:
    import contextvars

    def fresh() -> None:
        with pytest.raises(LookupError):
            get_message_ctx()
        ctx = stream_message_ctx('a')
        set_message_ctx(ctx)
        assert get_message_ctx() is ctx

        class Cursor:
            def _current_message_ctx(self) -> MessageCtx:
                return ctx

        set_message_ctx(Cursor())
        assert get_message_ctx() is ctx

    contextvars.Context().run(fresh)
    with pytest.raises(LookupError):
        contextvars.Context().run(get_message_ctx)


# --- encode_amqp ---


def test_encode_into_a_buffer() -> None:
    ctx = full_message()
    data = encode_amqp_bytes(ctx)
    buffer = bytearray(len(data) + 10)
    assert encode_amqp(buffer, ctx) == len(data)
    assert buffer[: len(data)] == data
    assert len(buffer) == len(data) + 10
    exact = bytearray(len(data))
    assert encode_amqp(exact, ctx) == len(data)
    assert exact == data
    for size in range(len(data)):
        small = bytearray(size)
        with pytest.raises(RbFlyBufferError):
            encode_amqp(small, ctx)
        assert len(small) == size
        small.append(1)
    large = bytearray(b'\xee' * 400)
    with pytest.raises(RbFlyBufferError):
        encode_amqp(bytearray(300), stream_message_ctx(b'a' * 300))
    assert encode_amqp(large, stream_message_ctx(b'a' * 300)) == 308
    assert large[308:] == b'\xee' * 92


def test_encode_arguments() -> None:
    for buffer, message in ((b'abc', stream_message_ctx(1)), (None, None)):
        with pytest.raises(TypeError):
            encode_amqp(buffer, message)  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        encode_amqp(bytearray(9))  # type: ignore[call-arg]
    with pytest.raises(AMQPEncoderTypeError):
        encode_amqp(bytearray(9), object())  # type: ignore[arg-type]


def test_buffer_cannot_be_resized_during_encoding() -> None:
    buffer = bytearray(10000)

    class Resize:
        def __len__(self) -> int:
            for change in (buffer.clear, lambda: buffer.extend(b'a' * 100000)):
                with pytest.raises(BufferError):
                    change()
            seen.append(1)
            return 0

        def __getitem__(self, index: int) -> int:
            return 0

    seen: list[int] = []
    body: list[Any] = [Resize()]
    bad: list[Any] = [Resize(), object()]
    encode_amqp(buffer, stream_message_ctx(body))
    with pytest.raises(AMQPEncoderTypeError):
        encode_amqp(buffer, stream_message_ctx(bad))
    assert len(seen) == 3  # the search for the bad value reads the sequence again
    buffer.clear()


@pytest.mark.parametrize('size', [0, 1, 250, 255, 256, 257, 400, 1000, 100000])
def test_bytes_body_of_any_size(size: int) -> None:
    body = ['x' * size, b'y' * size, list(range(size % 5000))]
    assert round_trip(body).body == body


def test_large_message() -> None:
    body = b'x' * (3 << 20)
    data = encode_amqp_bytes(body)
    assert len(data) == len(body) + 8
    assert decode_amqp(data).body == body


# --- memory ---


def test_no_references_leak() -> None:
    body, key = ['x' * 50], 'some-key'
    bad: Any = [body, object()]
    message = {key: body}
    buffer = bytearray(1000)

    def once() -> None:
        ctx = stream_message_ctx(message, app_properties={key: 5})
        encode_amqp(buffer, ctx)
        data = encode_amqp_bytes(ctx)
        received = decode_amqp(data)
        assert received.body == message
        _ = received.app_properties, received.raw, received.header, received.body_view
        with contextlib.suppress(AMQPEncoderError):
            encode_amqp_bytes(bad)
        with contextlib.suppress(AMQPDecoderError):
            decode_amqp(data[:-1])

    once()
    gc.collect()
    before = sys.getrefcount(body), sys.getrefcount(message), sys.getrefcount(None)
    for _ in range(100):
        once()
    gc.collect()
    after = sys.getrefcount(body), sys.getrefcount(message), sys.getrefcount(None)
    assert before[:2] == after[:2]
    assert abs(before[2] - after[2]) < 50


# --- names ---


def test_public_names() -> None:
    for name in (
        'MessageCtx',
        'AMQPHeader',
        'encode_amqp',
        'decode_amqp',
        'set_message_ctx',
        'get_message_ctx',
    ):
        assert name in rbfly.amqp.__all__
        assert hasattr(rbfly.amqp, name)
    for name in rbfly.amqp.__all__:
        assert hasattr(rbfly.amqp, name)
    for name in rbfly.types.__all__:
        assert hasattr(rbfly.types, name)
    from rbfly.amqp import _message

    for name in ('MessageCtx', 'AMQPHeader', 'AMQPProperties'):
        assert getattr(_message, name) is getattr(rbfly.amqp, name)


def test_reused_context_memory_is_cleared() -> None:
    for _ in range(200):
        MessageCtx(
            'x',
            app_properties={'a': 1},
            stream_offset=7,
            stream_timestamp=1.5,
            stream_publish_id=9,
            is_set_stream_publish_id=True,
        )
        decode_amqp(encode_amqp_bytes('x'))
        assert MessageCtx.__new__(MessageCtx) == MessageCtx(None)
        assert stream_message_ctx('y') == MessageCtx('y')


def test_body_by_name_that_is_not_interned() -> None:
    assert getattr(MessageCtx('x'), ''.join(['bo', 'dy'])) == 'x'
