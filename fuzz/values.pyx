# cython: language_level=3str
"""Target: encode Python values and messages that are generated from the input."""

from datetime import UTC, datetime, timedelta, timezone, tzinfo
from enum import IntEnum, StrEnum
from collections import OrderedDict, UserDict, UserList
from types import MappingProxyType
from uuid import UUID

from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.stdint cimport uint8_t, uint64_t

from fuzz.checks cimport check_round_trip, finding

from rbfly.amqp import (
    AMQPHeader, AMQPProperties, DataBody, Message, SequenceBody, decode_amqp, encode_amqp,
    encode_amqp_bytes, stream_message_ctx,
)
from rbfly.error import AMQPDecoderError, AMQPEncoderError, RbFlyBufferError
from rbfly.types import (
    AMQPArray, Byte, Char, Decimal128, Decimal32, Decimal64, Described, Float32, Int, Long, Short,
    Symbol, Timestamp, UByte, UInt, ULong, UShort,
)


# --- malicious values ---

class Failing(tzinfo):
    def utcoffset(self, when):
        raise ValueError('no offset')


class Odd(tzinfo):
    def utcoffset(self, when):
        return timedelta(hours=-23, microseconds=1)


class FailingMapping(UserDict):
    def __getitem__(self, key):
        raise RuntimeError('no item')


class EndlessSequence(UserList):
    def __len__(self):
        return 3

    def __getitem__(self, index):
        return self


class Text(str):
    pass


class Number(int):
    def __repr__(self):
        raise RuntimeError('no repr')


class Data(bytes):
    pass


class Items(list):
    pass


class Pairs(dict):
    pass


class Identity(UUID):
    bytes = b'short'


class Colour(IntEnum):
    RED = 1


class Name(StrEnum):
    RED = 'red'


class Changing(UserDict):
    """A mapping that, when read, empties the list or dict that contains it."""

    def __init__(self, victim):
        UserDict.__init__(self)
        self.victim = victim

    def __iter__(self):
        if isinstance(self.victim, list):
            del self.victim[:]
        else:
            self.victim.clear()
        return iter(())


cdef list NUMBERS = [
    0, 1, -1, 127, 128, -128, -129, 255, 256, 65535, 2**30, 2**31 - 1, 2**31, -2**31, -2**31 - 1,
    2**32 - 1, 2**32, 2**53, 2**60, 2**62, 2**63 - 1, 2**63, -2**63, -2**63 - 1, 2**64 - 1, 2**64,
    2**200, -2**200,
]
cdef list FLOATS = [
    0.0, -0.0, 1.5, float('nan'), float('inf'), float('-inf'), 1e308, 5e-324, 3.4e38, 3.5e38, 1e-45,
]
cdef list TEXTS = [
    '', 'a', 'key', 'é', '€', '😀', '\0', '\ud800', 'a' * 31, 'b' * 32, 'c' * 33, 'd' * 255,
    'e' * 256, 'é' * 127, 'é' * 128, '\x7f', '\x80',
]
cdef list CLASSES = [UByte, UShort, UInt, ULong, Byte, Short, Int, Long, Timestamp]
cdef list ELEMENTS = [
    type(None), bool, UByte, UShort, UInt, ULong, Byte, Short, Int, Long, int, Float32, float, Char,
    datetime, Timestamp, UUID, bytes, str, Symbol, Decimal32, Decimal64, Decimal128, list, tuple,
    dict, AMQPArray, object, set,
]


cdef class Source:
    """Generates values from the input; returns zeros at its end."""

    cdef const uint8_t *p
    cdef const uint8_t *end
    cdef list containers            # all lists and dicts
    cdef list unfinished            # containers under construction, which may end up in themselves
    cdef int budget                 # number of values that may still be created
    cdef bint changing              # encoding the message changes it

    cdef uint8_t take(self) noexcept:
        if self.p == self.end:
            return 0
        self.p += 1
        return (self.p - 1)[0]

    cdef object pick(self, list options):
        return options[self.take() % len(options)]

    cdef bytes data(self):
        cdef Py_ssize_t n = self.take()
        cdef Py_ssize_t left = self.end - self.p
        if n & 0x80:
            return bytes(<object> (n << (self.take() & 3)))
        n = min(n, left)
        self.p += n
        return PyBytes_FromStringAndSize(<const char *> self.p - n, n)

    cdef object number(self):
        cdef uint8_t how = self.take()
        if how < 128:
            return NUMBERS[how % len(NUMBERS)]
        if how < 192:
            return int.from_bytes(self.data()[:12], 'big', signed=how & 1)
        return self.take() - 128

    cdef object text(self):
        if self.take() & 1:
            return self.pick(TEXTS)
        return self.data().decode('latin-1')

    cdef object moment(self):
        zone = self.pick([None, UTC, timezone(timedelta(hours=5, minutes=30)), Odd(), Failing()])
        year = 1 + (self.take() * 257 + self.take()) % 9999
        return datetime(
            year, 1 + self.take() % 12, 1 + self.take() % 28, self.take() % 24, self.take() % 60,
            self.take() % 60, self.take() * 3921, tzinfo=zone,
        )

    cdef list items(self, int depth):
        cdef int n = self.take() & 0x3f
        # keep most lists short, to make the input last
        if n > 40:
            # not compounds: sharing them would make the encoding grow exponentially
            return [self.value(31)] * (n << (self.take() & 3))
        items = []
        self.containers.append(items)
        self.unfinished.append(items)
        for _ in range(n & 7):
            items.append(self.value(depth + 1))
        self.unfinished.pop()
        return items

    cdef object key(self, int depth):
        try:
            key = self.value(depth + 1) if self.take() & 3 == 0 else self.text()
            hash(key)
        except (TypeError, ValueError, AttributeError):
            return 'unhashable'
        return key

    cdef dict pairs(self, int depth):
        cdef int n = self.take()
        if n > 240:
            return {str(i): self.value(depth + 1) for i in range(n - 240 << 3)}
        pairs = {}
        self.containers.append(pairs)
        self.unfinished.append(pairs)
        for _ in range(n & 7):
            pairs[self.key(depth)] = self.value(depth + 1)
        self.unfinished.pop()
        return pairs

    cdef object array(self, int depth):
        kind = self.pick(ELEMENTS)
        cdef int n = self.take() & 15
        items = []
        for _ in range(n):
            items.append(self.element(kind, depth))
        descriptors = [self.value(31)] * (self.take() & 3) if self.take() & 3 == 0 else []
        return AMQPArray(kind, items, descriptors=descriptors)

    cdef object element(self, object kind, int depth):
        """Usually a value that the array can hold."""
        if self.take() > 250:
            return self.value(depth + 1)
        if kind is type(None):
            return None
        if kind is bool:
            return bool(self.take() & 1)
        if kind in CLASSES or kind is int:
            return self.number() if self.take() & 7 == 0 else self.take() & 0x7f
        if kind is float or kind is Float32:
            return self.pick(FLOATS)
        if kind is Char:
            return chr(self.take() + 40)
        if kind is datetime:
            return self.moment()
        if kind is UUID:
            return UUID(int=self.take())
        if kind is bytes:
            return self.data()
        if kind is str:
            return self.text()
        if kind is Symbol:
            return Symbol('s' * self.take())
        if kind is Decimal32:
            return Decimal32(bytes(4))
        if kind is Decimal64:
            return Decimal64(bytes(8))
        if kind is Decimal128:
            return Decimal128(bytes(16))
        if kind is list or kind is tuple:
            return self.items(depth)
        if kind is dict:
            return self.pairs(depth)
        if kind is AMQPArray and depth < 8:
            return self.array(depth + 1)
        return self.value(depth + 1)

    cdef object value(self, int depth):
        cdef int kind = self.take() & 63
        self.budget -= 1
        if self.budget < 0 or (depth > 30 and kind >= 24):
            return None
        if kind < 3:
            return (None, True, False)[kind]
        if kind < 8:
            return self.number()
        if kind < 10:
            return self.pick(FLOATS)
        if kind < 14:
            return self.text()
        if kind < 16:
            return self.data()
        if kind == 16:
            return self.pick(CLASSES)(self.number())
        if kind == 17:
            return Float32(self.pick(FLOATS))
        if kind == 18:
            return Char(self.text())
        if kind == 19:
            return Symbol(self.text())
        if kind == 20:
            return self.moment()
        if kind == 21:
            return UUID(int=self.take())
        if kind == 22:
            return self.pick([Decimal32, Decimal64, Decimal128])(bytes(4 << (self.take() % 3)))
        if kind == 23:
            return self.strange()
        if kind < 32:
            return self.items(depth)
        if kind < 40:
            return self.pairs(depth)
        if kind < 44:
            return self.array(depth)
        if kind < 47:
            return Described(self.value(depth + 1), self.value(depth + 1))
        if kind == 47:
            return tuple(self.items(depth))
        if kind == 48:
            return self.pick(self.unfinished) if self.unfinished else ()
        if kind == 49:
            return OrderedDict(self.pairs(depth))
        if kind == 50:
            return MappingProxyType(self.pairs(depth))
        if kind == 51:
            return UserList(self.items(depth))
        if kind == 52:
            return self.pick([FailingMapping, UserDict, Pairs])(self.pairs(depth))
        if kind == 53:
            return Items(self.items(depth))
        if kind == 54:
            return self.pick([bytearray, memoryview, Data])(self.data())
        if kind == 55:
            return memoryview(self.data() + b'abcd')[::self.pick([2, -1, 3])]
        if kind == 56:
            return self.body(depth)
        if kind == 57:
            self.changing = True
            return Changing(self.pick(self.unfinished) if self.unfinished else {})
        if kind == 58:
            # much deeper nesting than the input could describe
            value = self.value(depth + 1)
            wrap = self.take() & 3
            for _ in range(self.take()):
                if wrap == 0:
                    value = [value]
                elif wrap == 1:
                    value = {'k': value}
                elif wrap == 2:
                    value = Described(value, None)
                else:
                    value = AMQPArray(list, [[value]])
            return value
        return self.strange()

    cdef object strange(self):
        """Unusual values."""
        cdef int kind = self.take() % 20
        if kind == 0:
            return object()
        if kind == 1:
            return {1, 2}
        if kind == 2:
            return range(self.take())
        if kind == 3:
            return EndlessSequence([1])
        if kind == 4:
            return Identity(int=5)
        if kind == 5:
            return UUID.__new__(UUID)
        if kind == 6:
            return Symbol.__new__(Symbol)
        if kind == 7:
            return bytes.__new__(self.pick([Decimal32, Decimal64, Decimal128]), self.data())
        if kind == 8:
            return int.__new__(self.pick(CLASSES), self.number() % 2**31)
        if kind == 9:
            return str.__new__(Char, self.text())
        if kind == 10:
            return float.__new__(Float32, self.pick(FLOATS))
        if kind == 11:
            return AMQPArray(list)
        if kind == 12:
            return Described.__new__(Described)
        if kind == 13:
            return Number(self.number())
        if kind == 14:
            return Text(self.text())
        if kind == 15:
            return self.pick([Colour.RED, Name.RED])
        if kind == 16:
            return int
        if kind == 17:
            return 1j
        if kind == 18:
            view = memoryview(self.data())
            view.release()
            return view
        return ...

    cdef object body(self, int depth):
        cdef int kind = self.take() & 7
        if kind == 0:
            return DataBody([self.data() for _ in range(self.take() & 3)])
        if kind == 1:
            body = DataBody([self.data()])
            body._sections = self.items(depth) or [b'']
            return body
        if kind == 2:
            body = SequenceBody([self.items(depth) for _ in range(self.take() & 3)])
            if self.take() & 3 == 0:
                body._lengths = tuple([self.take() - 8 for _ in range(self.take() & 3)]) or (0,)
            if self.take() & 3 == 0:
                body.append(self.value(depth + 1))
            return body
        return self.value(depth)

    cdef object header(self):
        return AMQPHeader([self.value(29) for _ in range(self.take() % 7)])

    cdef object properties(self):
        cdef int i
        cdef uint64_t kinds = self.take() * 0x0101010101010101
        fields = []
        for i in range(self.take() % 15):
            if kinds >> i & 1:
                fields.append(None)
            elif self.take() & 7 == 0:
                fields.append(self.value(29))
            elif i == 1:
                fields.append(self.data())
            elif i == 8 or i == 9:
                fields.append(self.moment())
            elif i == 11:
                fields.append(self.take())
            else:
                fields.append(self.text())
        return AMQPProperties(fields)

    cdef object message(self):
        cdef uint8_t which = self.take()
        if which < 96:
            return self.body(0)
        sections = {}
        if which & 1:
            sections['header'] = self.header()
        if which & 2:
            sections['properties'] = self.properties()
        if which & 4:
            sections['annotations'] = self.pairs(0)
        if which & 8:
            sections['app_properties'] = self.pairs(0)
        if which & 16:
            sections['footer'] = self.value(0)
            sections['delivery_annotations'] = self.pairs(0)
        return stream_message_ctx(self.body(0), **sections)


# --- target ---

cdef int check_buffer(object message, bytes expected, int size) except -1:
    """Encode to a buffer of any size: this gives the same bytes, or an error if it is too small."""
    buffer = bytearray(size)
    ctx = message if type(message) is Message else stream_message_ctx(message)
    try:
        n = encode_amqp(buffer, ctx)
    except RbFlyBufferError:
        return 0
    if buffer[:n] != expected:
        finding(f'encode_amqp writes {bytes(buffer[:n])!r} instead of {expected!r}')
    return 0


cdef api int target(const uint8_t *data, Py_ssize_t size) except -1:
    cdef Source source = Source.__new__(Source)
    cdef bytes encoded
    source.p = data
    source.end = data + size
    source.containers = []
    source.unfinished = []
    source.budget = 300
    try:
        try:
            message = source.message()
        except (AMQPEncoderError, ValueError, TypeError, OverflowError, AttributeError):
            # raised by a constructor
            return 0
        try:
            encoded = encode_amqp_bytes(message)
        except AMQPEncoderError as ex:
            if not ex.args[0]:
                finding('encoder error without a message')
            return 0
        try:
            check_round_trip(decode_amqp(encoded))
        except AMQPDecoderError as ex:
            # a tuple can be a map key in Python, but decodes as a list, which cannot
            if 'map key of unhashable type' not in ex.args[0]:
                raise
        if not source.changing:
            size += len(encoded) - 40 if len(encoded) > 40 else 0
            check_buffer(message, encoded, size)
    finally:
        # break cycles through contexts, which the garbage collector does not track
        for container in source.containers:
            container.clear()
    return 0
