"""Encoding and decoding of single values: Python types and their wire formats."""

import copy
import enum
import math
import pickle
import struct
from array import array
from collections import OrderedDict, UserDict, UserList, deque
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, timezone, tzinfo
from types import MappingProxyType
from typing import Any
from uuid import UUID

import pytest
from amqp_values import decode_value, encode_value

import rbfly.types as t
from rbfly.amqp import AMQPProperties, decode_amqp, encode_amqp_bytes, stream_message_ctx
from rbfly.error import (
    AMQPEncoderError,
    AMQPEncoderIntegerError,
    AMQPEncoderOverflowError,
    AMQPEncoderTypeError,
    AMQPEncoderValueError,
)

INTEGERS = [
    (0, '5400'),
    (127, '547f'),
    (-128, '5480'),
    (128, '7100000080'),
    (-129, '71ffffff7f'),
    (2**30 - 1, '713fffffff'),
    (2**30, '7140000000'),
    (-(2**30), '71c0000000'),
    (2**31 - 1, '717fffffff'),
    (-(2**31), '7180000000'),
    (2**31, '810000000080000000'),
    (-(2**31) - 1, '81ffffffff7fffffff'),
    (2**60 - 1, '810fffffffffffffff'),
    (2**60, '811000000000000000'),
    (2**63 - 1, '817fffffffffffffff'),
    (-(2**63), '818000000000000000'),
    (2**63, '808000000000000000'),
    (2**64 - 1, '80ffffffffffffffff'),
]


@pytest.mark.parametrize(('value', 'data'), INTEGERS)
def test_integer(value: int, data: str) -> None:
    assert encode_value(value).hex() == data
    decoded = decode_value(bytes.fromhex(data))
    assert decoded == value
    assert type(decoded) is int


@pytest.mark.parametrize('value', [2**64, -(2**63) - 1, 10**30, -(10**30)])
def test_integer_too_large(value: int) -> None:
    for error in (AMQPEncoderIntegerError, AMQPEncoderOverflowError, AMQPEncoderTypeError):
        with pytest.raises(error):
            encode_value(value)
    for builtin in (TypeError, OverflowError):
        with pytest.raises(builtin):
            encode_value([{'a': value}])


@pytest.mark.parametrize('n', [*range(70), 254, 255, 256, 257, 1000])
def test_bytes_and_text_of_all_sizes(n: int) -> None:
    data = bytes(33 + i * 7 % 90 for i in range(n))
    head = bytes([0xA0, n]) if n < 256 else b'\xb0' + n.to_bytes(4)
    assert encode_value(data) == head + data
    assert encode_value([data, 1])[3 if n < 251 else 9 :] == head + data + b'\x54\x01'
    assert decode_value(head + data) == data
    text = data.decode()
    assert decode_value(encode_value([text, {text: text}])) == [text, {text: text}]


WRAPPERS: list[tuple[type[int], int, int]] = [
    (t.UByte, 0, 2**8 - 1),
    (t.UShort, 0, 2**16 - 1),
    (t.UInt, 0, 2**32 - 1),
    (t.ULong, 0, 2**64 - 1),
    (t.Byte, -(2**7), 2**7 - 1),
    (t.Short, -(2**15), 2**15 - 1),
    (t.Int, -(2**31), 2**31 - 1),
    (t.Long, -(2**63), 2**63 - 1),
]


@pytest.mark.parametrize(('cls', 'low', 'high'), WRAPPERS)
def test_integer_class(cls: type[int], low: int, high: int) -> None:
    for value in {low, low + 1, 0, 1, 127, high - 1, high}:
        wrapped = cls(value)
        assert wrapped == value
        assert repr(wrapped) == f'{cls.__name__}({value})'
        assert str(wrapped) == f'{wrapped}' == str(value)
        for other in (copy.copy(wrapped), copy.deepcopy(wrapped)):
            assert type(other) is cls
            assert other == value
        for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
            other = pickle.loads(pickle.dumps(wrapped, protocol))
            assert type(other) is cls
            assert other == value
        decoded = decode_value(encode_value(wrapped))
        assert decoded == value
        assert type(decoded) is int
        assert list(decode_value(encode_value(t.AMQPArray(cls, [wrapped])))) == [value]
    for value in (low - 1, high + 1, 10**5000):  # Python does not write the last one
        with pytest.raises(AMQPEncoderOverflowError, match=cls.__name__):
            cls(value)
        with pytest.raises(AMQPEncoderOverflowError):
            encode_value(t.AMQPArray(cls, [value]))


def test_integer_class_selects_wire_type() -> None:
    codes = {
        t.UByte: '5005',
        t.UShort: '600005',
        t.UInt: '5205',
        t.ULong: '5305',
        t.Byte: '5105',
        t.Short: '610005',
        t.Int: '5405',
        t.Long: '5505',
    }
    for cls, data in codes.items():
        assert encode_value(cls(5)).hex() == data

        class Sub(cls):  # type: ignore[misc, valid-type]
            pass

        assert encode_value(Sub(5)).hex() == data
    assert encode_value(t.UInt(0)).hex() == '43'
    assert encode_value(t.ULong(0)).hex() == '44'


class Number(enum.IntEnum):
    ONE = 1


class Name(enum.StrEnum):
    A = 'a'


class Flag(enum.IntFlag):
    X = 4


class MyInt(int):
    pass


class MyFloat(float):
    pass


class MyStr(str):
    pass


class MyBytes(bytes):
    pass


class MyList(list[int]):
    pass


class MyDict(dict[str, int]):
    pass


class MySequence:
    def __init__(self, n: int) -> None:
        self.n = n

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, index: int) -> int:
        return index


SUBCLASSES: list[tuple[Any, Any]] = [
    (Number.ONE, 1),
    (Name.A, 'a'),
    (Flag.X, 4),
    (MyInt(7), 7),
    (MyInt(2**40), 2**40),
    (MyInt(2**63), 2**63),
    (MyFloat(1.5), 1.5),
    (MyStr('é'), 'é'),
    (MyBytes(b'ab'), b'ab'),
    (bytearray(b'ab'), b'ab'),
    (memoryview(b'abcd')[1:3], b'bc'),
    (memoryview(b'abcd')[::2], b'ac'),
    (memoryview(array('H', [1])), b'\x01\x00' if struct.pack('=H', 1)[0] else b'\x00\x01'),
    (MyList([1]), [1]),
    ((1, (2,)), [1, [2]]),
    (range(3), [0, 1, 2]),
    (deque([1]), [1]),
    (array('i', [1, -1]), [1, -1]),
    (UserList([1]), [1]),
    (MySequence(2), [0, 1]),
    (MyDict(a=1), {'a': 1}),
    (OrderedDict(a=1), {'a': 1}),
    (UserDict({'a': 1}), {'a': 1}),
    (MappingProxyType({'a': 1}), {'a': 1}),
]


@pytest.mark.parametrize(('value', 'plain'), SUBCLASSES)
def test_subclass_is_encoded_like_its_base(value: Any, plain: Any) -> None:
    assert encode_value(value) == encode_value(plain)
    decoded = decode_value(encode_value(value))
    assert decoded == plain
    assert type(decoded) is type(plain)


def test_ordered_dict_keeps_order() -> None:
    value = OrderedDict(a=1, b=2)
    value.move_to_end('a')
    assert list(decode_value(encode_value(value))) == ['b', 'a']


def test_str_keys_of_subclasses() -> None:
    assert decode_value(encode_value({Name.A: 1, MyStr('b'): 2})) == {'a': 1, 'b': 2}


@pytest.mark.parametrize(
    'value', [{1, 2}, frozenset(), 1j, object(), type, int, timedelta(1), iter([1]), ...]
)
def test_value_without_amqp_type(value: Any) -> None:
    with pytest.raises(AMQPEncoderTypeError):
        encode_value(value)
    with pytest.raises(TypeError, match=type(value).__name__):
        encode_value([value])


def test_text() -> None:
    for text in ('', 'a' * 255, 'a' * 256, 'é', 'é' * 127, 'é' * 128, 'ÿ', '\U0001f389' * 70000):
        data = encode_value(text)
        utf8 = text.encode()
        if len(utf8) <= 255:
            assert data == b'\xa1' + bytes([len(utf8)]) + utf8
        else:
            assert data == b'\xb1' + struct.pack('>I', len(utf8)) + utf8
        assert decode_value(data) == text
    for other in ('\ud800', 'a\udfff', 'x' * 300 + '\udc80'):
        with pytest.raises(AMQPEncoderValueError):
            encode_value(other)
        with pytest.raises(ValueError, match='UTF-8'):
            encode_value({other: 1})


def test_binary() -> None:
    for size in (0, 1, 255, 256, 70000):
        value = b'\xff' * size
        data = encode_value(value)
        assert data[0] == (0xA0 if size <= 255 else 0xB0)
        assert decode_value(data) == value
        assert encode_value(bytearray(value)) == data
        assert encode_value(memoryview(value)) == data


def test_float() -> None:
    for value in (0.0, -0.0, 1.5, math.inf, -math.inf, 5e-324, 1.7976931348623157e308):
        decoded = decode_value(encode_value(value))
        assert struct.pack('>d', decoded) == struct.pack('>d', value)
    for bits in (0x7FF8000000000000, 0x7FF8000000001234, 0xFFF8000000000001):
        nan = struct.unpack('>d', struct.pack('>Q', bits))[0]
        assert encode_value(nan) == b'\x82' + struct.pack('>Q', bits)
        assert math.isnan(decode_value(encode_value(nan)))


def test_float32() -> None:
    assert encode_value(t.Float32(1.5)).hex() == '723fc00000'
    assert t.Float32(0.1) == struct.unpack('>f', struct.pack('>f', 0.1))[0]
    assert repr(t.Float32(1.5)) == 'Float32(1.5)'
    assert str(t.Float32(1.5)) == '1.5'
    decoded = decode_value(encode_value(t.Float32(0.1)))
    assert decoded == t.Float32(0.1)
    assert type(decoded) is float
    assert math.copysign(1, decode_value(bytes.fromhex('7280000000'))) == -1
    assert math.isnan(decode_value(encode_value(t.Float32(math.nan))))
    assert decode_value(encode_value(t.Float32(math.inf))) == math.inf
    for value in (1e39, 10**5000):
        with pytest.raises(AMQPEncoderOverflowError):
            t.Float32(value)
    for other in (copy.copy(t.Float32(0.1)), pickle.loads(pickle.dumps(t.Float32(0.1)))):
        assert type(other) is t.Float32
        assert other == t.Float32(0.1)


def test_char() -> None:
    assert encode_value(t.Char('A')).hex() == '7300000041'
    decoded = decode_value(encode_value(t.Char('\U0010ffff')))
    assert decoded == '\U0010ffff'
    assert type(decoded) is t.Char
    assert repr(t.Char('A')) == "Char('A')"
    assert str(t.Char('A')) == 'A'
    assert type(pickle.loads(pickle.dumps(t.Char('A')))) is t.Char
    for text in ('', 'ab', '\ud800'):
        with pytest.raises(AMQPEncoderValueError):
            t.Char(text)


@pytest.mark.parametrize(('cls', 'size'), [(t.Decimal32, 4), (t.Decimal64, 8), (t.Decimal128, 16)])
def test_decimal(cls: type[bytes], size: int) -> None:
    value = cls(bytes(range(size)))
    assert encode_value(value)[1:] == bytes(range(size))
    decoded = decode_value(encode_value(value))
    assert decoded == value
    assert type(decoded) is cls
    assert type(copy.deepcopy(value)) is cls
    assert pickle.loads(pickle.dumps(value)) == value
    assert repr(value).startswith(cls.__name__ + "(b'")
    assert decode_value(encode_value(t.AMQPArray(cls, [value]))).items == (value,)
    with pytest.raises(AMQPEncoderValueError):
        cls(b'')
    with pytest.raises(AMQPEncoderTypeError):
        cls(size)


EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MILLISECOND = timedelta(milliseconds=1)


class NoOffset(tzinfo):
    def dst(self, when: datetime | None) -> timedelta | None:
        return None

    def tzname(self, when: datetime | None) -> str | None:
        return None

    def utcoffset(self, when: datetime | None) -> timedelta | None:
        return None


class BadOffset(NoOffset):
    def utcoffset(self, when: datetime | None) -> timedelta | None:
        raise KeyError('offset')


@pytest.mark.parametrize(
    'value',
    [
        EPOCH,
        EPOCH + MILLISECOND,
        EPOCH - MILLISECOND,
        datetime(1, 1, 1, tzinfo=UTC),
        datetime(9999, 12, 31, 23, 59, 59, 999000, tzinfo=UTC),
        datetime(1600, 2, 29, 12, tzinfo=UTC),
        datetime(1900, 2, 28, 23, 59, 59, tzinfo=UTC),
        datetime(1900, 3, 1, tzinfo=UTC),
        datetime(2000, 2, 29, 1, 2, 3, 4000, tzinfo=UTC),
        datetime(2024, 12, 31, 23, 59, 59, 999000, tzinfo=UTC),
    ],
)
def test_timestamp(value: datetime) -> None:
    ms = (value - EPOCH) // MILLISECOND
    data = b'\x83' + struct.pack('>q', ms)
    assert encode_value(value) == data
    assert decode_value(data) == value
    assert decode_value(data).tzinfo is UTC
    assert encode_value(value.replace(tzinfo=None)) == data
    assert encode_value(value.replace(tzinfo=NoOffset())) == data
    assert encode_value(t.Timestamp(ms)) == data


def test_every_day_of_the_calendar() -> None:
    day = timedelta(days=97, hours=5, milliseconds=1)
    value = datetime(1, 1, 1, tzinfo=UTC)
    while value < datetime(9999, 9, 1, tzinfo=UTC):
        data = encode_value(value)
        assert struct.unpack('>q', data[1:])[0] == (value - EPOCH) // MILLISECOND
        assert decode_value(data) == value
        value += day


def test_timestamp_is_rounded_down() -> None:
    for micros, ms in ((1, 0), (999, 0), (1000, 1), (-1, -1), (-1000, -1), (-1001, -2)):
        value = EPOCH + timedelta(microseconds=micros)
        assert encode_value(value) == b'\x83' + struct.pack('>q', ms)
        assert encode_value(value.replace(tzinfo=None)) == b'\x83' + struct.pack('>q', ms)


@pytest.mark.parametrize('year', [1, 1969, 1970, 2024])
def test_naive_datetime_is_received_as_utc_in_milliseconds(year: int) -> None:
    """Wherever it stands in a message, and whatever the local time zone is."""
    sent = datetime(year, 1, 1, 12, 30, 15, 123999)
    received = sent.replace(microsecond=123000, tzinfo=UTC)
    message = stream_message_ctx(
        [sent, t.AMQPArray(datetime, [sent])],
        properties=AMQPProperties(creation_time=sent),
        app_properties={'time': sent},
    )
    found = decode_amqp(encode_amqp_bytes(message))
    assert found.body == [received, t.AMQPArray(datetime, [received])]
    assert found.properties.creation_time == received
    assert found.app_properties == {'time': received}


def test_timestamp_with_offset() -> None:
    zone = timezone(timedelta(hours=-5, minutes=-30, seconds=-1))
    value = datetime(2020, 1, 1, tzinfo=zone)
    assert decode_value(encode_value(value)) == value
    with pytest.raises(AMQPEncoderValueError):
        encode_value(datetime(2020, 1, 1, tzinfo=BadOffset()))


@pytest.mark.parametrize('ms', [-(2**63), 2**63 - 1, -62135596800001, 253402300800000])
def test_timestamp_out_of_datetime_range(ms: int) -> None:
    decoded = decode_value(b'\x83' + struct.pack('>q', ms))
    assert decoded == ms
    assert type(decoded) is t.Timestamp
    assert encode_value(decoded) == b'\x83' + struct.pack('>q', ms)


def test_uuid() -> None:
    for value in (UUID(int=0), UUID(int=2**128 - 1), UUID(int=2**64), UUID(int=2**127 + 5)):
        data = encode_value(value)
        assert data == b'\x98' + value.bytes
        decoded = decode_value(data)
        assert decoded == value
        assert type(decoded) is UUID
        assert decoded.is_safe == value.is_safe
        assert pickle.loads(pickle.dumps(decoded)) == value


def test_uuid_subclass_and_proxy() -> None:
    class Below(UUID):
        pass

    class Proxy:
        def __init__(self, value: UUID) -> None:
            self.bytes = value.bytes

        __class__ = property(lambda self: UUID)

    value = UUID(int=5)
    for other in (Below(int=5), Proxy(value)):
        assert encode_value(other) == encode_value(value)


def test_class_that_only_looks_like_uuid() -> None:
    class Names(type):
        __mro__ = property(lambda cls: (1, 2))

    class Other(metaclass=Names):
        pass

    fake: Any = type('UUID', (), {'bytes': bytes(16), '__module__': 'uuid'})
    values: list[Any] = [Other(), fake()]
    for value in values:
        with pytest.raises(AMQPEncoderTypeError):
            encode_value(value)
        with pytest.raises(AMQPEncoderTypeError):
            AMQPProperties(message_id=value)


def test_symbol() -> None:
    symbol = t.Symbol('x-a')
    assert str(symbol) == symbol.name == 'x-a'
    assert repr(symbol) == "Symbol('x-a')"
    assert symbol == t.Symbol('x-a')
    assert hash(symbol) == hash(t.Symbol('x-a'))
    assert symbol != t.Symbol('x-b')
    assert symbol != 'x-a'  # type: ignore[comparison-overlap]
    assert len({symbol: 1, 'x-a': 2, t.Symbol('x-a'): 3}) == 2
    for other in (copy.copy(symbol), copy.deepcopy(symbol), pickle.loads(pickle.dumps(symbol))):
        assert other == symbol
        assert type(other) is t.Symbol
    assert encode_value(t.Symbol('')).hex() == 'a300'
    for size in (0, 1, 31, 32, 33, 255, 256, 70000):
        data = encode_value(t.Symbol('a' * size))
        assert data[0] == (0xA3 if size <= 255 else 0xB3)
        assert decode_value(data) == t.Symbol('a' * size)
    with pytest.raises(AMQPEncoderValueError):
        t.Symbol('é')
    with pytest.raises(TypeError):
        t.Symbol(1)  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        t.Symbol(None)  # type: ignore[arg-type]


def test_described() -> None:
    value = t.Described(t.Symbol('d'), [1])
    assert repr(value) == "Described(Symbol('d'), [1])"
    assert value == t.Described(t.Symbol('d'), [1])
    assert value != t.Described(t.Symbol('e'), [1])
    assert value != t.Described(t.Symbol('d'), [2])
    assert value != [1]  # type: ignore[comparison-overlap]
    assert hash(t.Described(1, 2)) == hash(t.Described(1, 2))
    with pytest.raises(TypeError):
        hash(value)
    for other in (copy.copy(value), copy.deepcopy(value), pickle.loads(pickle.dumps(value))):
        assert other == value
    assert copy.deepcopy(value).value is not value.value
    for descriptor in (1, t.ULong(1)):
        assert encode_value(t.Described(descriptor, None)).hex() == '00530140'
    assert encode_value(t.Described(-1, None)).hex() == '0054ff40'
    nested = t.Described(
        t.Described(1, 2), t.Described(t.Symbol('s'), {'a': t.Described(None, b'')})
    )
    assert decode_value(encode_value(nested)) == nested


ARRAYS: list[tuple[t.AMQPArray, str]] = [
    (t.AMQPArray(bool, [True, False]), 'e00402560100'),
    (t.AMQPArray(t.UByte, [1]), 'e0030150' + '01'),
    (t.AMQPArray(t.UShort, [1]), 'e0040160' + '0001'),
    (t.AMQPArray(t.UInt, [1]), 'e0060170' + '00000001'),
    (t.AMQPArray(t.ULong, [1]), 'e00a0180' + '0000000000000001'),
    (t.AMQPArray(t.Byte, [-1]), 'e0030151' + 'ff'),
    (t.AMQPArray(t.Short, [-1]), 'e0040161' + 'ffff'),
    (t.AMQPArray(t.Int, [-1]), 'e0060171' + 'ffffffff'),
    (t.AMQPArray(t.Long, [-1]), 'e00a0181' + 'ffffffffffffffff'),
    (t.AMQPArray(t.Float32, [1.5]), 'e0060172' + '3fc00000'),
    (t.AMQPArray(float, [1.5]), 'e00a0182' + '3ff8000000000000'),
    (t.AMQPArray(t.Char, [t.Char('A')]), 'e0060173' + '00000041'),
    (t.AMQPArray(datetime, [EPOCH]), 'e00a0183' + '00' * 8),
    (t.AMQPArray(UUID, [UUID(int=1)]), 'e0120198' + '00' * 15 + '01'),
    (t.AMQPArray(bytes, [b'a']), 'e00701b0' + '0000000161'),
    (t.AMQPArray(str, ['é']), 'e00801b1' + '00000002c3a9'),
    (t.AMQPArray(t.Symbol, [t.Symbol('a')]), 'e00701b3' + '0000000161'),
    (t.AMQPArray(list, [[1], []]), 'e01402d0' + '000000060000000154010000000400000000'),
    (t.AMQPArray(dict, [{}]), 'e00a01d1' + '0000000400000000'),
    (t.AMQPArray(t.AMQPArray, [t.AMQPArray(t.UByte, [7])]), 'e00c01f0' + '00000006000000015007'),
    (t.AMQPArray(type(None), [None, None]), 'e0020240'),
    (t.AMQPArray(t.Symbol), 'e00200b3'),
    (t.AMQPArray(str, ['x'], descriptors=(t.ULong(5),)), 'e00a0100' + '5305' + 'b10000000178'),
]


@pytest.mark.parametrize(('value', 'data'), ARRAYS, ids=lambda v: repr(v)[:40])
def test_array(value: t.AMQPArray, data: str) -> None:
    assert encode_value(value).hex() == data
    decoded = decode_value(bytes.fromhex(data))
    assert decoded == value
    assert decoded.element_type is value.element_type
    assert encode_value(decoded).hex() == data
    for other in (copy.copy(value), copy.deepcopy(value), pickle.loads(pickle.dumps(value))):
        assert other == value


def test_array_is_a_sequence() -> None:
    value = t.AMQPArray(int, [3, 4, 5])
    assert value.element_type is t.Long
    assert len(value) == 3
    assert value[0] == 3
    assert value[1:] == (4, 5)
    assert repr(value) == 'AMQPArray(Long, [3, 4, 5])'
    assert list(value) == [3, 4, 5]
    assert value != [3, 4, 5]  # type: ignore[comparison-overlap]
    assert value != t.AMQPArray(t.Int, [3, 4, 5])
    assert hash(value) == hash(t.AMQPArray(t.Long, [3, 4, 5]))
    assert {value: 1}[t.AMQPArray(int, (3, 4, 5))] == 1
    assert decode_value(encode_value({value: 1})) == {value: 1}


def test_array_of_many() -> None:
    for n in (31, 32, 33, 62, 63, 64, 255, 256, 1000):
        value = t.AMQPArray(t.UInt, range(n))
        assert decode_value(encode_value(value)) == value
    value = t.AMQPArray(t.UByte, [1] * 253)
    assert encode_value(value)[0] == 0xE0
    value = t.AMQPArray(t.UByte, [1] * 254)
    assert encode_value(value)[0] == 0xF0


def test_array_with_several_descriptors() -> None:
    value = t.AMQPArray(str, ['x', 'y'], descriptors=(t.Symbol('a'), t.Described(1, 2)))
    assert repr(value).endswith("descriptors=(Symbol('a'), Described(1, 2)))")
    assert decode_value(encode_value(value)) == value


@pytest.mark.parametrize(
    ('element_type', 'item'),
    [
        (bool, 1),
        (t.UByte, 'a'),
        (t.UByte, True),
        (t.Long, 1.0),
        (float, 1),
        (t.Float32, 'a'),
        (t.Char, 65),
        (datetime, 'a'),
        (UUID, 'a'),
        (bytes, 'a'),
        (str, b'a'),
        (t.Symbol, 'a'),
        (t.Decimal32, b'abcd'),
        (list, 'ab'),
        (dict, []),
        (t.AMQPArray, [1]),
        (type(None), 0),
    ],
)
def test_array_with_wrong_element(element_type: type, item: Any) -> None:
    with pytest.raises(AMQPEncoderTypeError):
        encode_value(t.AMQPArray(element_type, [item]))


def test_array_of_wrong_type() -> None:
    for cls in (object, set, t.Described):
        with pytest.raises(AMQPEncoderTypeError):
            t.AMQPArray(cls)


def test_list_widths() -> None:
    for n in (0, 1, 31, 32, 33, 100, 254, 255, 256, 1000):
        value = [None] * n
        data = encode_value(value)
        if n == 0:
            assert data.hex() == '45'
        elif n <= 254:
            assert data[:3] == bytes([0xC0, n + 1, n])
        else:
            assert data[0] == 0xD0
        assert decode_value(data) == value
    # few but long items: the initial header is too small
    for sizes in ((252,), (253,), (255,), (256,), (100, 152), (100, 151), (60000, 1), (125,) * 32):
        items = ['a' * n for n in sizes]
        data = encode_value(items)
        content = b''.join(map(encode_value, items))
        assert data[0] == (0xC0 if len(content) <= 254 else 0xD0)
        assert data.endswith(content)
        assert decode_value(data) == items


def test_map_widths() -> None:
    assert encode_value({}).hex() == 'c10100'
    for n in (1, 15, 16, 17, 84, 85, 86, 126, 127, 128, 500):
        value = {t.Byte(i - 128) if i < 256 else str(i): None for i in range(n)}
        data = encode_value(value)
        content = b''.join(encode_value(k) + b'\x40' for k in value)
        assert data[0] == (0xC1 if len(content) <= 254 and 2 * n <= 255 else 0xD1)
        assert decode_value(data) == {(int(k) if isinstance(k, int) else k): None for k in value}


def test_map_keys() -> None:
    value = {
        1: 'a',
        'x': 1,
        b'x': 2,
        t.Symbol('x'): 3,
        None: 4,
        1.5: 5,
        UUID(int=1): 6,
        EPOCH: 7,
        t.Described(1, 'a'): 8,
        t.AMQPArray(t.Int, [1]): 9,
        t.Char('c'): 10,
        'k' * 33: 11,
        'é': 12,
    }
    decoded = decode_value(encode_value(value))
    assert decoded == value
    assert list(decoded) == list(value)


def test_keys_of_all_sizes() -> None:
    # more keys than the cache holds, twice for each size
    value = {chr(97 + i % 26) * n + str(i): i for i in range(30) for n in range(34)}
    data = encode_value(value)
    assert decode_value(data) == value
    assert decode_value(data) == value
    keys = [*decode_value(encode_value({'repeated-key': 1, 'é': 2}))]
    same_keys = [*decode_value(encode_value({'repeated-key': 1, 'é': 2}))]
    assert keys[0] is same_keys[0]


def test_duplicate_key_keeps_the_last() -> None:
    assert decode_value(bytes.fromhex('c10b04' + 'a101615401' + 'a101615402')) == {'a': 2}


def test_list_changes_during_encoding() -> None:
    class Trap:
        def __len__(self) -> int:
            value.clear()
            return 0

        def __getitem__(self, index: int) -> int:
            return 0

    value: list[Any] = [Trap(), 'x' * 1000, 2]
    with pytest.raises(AMQPEncoderValueError):
        encode_value(value)

    class Grow(Trap):
        def __len__(self) -> int:
            pairs[str(len(pairs))] = 1
            return 0

    pairs: dict[str, Any] = {'a': Grow(), 'b': 1}
    with pytest.raises(AMQPEncoderValueError):
        encode_value(pairs)


class Swaps(UserDict[str, int]):
    """A mapping that, when read, replaces the entries of the dict that contains it."""

    def __init__(self, container: dict[Any, Any]) -> None:
        super().__init__(a=1)
        self.container = container

    def __iter__(self) -> Iterator[str]:
        for key in list(self.container):
            self.container[key] = None
            del self.container[key]
        self.container.update((i, i) for i in range(3))
        return super().__iter__()


def test_dict_changes_during_encoding_but_keeps_its_size() -> None:
    for keys in (['x', 'y', 'z'], ['x', 0, 1], [t.Symbol('x'), t.Symbol('y'), 0.5]):
        for i in range(3):
            container: dict[Any, Any] = dict.fromkeys(keys, 'v')
            container[keys[i]] = Swaps(container)
            try:
                data = encode_value(container)
            except AMQPEncoderValueError:
                continue
            # contents may differ, but the encoding is well formed
            assert isinstance(decode_value(data), dict)
    items: list[Any] = [[1, 2], 'a']
    items.append(Clears(items))
    with pytest.raises(AMQPEncoderValueError):
        encode_value(items)
    # the container of the item that changes it is freed during encoding
    items = [[Clears(items)], 'a']
    items[0][0].container = items
    with pytest.raises(AMQPEncoderValueError):
        encode_value(items)


class Clears(UserDict[str, int]):
    def __init__(self, container: list[Any]) -> None:
        super().__init__(a=1)
        self.container = container

    def __iter__(self) -> Iterator[str]:
        self.container.clear()
        return super().__iter__()


class Broken:
    def __len__(self) -> int:
        raise KeyError('len')

    def __getitem__(self, index: int) -> int:
        return 0

    def __repr__(self) -> str:
        raise ValueError('repr')


class BrokenItem(Broken):
    def __len__(self) -> int:
        return 3

    def __getitem__(self, index: int) -> int:
        raise ZeroDivisionError


class BrokenMap(UserDict[str, int]):
    def __getitem__(self, key: str) -> int:
        raise ZeroDivisionError


def test_foreign_errors_become_encoder_errors() -> None:
    released = memoryview(b'abc')
    released.release()
    for value in (Broken(), BrokenItem(), BrokenMap({'a': 1}), released):
        with pytest.raises(AMQPEncoderError):
            encode_value(value)
        with pytest.raises(AMQPEncoderError):
            encode_value({'a': [value]})
