"""Malicious bytes and values raise clean errors, in bounded time and memory."""

import ctypes
import struct
import sys
import tracemalloc
from collections.abc import Callable
from typing import Any
from uuid import UUID

import pytest
from amqp_values import SECTIONS, VALUE, decode_value, encode_value

from rbfly.amqp import MessageCtx, decode_amqp, encode_amqp_bytes, stream_message_ctx
from rbfly.error import AMQPDecoderError, AMQPEncoderTypeError, AMQPEncoderValueError
from rbfly.types import AMQPArray, Described, Int, Symbol

DEPTH = 100


def read(data: bytes) -> Any:
    ctx = decode_amqp(data)
    return tuple(getattr(ctx, name) for name in SECTIONS)


def fails(data: bytes) -> AMQPDecoderError:
    with pytest.raises(AMQPDecoderError) as info:
        read(data)
    error = info.value
    assert error.position is not None
    assert 0 <= error.position <= len(data)
    assert str(error.position) in str(error)
    return error


# --- depth ---


def nested_lists(n: int) -> Any:
    value: Any = None
    for _ in range(n):
        value = [value]
    return value


def wrap_list32(data: bytes, n: int) -> bytes:
    for _ in range(n):
        data = b'\xd0' + struct.pack('>II', len(data) + 4, 1) + data
    return data


def test_maximum_depth() -> None:
    value = nested_lists(DEPTH)
    assert decode_value(encode_value(value[0])) == value[0]
    assert decode_amqp(encode_amqp_bytes(value)).body == value
    described: Any = None
    for _ in range(DEPTH):
        described = Described(None, described)
    assert decode_amqp(encode_amqp_bytes(described)).body == described


def nested_too_deep(kind: str) -> Any:
    value: Any = None
    for _ in range(DEPTH + 1):
        match kind:
            case 'list':
                value = [value]
            case 'tuple':
                value = (value,)
            case 'map':
                value = {'k': value}
            case 'described':
                value = Described(None, value)
            case 'descriptor':
                value = Described(value, None)
            case 'foreign':
                value = Foreign(value)
            case 'array':
                value = AMQPArray(list, [[value]])
            case 'arrays':
                value = AMQPArray(AMQPArray, [value]) if value else AMQPArray(Int, [1])
            case 'array descriptor':
                value = AMQPArray(Int, [1], descriptors=[value])
    return value


class Foreign:
    def __init__(self, item: Any) -> None:
        self.item = item

    def __len__(self) -> int:
        return 1

    def __getitem__(self, index: int) -> Any:
        return self.item


KINDS = ['list', 'tuple', 'map', 'described', 'descriptor', 'foreign', 'array', 'arrays']


@pytest.mark.parametrize('kind', [*KINDS, 'array descriptor'])
def test_value_nested_too_deep(kind: str) -> None:
    with pytest.raises(AMQPEncoderValueError):
        encode_amqp_bytes(nested_too_deep(kind))
    with pytest.raises(AMQPEncoderValueError):
        encode_amqp_bytes(stream_message_ctx(b'', footer={'x-a': nested_too_deep(kind)}))


@pytest.mark.long
def test_a_million_deep() -> None:
    value = nested_lists(1_000_000)
    with pytest.raises(AMQPEncoderValueError):
        encode_amqp_bytes(value)
    described: Any = None
    for _ in range(100_000):
        described = Described(described, described)
    with pytest.raises(AMQPEncoderValueError):
        encode_amqp_bytes(described)
    # unwrap it level by level: CPython deallocates some of these types recursively
    while value is not None:
        value = value[0]
    while described is not None:
        described = described.value


def test_value_that_contains_itself() -> None:
    items: list[Any] = []
    items.append(items)
    pairs: dict[str, Any] = {}
    pairs['a'] = pairs
    values: list[Any] = [items, pairs, [pairs, items], (items,)]
    for value in values:
        with pytest.raises(AMQPEncoderValueError):
            encode_amqp_bytes(value)
        with pytest.raises(AMQPEncoderValueError):
            encode_amqp_bytes(stream_message_ctx(b'', app_properties={'a': value}))


def test_wide_and_deep_value_is_refused() -> None:
    # 2 ** 100 lists by reference: refused for its depth, before it is encoded
    value: Any = []
    for _ in range(DEPTH + 5):
        value = [value]
    with pytest.raises(AMQPEncoderValueError):
        encode_amqp_bytes([value] * 1000)


@pytest.mark.parametrize('n', [DEPTH + 1, 300, 10_000, 100_000])
def test_bytes_nested_too_deep(n: int) -> None:
    described = b'\x00' * n + b'\x40' * (n + 1)
    descriptors = b'\x00' * n + b'\x40' * (n + 1)
    arrays = b'\xe0\x04\x01' + b'\x00' * n + b'\x40' * (n + 1)
    for data in (described, descriptors, arrays):
        fails(VALUE + data)
    if n <= 10_000:
        fails(VALUE + wrap_list32(b'\x40', n))
        fails(bytes.fromhex('005376') + wrap_list32(b'\x40', n))
        lists = b'\xf0' + struct.pack('>II', 9 * n, 1) + b'\xf0'
        fails(VALUE + lists * n)


def test_100000_list8_headers() -> None:
    for size in (0xFF, 3, 2):
        data = bytes([0xC0, size, 1]) * 100_000
        fails(VALUE + data)
        fails(bytes.fromhex('005376') + data)
        fails(bytes.fromhex('005370') + data)
    fails(VALUE + wrap_list32(b'\xc0\xff\x01' * 100_000, 1))


# --- sizes and counts ---

BAD_VALUES = [
    'b1ffffffff61',
    'b0ffffffff61',
    'b3ffffffff61',
    'b080000000',
    'b100000001',
    'a001',
    'a301',
    'd0ffffffff0000000040',
    'd00000000500000001',
    'd000000005ffffffff40',
    'd0000000050000000240',
    'd0000000060000000140' + '40',
    'd1000000050000000140',
    'd100000006000000034040',
    'd1ffffffffffffffff',
    'c00401404040',
    'c0030255' + '01',
    'c00501550155' + '02',
    'c001014040',
    'c10201' + '40',
    'c103034040',
    'c10000',
    'c0',
    'c100',
    'e0',
    'e00101',
    'e002' + '0150',
    'e0030250' + '01',
    'e0040150' + '0102',
    'e00301' + '0040',
    'e00200' + '3f',
    'e0020200',
    'e003025602',
    'f000000006000000005000',
    'f0ffffffff0000000150' + '00',
    'f000000006ffffffff5000',
    'f000000005ffffffff40',
    'f000000005ffffffff45',
    'f000000005ffffffff43',
    'f0' + '00000005' + '00010001' + '41',
    '7300110000',
    '730000d800',
    '730000dfff',
    '73ffffffff',
    '5602',
    '56ff',
    '00',
    '0040',
    '000000',
    '',
]


@pytest.mark.parametrize('data', BAD_VALUES)
def test_bad_value(data: str) -> None:
    value = bytes.fromhex(data)
    fails(VALUE + value)
    fails(VALUE + b'\xc0' + bytes([len(value) + 1, 1]) + value)
    # also after a valid key in a map, and as a descriptor
    fails(VALUE + b'\xc1' + bytes([len(value) + 4, 2]) + b'\xa1\x01k' + value)
    fails(VALUE + b'\x00' + value + b'\x40')


@pytest.mark.parametrize('code', range(256))
def test_every_constructor_alone(code: int) -> None:
    data = VALUE + bytes([code])
    if code in (0x40, 0x41, 0x42, 0x43, 0x44, 0x45):
        read(data)
    else:
        fails(data)


ASSIGNED = {
    *(0x40, 0x41, 0x42, 0x43, 0x44, 0x45, 0x50, 0x51, 0x52, 0x53, 0x54, 0x55, 0x56, 0x60, 0x61),
    *(0x70, 0x71, 0x72, 0x73, 0x74, 0x80, 0x81, 0x82, 0x83, 0x84, 0x94, 0x98, 0xA0, 0xA1, 0xA3),
    *(0xB0, 0xB1, 0xB3, 0xC0, 0xC1, 0xD0, 0xD1, 0xE0, 0xF0),
}
WIDTHS = {4: 0, 5: 1, 6: 2, 7: 4, 8: 8, 9: 16, 10: 1, 11: 4}


@pytest.mark.parametrize('code', sorted(ASSIGNED))
def test_every_constructor_with_zeros(code: int) -> None:
    match code >> 4:
        case 0xC:
            rest = b'\x01\x00'
        case 0xD:
            rest = struct.pack('>II', 4, 0)
        case 0xE:
            rest = b'\x02\x00\x50'
        case 0xF:
            rest = struct.pack('>IIB', 5, 0, 0x50)
        case width:
            rest = bytes(WIDTHS[width])
    read(VALUE + bytes([code]) + rest)
    for n in range(len(rest)):
        fails(VALUE + bytes([code]) + rest[:n])
    fails(VALUE + bytes([code]) + rest + b'\x40')


@pytest.mark.parametrize('code', sorted(set(range(256)) - ASSIGNED - {0}))
def test_unknown_constructor(code: int) -> None:
    for size in (0, 1, 2, 4, 8, 16):
        fails(VALUE + bytes([code]) + bytes(size))
    error = fails(VALUE + b'\xc0\x03\x02\x40' + bytes([code]))
    assert f'0x{code:02x}' in str(error)
    fails(VALUE + b'\xe0\x03\x01' + bytes([code]) + b'\x00')


def test_unhashable_keys() -> None:
    for key in ('45', 'c10100', 'c0020140', '004045', 'e00501c0020140'):
        data = bytes.fromhex(key)
        error = fails(VALUE + b'\xc1' + bytes([len(data) + 2, 2]) + data + b'\x40')
        assert 'key' in str(error)


def with_the_same_hash(count: int) -> list[UUID]:
    """UUIDs of which a dict would compare each one with all others."""
    return [UUID(int=i * sys.hash_info.modulus) for i in range(1, count + 1)]


@pytest.mark.parametrize('as_key', [lambda key: key, lambda key: Described(1, key)])
def test_keys_with_chosen_hashes_are_refused(as_key: Callable[[UUID], Any]) -> None:
    keys = [as_key(key) for key in with_the_same_hash(65)]
    assert len({hash(key) for key in keys}) == 1
    accepted = dict.fromkeys(keys[:64], 1)
    assert decode_amqp(encode_amqp_bytes(accepted)).body == accepted
    assert 'hash' in str(fails(encode_amqp_bytes(dict.fromkeys(keys, 1))))
    many = {UUID(int=i): i for i in range(1000)}
    assert decode_amqp(encode_amqp_bytes(many)).body == many


def peak_memory(data: bytes) -> int:
    tracemalloc.start()
    try:
        fails(data)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    'data',
    [
        'd0ffffffffffffffff',
        'd07ffffffffffffff0',
        'd100000004fffffffe',
        'b1fffffff0',
        'b0fffffff0',
        'f0fffffff0ffffffff50',
        'f000000005ffffffff40',
        'f000000006ffffffff5000',
    ],
)
def test_declared_size_allocates_no_memory(data: str) -> None:
    assert peak_memory(VALUE + bytes.fromhex(data)) < 100_000


def test_key_whose_hash_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(self: UUID) -> int:
        raise MemoryError('no hash today')

    data = VALUE + b'\xc1\x13\x02\x98' + bytes(16) + b'\x40'
    assert decode_amqp(data).body == {UUID(int=0): None}
    monkeypatch.setattr(UUID, '__hash__', fail)
    for _ in range(100):
        with pytest.raises(MemoryError, match='no hash today'):
            _ = decode_amqp(data).body


def test_nested_counts_add_up() -> None:
    # each level claims as many items as it has bytes: the counts must not multiply
    size = 200_000
    data = b'\x40' * size
    for _ in range(20):
        data = b'\xd0' + struct.pack('>II', len(data) + 4, len(data)) + data
    assert peak_memory(VALUE + data) < 40 * size
    # the same with arrays of lists
    data = b'\x40' * size
    for _ in range(20):
        data = b'\xf0' + struct.pack('>II', len(data) + 5, len(data) // 9) + b'\xd0' + data
    assert peak_memory(VALUE + data) < 40 * size


def test_zero_width_array_elements_are_limited_per_message() -> None:
    assert len(decode_value(bytes.fromhex('f0000000050000ffff40'))) == 65535
    one = bytes.fromhex('f0000000050000800040')
    items = one * 3
    fails(VALUE + b'\xd0' + struct.pack('>II', len(items) + 4, 3) + items)
    inner = bytes.fromhex('00000005' + '00008000' + '40') * 3
    fails(VALUE + b'\xf0' + struct.pack('>II', len(inner) + 5, 3) + b'\xf0' + inner)
    assert len(decode_value(encode_value(AMQPArray(type(None), [None] * 65536)))) == 65536
    with pytest.raises(AMQPEncoderValueError):
        encode_value(AMQPArray(type(None), [None] * 65537))


# --- structure ---

BODY = '005375a00161'
BAD_MESSAGES = [
    '00',
    '0053',
    '005375',
    '40',
    '5375a00161',
    '005340' + '40',
    '00536f' + '45',
    '005379a00161',
    '0053f5a00161',
    '004075a00161',
    '0080000000000000006f40',
    '00800000000100000075a00161',
    '0080ffffffffffffff75a00161',
    '008000000000000000',
    '00a3',
    '00a3ff61',
    '00a30361626340',
    '00b3',
    '00b3000000',
    '00b3ffffffff61',
    '00b300000003616263' + '40',
    '00a110616d71703a646174613a62696e617279a00161',
    # section with a value of another type
    '005375' + '45',
    '005370c10100' + BODY,
    '00537041' + BODY,
    '00537145' + BODY,
    '00537245' + BODY,
    '005373c10100' + BODY,
    '00537445' + BODY,
    BODY + '00537845',
    # trailing bytes
    BODY + '00',
    BODY + '40',
    BODY + '005375',
    BODY + '0053',
    # fields
    '005373c0030140' + BODY,
    BODY + '005378c1020140',
]


@pytest.mark.parametrize('data', BAD_MESSAGES)
def test_bad_message(data: str) -> None:
    fails(bytes.fromhex(data))


GOOD_MESSAGES = [
    # null in place of a section's value, and empty sections
    '00537040' + '00537140' + '00537240' + '00537340' + '00537440' + BODY + '00537840',
    '00537045' + '005371c10100' + '005372c10100' + '00537345' + '005374c10100' + BODY,
    '005370c00100' + '005373d00000000400000000' + BODY,
    # descriptors of other widths
    '0080000000000000007345' + BODY,
    '00a314' + b'amqp:properties:list'.hex() + '45' + BODY,
    '00b300000010616d71703a646174613a62696e617279a00161',
    '005375b00000000161',
    # header with all fields, and content types as strings
    '005370c00605' + '4140404143' + BODY,
    '005373c00a07' + '404040404040a10161' + BODY,
    # numbers of other widths
    '005370c00403404043' + BODY,
    '005370c007024070000000' + '05' + BODY,
]


@pytest.mark.parametrize('data', GOOD_MESSAGES)
def test_good_message(data: str) -> None:
    value = read(bytes.fromhex(data))
    assert value[0] == b'a'
    copy = decode_amqp(encode_amqp_bytes(decode_amqp(bytes.fromhex(data))))
    assert copy == decode_amqp(bytes.fromhex(data))


def test_error_contains_position_and_bad_byte() -> None:
    error = fails(VALUE + bytes.fromhex('c0060340a101623f'))
    assert error.position == 10
    assert '0x3f' in str(error)
    assert error.offset is None
    assert error.data is None


def test_codec_keeps_no_exception_state() -> None:
    bad: Any = [Symbol('a'), object()]
    for _ in range(1000):
        fails(VALUE + b'\xc0\x04\x02\x40\xa1\x05')
        with pytest.raises(AMQPEncoderTypeError):
            encode_amqp_bytes(bad)
    assert sys.exc_info() == (None, None, None)


@pytest.mark.long
def test_shared_long_values_are_refused() -> None:
    with pytest.raises(AMQPEncoderValueError, match='512 MiB'):
        encode_amqp_bytes([b'x' * 2**20] * 10**5)


def test_context_is_not_a_valid_body() -> None:
    context: Any = stream_message_ctx('x')
    with pytest.raises(AMQPEncoderTypeError, match='not a Message'):
        stream_message_ctx(context)
    with pytest.raises(AMQPEncoderTypeError, match='not a Message'):
        MessageCtx(context)
    with pytest.raises(AMQPEncoderTypeError, match='not a Message'):
        context.body = context
    assert context.body == 'x'


def test_empty_two_dimensional_view() -> None:
    view = memoryview((ctypes.c_uint8 * 0 * 3)()).toreadonly()
    assert decode_amqp(view).body is None


# -- a wrong count within the right size is refused, although RabbitMQ only checks the size

FOUR_ITEMS = bytes.fromhex('5401' + '5402' + '5403' + '5404')


@pytest.mark.parametrize('kind', ['list', 'map', 'array'])
@pytest.mark.parametrize('count', [0, 1, 2, 3, 4, 5, 6, 8, 255])
@pytest.mark.parametrize('wide', [False, True])
def test_wrong_count_in_right_size(kind: str, count: int, wide: bool) -> None:
    code = {'list': 0xC0, 'map': 0xC1, 'array': 0xE0}[kind]
    items = b'\x54' + bytes([1, 2, 3, 4]) if kind == 'array' else FOUR_ITEMS
    if wide:
        data = struct.pack('>BII', code + 0x10, len(items) + 4, count) + items
    else:
        data = bytes([code, len(items) + 1, count]) + items
    array = AMQPArray(Int, [1, 2, 3, 4])
    expected = {'list': [1, 2, 3, 4], 'map': {1: 2, 3: 4}, 'array': array}[kind]
    # followed by values that could be mistaken for its items
    nested = b'\xc0' + bytes([len(data) + 3, 3]) + data + b'\x40\x40'
    if count == 4:
        assert decode_value(data) == expected
        assert decode_value(nested) == [expected, None, None]
        return
    for value in (data, nested):
        with pytest.raises(AMQPDecoderError) as info:
            decode_value(value)
        assert info.value.position is not None
        assert len(VALUE) <= info.value.position <= len(VALUE + data) + 3
