"""What the codec does in a short way for most messages: it gives the same as the long way."""

import inspect
import pickle
from collections.abc import Iterator
from itertools import permutations
from random import Random
from typing import Any, TypedDict

import pytest
from amqp_values import VALUE, decode_value, encode_value

from rbfly.amqp import AMQPProperties, Message, decode_amqp, encode_amqp_bytes
from rbfly.error import AMQPDecoderError
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
