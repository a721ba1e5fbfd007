"""What the codec does in a short way for most messages: it gives the same as the long way."""

import copy
import inspect
import math
import pickle
import struct
from collections.abc import Iterator
from itertools import permutations
from random import Random
from typing import Any, TypedDict

import pytest
from amqp_values import VALUE, decode_value, encode_value

from rbfly.amqp import AMQPProperties, Message, decode_amqp, encode_amqp, encode_amqp_bytes
from rbfly.error import AMQPDecoderError, MessageTypeError, RbFlyBufferError
from rbfly.types import Symbol


def copied(text: str) -> str:
    """An equal string that is another object, as a name read from a file."""
    return ''.join(list(text))


# --- calls ---


def test_decode_amqp_is_a_function_with_a_signature() -> None:
    assert str(inspect.signature(decode_amqp)) == '(buffer, *, type=None)'
    assert decode_amqp.__doc__ is not None
    assert decode_amqp.__doc__.startswith('Decode a message.')
    assert pickle.loads(pickle.dumps(decode_amqp)) is decode_amqp
    raw = encode_amqp_bytes('a')
    assert decode_amqp(raw).body == decode_amqp(buffer=raw).body == 'a'
    assert decode_amqp(raw, type=str).body == decode_amqp(type=None, buffer=raw).body == 'a'


@pytest.mark.parametrize(
    ('arguments', 'keywords'),
    [((), {}), ((b'', None), {}), ((b'',), {'kind': str}), ((b'',), {'buffer': b''})],
)
def test_decode_amqp_with_wrong_arguments(arguments: Any, keywords: Any) -> None:
    with pytest.raises(TypeError):
        decode_amqp(*arguments, **keywords)


def test_keywords_of_properties_in_any_order() -> None:
    fields: dict[str, Any] = {
        'to': 't',
        'group_sequence': 3,
        'content_type': 'a/b',
        'subject': None,
    }
    expected = AMQPProperties([None, None, 't', None, None, None, 'a/b', *[None] * 4, 3, None])
    for names in permutations(fields):
        assert AMQPProperties(**{name: fields[name] for name in names}) == expected
        assert AMQPProperties(**{copied(name): fields[name] for name in names}) == expected
    assert AMQPProperties(to=None) == AMQPProperties() == AMQPProperties(None)
    with pytest.raises(TypeError):
        AMQPProperties(to='t', nothing=1)  # type: ignore[call-arg]
    with pytest.raises(TypeError):
        AMQPProperties(['a'], to='t')


def test_keywords_of_a_message_in_any_order() -> None:
    parts: dict[str, Any] = {
        'publish_id': 5,
        'properties': AMQPProperties(to='t'),
        'app_properties': {'a': 1},
        'annotations': None,
        'footer': {Symbol('x-f'): 1},
    }
    for names in permutations(parts):
        for given in (names, [copied(name) for name in names]):
            made = Message('x', **{name: parts[name] for name in given})
            assert (made.body, made.publish_id, made.annotations) == ('x', 5, {})
            assert made.properties.to == 't'
            assert (made.app_properties, made.footer) == ({'a': 1}, {Symbol('x-f'): 1})
    assert Message('x', publish_id=None).publish_id is None
    with pytest.raises(TypeError):
        Message('x', properties=None, nothing=1)  # type: ignore[call-overload]


def test_sections_by_names_that_are_not_interned() -> None:
    made = Message('x', properties=AMQPProperties(to='t'), app_properties={'a': 1})
    assert getattr(made, copied('properties')).to == 't'
    assert getattr(made, copied('app_properties')) == {'a': 1}


# --- encoding ---


@pytest.mark.parametrize('size', [*range(240, 270), *range(2030, 2060), 5000])
def test_messages_of_all_sizes(size: int) -> None:
    text = 'x' * size
    for body in (text, 'é' * size, text.encode(), {'k': text}, [text, text], ['é' + text, 1]):
        assert decode_amqp(encode_amqp_bytes(body)).body == body
        message = Message(body, properties=AMQPProperties(subject=text), app_properties={'a': text})
        raw = encode_amqp_bytes(message)
        assert decode_amqp(raw) == message
        again = decode_amqp(raw)
        assert encode_amqp_bytes(again) == raw
        again.annotations = {'x-a': text}
        assert decode_amqp(encode_amqp_bytes(again)).body == body


def test_numbers_between_others(rng: Random) -> None:
    for _ in range(200):
        numbers = [rng.choice([rng.random(), rng.getrandbits(40), -1, None]) for _ in range(20)]
        assert decode_value(encode_value(numbers)) == numbers
        pairs = {f'k{i}': number for i, number in enumerate(numbers)}
        assert decode_value(encode_value(pairs)) == pairs


def sized(code: int, data: bytes) -> bytes:
    """A value with its size."""
    if len(data) < 256:
        return bytes([code, len(data)]) + data
    return bytes([code + 0x10]) + struct.pack('>I', len(data)) + data


def compound(code: int, values: list[bytes], count: int) -> bytes:
    """A list or map."""
    data = b''.join(values)
    if len(data) < 255 and count < 256:
        return bytes([code, len(data) + 1, count]) + data
    return bytes([code + 0x10]) + struct.pack('>II', len(data) + 4, count) + data


def encoded(body: Any) -> bytes:
    """Encode a message in each way."""
    buffer = bytearray(200_000)
    raw = encode_amqp_bytes(body)
    assert encode_amqp_bytes(Message(body)) == raw
    for message in (body, Message(body)):
        buffer[: len(raw) + 1] = b'\xee' * (len(raw) + 1)
        assert encode_amqp(buffer, message) == len(raw)
        assert buffer[: len(raw) + 1] == raw + b'\xee'
        exact = bytearray(len(raw))
        assert encode_amqp(exact, message) == len(raw)
        assert exact == raw
        for size in {0, len(raw) // 2, len(raw) - 1}:
            with pytest.raises(RbFlyBufferError):
                encode_amqp(bytearray(size), message)
    return raw


def test_sizes_outlast_their_first_use() -> None:
    """Sizes below 4,096 are the same object in each call, which callers do not own."""
    buffer = bytearray(8_192)
    for length in range(3_900, 4_200):
        body = bytes(length)
        encode_amqp(buffer, body)  # the caller drops the result
        others = [length * 1_000 + i for i in range(50)]  # ints that use freed memory
        size = encode_amqp(buffer, body)
        assert size == length + 8
        assert (encode_amqp(buffer, body) is size) == (size < 4_096)
        assert others[-1] == length * 1_000 + 49


@pytest.mark.parametrize(
    'size', [*range(20), 63, 64, 65, *range(250, 260), 1024, *range(4086, 4090), 70_000]
)
def test_bytes_of_a_message_without_other_sections(size: int) -> None:
    text = 'abcdefghij' * (size // 10) + 'klmnopqrst'[: size % 10]
    assert encoded(text) == b'\0Sw' + sized(0xA1, text.encode())
    assert encoded(text.encode()) == b'\0Su' + sized(0xA0, text.encode())
    assert encoded(text + 'é') == b'\0Sw' + sized(0xA1, (text + 'é').encode())


@pytest.mark.parametrize('value', [0.0, -0.0, 1.5, math.pi, 5e-324, math.inf, -math.inf, math.nan])
def test_message_of_a_float(value: float) -> None:
    raw = encoded(value)
    assert raw == b'\0Sw\x82' + struct.pack('>d', value)
    for data in (raw, bytearray(raw), memoryview(raw)):
        message = decode_amqp(data)
        assert type(message.body) is float
        assert struct.pack('>d', message.body) == raw[4:]
        assert encode_amqp_bytes(message) == raw
    for size in range(4, 12):
        with pytest.raises(AMQPDecoderError):
            decode_amqp(raw[:size])
    with pytest.raises(AMQPDecoderError):
        decode_amqp(raw + b'\0')


@pytest.mark.parametrize(
    'raw',
    [
        b'\0Sw\xb1\0\0\0\x03abc',
        b'\0Su\xb0\0\0\0\x03abc',
        b'\0\x80' + bytes(7) + b'w\x82' + bytes(8),
    ],
)
def test_a_received_message_is_encoded_as_received(raw: bytes) -> None:
    message = decode_amqp(raw)
    assert encode_amqp_bytes(message) == raw
    body = message.body
    assert encode_amqp_bytes(message) == raw
    message.body = body
    assert len(encode_amqp_bytes(message)) < len(raw)


@pytest.mark.parametrize('count', [1, 2, 15, 16, 17, 32, 33, 255, 256])
@pytest.mark.parametrize('long', ['x' * 256, 'é' * 128, b'y' * 300])
def test_a_long_value_at_each_place(count: int, long: str | bytes) -> None:
    code, data = (0xA0, long) if isinstance(long, bytes) else (0xA1, long.encode())
    for places in (*([i] for i in range(min(count, 40))), [0, count - 1], range(min(count, 20))):
        values: list[Any] = [long if i in places else 'short' for i in range(count)]
        wire = [sized(code, data) if i in places else b'\xa1\x05short' for i in range(count)]
        assert encoded(values) == b'\0Sw' + compound(0xC0, wire, count)
        keys = [f'k{i}' for i in range(count)]
        pairs = [sized(0xA1, key.encode()) + value for key, value in zip(keys, wire, strict=True)]
        inner = compound(0xC1, pairs, 2 * count)
        assert encoded(dict(zip(keys, values, strict=True))) == b'\0Sw' + inner
        outer = compound(0xC0, [sized(0xA1, b'a'), inner, sized(code, data)], 3)
        assert encoded(['a', dict(zip(keys, values, strict=True)), long]) == b'\0Sw' + outer


# --- messages that are created without their constructor ---


def test_message_of_new_alone_has_no_body() -> None:
    for body in ('x', b'x' * 300, 1.5, [1]):
        received = decode_amqp(encode_amqp_bytes(Message(body, app_properties={'a': 1})))
        assert received.body == body
        del received  # its memory is reused
        message = Message.__new__(Message)
        assert message.raw is None
        assert message.body is None
        assert message.body is None
        assert message.stream is None
        assert message.stream_offset == message.stream_timestamp == 0
        with pytest.raises(MessageTypeError):
            message.body_view()
        assert encode_amqp_bytes(Message.__new__(Message)) == b'\0Sw\x40'
        assert copy.copy(message) == Message.__new__(Message) == Message(None)
        assert message.app_properties == {}


def test_more_messages_than_are_kept() -> None:
    for _ in range(3):
        messages = [Message([i], app_properties={'i': i}) for i in range(200)]
        received = [decode_amqp(encode_amqp_bytes(message)) for message in messages]
        assert received == messages
        assert [message.body for message in received] == [[i] for i in range(200)]


# --- decoding ---


@pytest.mark.parametrize('size', range(1, 40))
def test_a_character_beyond_ascii_at_each_place(size: int) -> None:
    for i in range(size):
        text = 'a' * i + 'é' + 'b' * (size - i - 1)
        assert decode_value(encode_value(text)) == text
        assert decode_value(encode_value({text: 1})) == {text: 1}
        assert decode_amqp(encode_amqp_bytes(text), type=str).body == text


def test_repeated_symbols() -> None:
    names = [f'x-{i % 300}' for i in range(3000)]
    assert decode_value(encode_value([Symbol(name) for name in names])) == [*map(Symbol, names)]


FIELDS = [
    b'\x40', b'\xa1\x01a', b'\xa1\x02\xff\xfe', b'\xa3\x03a/b', b'\x54\xff', b'\x44', b'\x53\x07',
    b'\xa0\x02ab', b'\x45', b'\xc0\x03\x02\x40\x40', b'\x83' + bytes(8), b'\x98' + bytes(16),
    b'\xb1\x00\x00\x00\x01a', b'\x41', b'\x00\x53\x05\x40', b'\x56\x02', b'\xc1\x01', b'\x01',
]  # fmt: skip


def lists_of(rng: Random) -> Iterator[tuple[bytes, bytes]]:
    """The same list in both widths, sometimes with a wrong count or size."""
    for _ in range(2000):
        valid = rng.random() < 0.7
        fields = rng.choices(FIELDS[:15] if valid else FIELDS, k=rng.randrange(16))
        items, count = b''.join(fields), len(fields)
        size = len(items)
        if not valid:
            count = max(count + rng.choice([-1, 0, 0, 1]), 0)
            size = max(size + rng.choice([-2, -1, 0, 0, 1]), 0)
        if size < 255:
            yield (
                bytes([0xC0, size + 1, count]) + items,
                b'\xd0' + (size + 4).to_bytes(4) + count.to_bytes(4) + items,
            )


def test_properties_in_both_widths(rng: Random) -> None:
    def read(data: bytes) -> Any:
        try:
            return decode_amqp(b'\x00\x53\x73' + data + VALUE + b'\x40').properties
        except AMQPDecoderError as ex:
            return str(ex).partition(' at byte')[0].replace('0xd0', '0xc0')

    kinds = set()
    for narrow, wide in lists_of(rng):
        found, expected = read(narrow), read(wide)
        kinds.add(type(found))
        if type(found) is AMQPProperties:
            assert found == expected
            assert [*map(type, found.__reduce__()[1][0])] == [
                *map(type, expected.__reduce__()[1][0])
            ]
        else:
            assert type(expected) is str
    assert kinds == {AMQPProperties, str}


class Row(TypedDict):
    a: int
    b: list[int]


def test_dicts_of_a_type_are_not_shared() -> None:
    raw = encode_amqp_bytes([{'b': [1], 'a': 1, 'c': 0}, {'a': 2, 'b': []}])
    first, second = decode_amqp(raw, type=list[Row]).body
    first['a'] = 5
    first['b'].append(5)
    assert second == {'a': 2, 'b': []}
    assert decode_amqp(raw, type=list[Row]).body[0] == {'a': 1, 'b': [1]}
    assert list(second) == ['a', 'b']
