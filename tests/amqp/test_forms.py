"""Each type in all forms that the specification allows, and the sizes at which the form changes."""

import struct
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import pytest
from amqp_values import decode_value, encode_value

import rbfly.types as t
from rbfly.amqp import decode_amqp, encode_amqp, encode_amqp_bytes, stream_message_ctx
from rbfly.error import RbFlyBufferError

# -- each type in all its forms

ID = UUID(int=0x550E8400E29B41D4A716446655440000)
TIME = datetime(2023, 11, 14, 22, 13, 20, 123000, UTC)
READ_AS: dict[type, type] = {
    **dict.fromkeys((t.UByte, t.UShort, t.UInt, t.ULong, t.Byte, t.Short, t.Int, t.Long), int),
    t.Float32: float,
}
# the value, its smallest form (which is what we encode), and all other forms
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
    # array elements are encoded in their wide form
    (t.AMQPArray(t.UByte, [1, 2]), 'e00402500102', ['f0' + '00000007' + '00000002' + '500102']),
    (
        t.AMQPArray(t.Int, [1]),
        'e0060171' + '00000001',
        ['e003015401', 'f00000000600000001' + '5401'],
    ),
    (t.Described(1, 'a'), '005301a10161', ['00800000000000000001' + 'b10000000161']),
]


def format_codes() -> Iterator[int]:
    for _, smallest, others in FORMS:
        yield from (bytes.fromhex(data)[0] for data in (smallest, *others))


def test_all_constructors_are_covered() -> None:
    assert bytes(sorted(set(format_codes()))).hex(' ') == (
        '00 40 41 42 43 44 45 50 51 52 53 54 55 56 60 61 70 71 72 73 74 80 81 82 83 84 94 98 '
        'a0 a1 a3 b0 b1 b3 c0 c1 d0 d1 e0 f0'
    )


@pytest.mark.parametrize(('value', 'smallest', 'others'), FORMS, ids=repr)
def test_all_forms_of_a_type(value: Any, smallest: str, others: list[str]) -> None:
    assert encode_value(value).hex() == smallest
    for data in (smallest, *others):
        decoded = decode_value(bytes.fromhex(data))
        assert decoded == value
        assert type(decoded) is READ_AS.get(type(value), type(value))
        # within each compound, and as a descriptor
        item = bytes.fromhex(data)
        assert decode_value(b'\xd0' + struct.pack('>II', len(item) + 4, 1) + item) == [value]
        pair = b'\xa1\x01k' + item
        assert decode_value(b'\xc1' + bytes([len(pair) + 1, 2]) + pair) == {'k': value}
        assert decode_value(b'\0' + item + item) == t.Described(value, value)


# -- encode_amqp accepts a buffer of exactly the encoded size


@pytest.mark.parametrize('value', [value for value, _, _ in FORMS], ids=repr)
def test_buffer_of_exact_size(value: Any) -> None:
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


# -- multi-byte characters at the limit between 8-bit and 32-bit sizes


@pytest.mark.parametrize('char', ['é', '€', '\U0001f407'])
@pytest.mark.parametrize('size', range(250, 261))
def test_multi_byte_characters_at_size_limit(char: str, size: int) -> None:
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
