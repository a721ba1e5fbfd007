"""What the codecs of other clients are tested for, by number: 1 to 4 and 7.

5, hostile input, is test_hostile.py and test_forged.py; 6, random bytes, test_property.py and
fuzz/; 8, several body sections, test_message.py and test_proton.py; 9, bodies that AMQP 0.9.1 must
be able to read, tests/streams/test_interop.py.
"""

import json
import struct
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from amqp_values import SECTIONS, VALUE, decode_value, encode_value

import rbfly.amqp
import rbfly.types as t
from rbfly.amqp import MessageCtx, decode_amqp, encode_amqp, encode_amqp_bytes, stream_message_ctx
from rbfly.error import AMQPDecoderError, RbFlyBufferError

# -- 1: every type, in every form

ID = UUID(int=0x550E8400E29B41D4A716446655440000)
TIME = datetime(2023, 11, 14, 22, 13, 20, 123000, UTC)
READ_AS: dict[type, type] = {
    **dict.fromkeys((t.UByte, t.UShort, t.UInt, t.ULong, t.Byte, t.Short, t.Int, t.Long), int),
    t.Float32: float,
}
# what is encoded, its smallest form, which is written, and every other one
FORMS: list[tuple[Any, str, list[str]]] = [
    (None, '40', []),
    (True, '41', ['5601']),
    (False, '42', ['5600']),
    (t.UByte(200), '50c8', []),
    (t.UShort(60000), '60ea60', []),
    (t.UInt(0), '43', ['5200', '7000000000']),
    (t.UInt(255), '52ff', ['70000000ff']),
    (t.UInt(2**31), '7080000000', []),
    (t.ULong(0), '44', ['5300', '800000000000000000']),
    (t.ULong(255), '53ff', ['8000000000000000ff']),
    (t.ULong(2**63), '808000000000000000', []),
    (t.Byte(-1), '51ff', []),
    (t.Short(-2), '61fffe', []),
    (t.Int(-128), '5480', ['71ffffff80']),
    (t.Int(128), '7100000080', []),
    (t.Long(127), '557f', ['81000000000000007f']),
    (t.Long(-129), '81ffffffffffffff7f', []),
    (t.Float32(1.5), '723fc00000', []),
    (-0.1, '82bfb999999999999a', []),
    (t.Decimal32(b'\x22\x50\0\1'), '7422500001', []),
    (t.Decimal64(bytes(range(8))), '840001020304050607', []),
    (t.Decimal128(bytes(range(16))), '94000102030405060708090a0b0c0d0e0f', []),
    (t.Char('ż'), '730000017c', []),
    (TIME, '830000018bcfe5687b', []),
    (ID, '98550e8400e29b41d4a716446655440000', []),
    (b'ab', 'a0026162', ['b0000000026162']),
    ('aż', 'a10361c5bc', ['b10000000361c5bc']),
    (t.Symbol('ab'), 'a3026162', ['b3000000026162']),
    ([], '45', ['c00100', 'd00000000400000000']),
    ([None, 'a'], 'c0050240a10161', ['d0' + '00000008' + '00000002' + '40a10161']),
    ({}, 'c10100', ['d10000000400000000']),
    ({'a': None}, 'c10502a1016140', ['d1' + '00000008' + '00000002' + 'a1016140']),
    # elements of an array are written wide
    (t.AMQPArray(t.UByte, [1, 2]), 'e00402500102', ['f0' + '00000007' + '00000002' + '500102']),
    (
        t.AMQPArray(t.Int, [1]),
        'e0060171' + '00000001',
        ['e003015401', 'f00000000600000001' + '5401'],
    ),
    (t.Described(1, 'a'), '005301a10161', ['00800000000000000001' + 'b10000000161']),
]


def codes() -> Iterator[int]:
    for _, smallest, others in FORMS:
        yield from (bytes.fromhex(data)[0] for data in (smallest, *others))


def test_1_every_constructor_is_tried() -> None:
    assert bytes(sorted(set(codes()))).hex(' ') == (
        '00 40 41 42 43 44 45 50 51 52 53 54 55 56 60 61 70 71 72 73 74 80 81 82 83 84 94 98 '
        'a0 a1 a3 b0 b1 b3 c0 c1 d0 d1 e0 f0'
    )


@pytest.mark.parametrize(('value', 'smallest', 'others'), FORMS, ids=repr)
def test_1_every_type_in_every_form(value: Any, smallest: str, others: list[str]) -> None:
    assert encode_value(value).hex() == smallest
    for data in (smallest, *others):
        decoded = decode_value(bytes.fromhex(data))
        assert decoded == value
        assert type(decoded) is READ_AS.get(type(value), type(value))
        # inside of every compound, and as a descriptor
        item = bytes.fromhex(data)
        assert decode_value(b'\xd0' + struct.pack('>II', len(item) + 4, 1) + item) == [value]
        pair = b'\xa1\x01k' + item
        assert decode_value(b'\xc1' + bytes([len(pair) + 1, 2]) + pair) == {'k': value}
        assert decode_value(b'\0' + item + item) == t.Described(value, value)


# -- 2: the size that is told is that which is written: into a buffer of just that size


@pytest.mark.parametrize('value', [value for value, _, _ in FORMS], ids=repr)
def test_2_size(value: Any) -> None:
    for message in (
        stream_message_ctx(value),
        stream_message_ctx([value] * 40, app_properties={'k' * 300: 'v'}, footer={'x-f': value}),
    ):
        data = encode_amqp_bytes(message)
        buffer = bytearray(len(data))
        assert encode_amqp(buffer, message) == len(data)
        assert buffer == data
        with pytest.raises(RbFlyBufferError):
            encode_amqp(buffer[:-1], message)


# -- 3: characters of several bytes where strings change from 8-bit to 32-bit sizes


@pytest.mark.parametrize('char', ['é', '€', '\U0001f407'])
@pytest.mark.parametrize('size', range(250, 261))
def test_3_multi_byte_characters(char: str, size: int) -> None:
    width = len(char.encode())
    text = 'a' * (size % width) + char * (size // width)
    head = b'\xa1' + bytes([size]) if size <= 255 else b'\xb1' + size.to_bytes(4)
    assert encode_value(text) == head + text.encode()
    for value in (text, [text, text], {text: text}, {'k': [text]}):
        assert decode_value(encode_value(value)) == value
    message = stream_message_ctx(text, app_properties={text: text})
    received = decode_amqp(encode_amqp_bytes(message))
    assert received == message
    assert encode_amqp(bytearray(3 * size + 50), message) == len(encode_amqp_bytes(message))


# -- 4: bytes that other implementations have made
#
# Each message of the file tells what made it and, as Python expressions, what it holds.


def load_clients() -> list[dict[str, Any]]:
    path = Path(__file__).parent.parent / 'data' / 'amqp10-clients.json'
    messages: list[dict[str, Any]] = json.loads(path.read_text(encoding='utf-8'))
    return messages


CLIENTS = load_clients()
NAMES = {**vars(rbfly.amqp), **vars(t), 'UTC': UTC, 'datetime': datetime, 'UUID': UUID}


def client_name(message: dict[str, Any]) -> str:
    return f'{message["library"]}: {message["name"]}'


def content(message: dict[str, Any]) -> MessageCtx:
    sections = {name: eval(text, NAMES) for name, text in message['content'].items()}
    return stream_message_ctx(**sections)


def same(a: Any, b: Any) -> bool:
    """Equal, and of the same types down to the last item."""
    if type(a) is not type(b):
        return False
    if isinstance(a, dict):
        keys = {key: type(key) for key in a} == {key: type(key) for key in b}
        return keys and all(same(a[key], b[key]) for key in a)
    if isinstance(a, list):
        return len(a) == len(b) and all(map(same, a, b))
    return bool(a == b)


def assert_same(received: MessageCtx, expected: MessageCtx) -> None:
    for name in SECTIONS:
        a, b = getattr(received, name), getattr(expected, name)
        assert same(a, b), name
        if isinstance(a, rbfly.amqp.SequenceBody | rbfly.amqp.DataBody):
            assert a.sections == b.sections


def test_4_every_implementation_is_there() -> None:
    made_by = {message['library'].split()[0] for message in CLIENTS}
    assert made_by == {'rabbitmq-stream-go-client', 'com.rabbitmq:stream-client', 'RabbitMQ'}


@pytest.mark.parametrize('message', CLIENTS, ids=client_name)
def test_4_bytes_of_other_implementations(message: dict[str, Any]) -> None:
    expected = content(message)
    received = decode_amqp(bytes.fromhex(message['hex']))
    assert_same(received, expected)
    assert_same(decode_amqp(encode_amqp_bytes(received)), expected)
    # and it is what this codec writes of these values
    assert_same(decode_amqp(encode_amqp_bytes(expected)), expected)


# -- 7: a count that is wrong, in a size that is right: refused, where RabbitMQ goes by the size

ITEMS = bytes.fromhex('5401' + '5402' + '5403' + '5404')


@pytest.mark.parametrize('kind', ['list', 'map', 'array'])
@pytest.mark.parametrize('count', [0, 1, 2, 3, 4, 5, 6, 8, 255])
@pytest.mark.parametrize('wide', [False, True])
def test_7_wrong_count(kind: str, count: int, wide: bool) -> None:
    code = {'list': 0xC0, 'map': 0xC1, 'array': 0xE0}[kind]
    items = b'\x54' + bytes([1, 2, 3, 4]) if kind == 'array' else ITEMS
    if wide:
        data = struct.pack('>BII', code + 0x10, len(items) + 4, count) + items
    else:
        data = bytes([code, len(items) + 1, count]) + items
    array = t.AMQPArray(t.Int, [1, 2, 3, 4])
    expected = {'list': [1, 2, 3, 4], 'map': {1: 2, 3: 4}, 'array': array}[kind]
    # what is behind it could be taken for items of it
    around = b'\xc0' + bytes([len(data) + 3, 3]) + data + b'\x40\x40'
    if count == 4:
        assert decode_value(data) == expected
        assert decode_value(around) == [expected, None, None]
        return
    for value in (data, around):
        with pytest.raises(AMQPDecoderError) as info:
            decode_value(value)
        assert info.value.position is not None
        assert len(VALUE) <= info.value.position <= len(VALUE + data) + 3
