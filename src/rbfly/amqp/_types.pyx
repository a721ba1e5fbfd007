"""Python classes for the AMQP 1.0 types that Python lacks, and conversions of Python's own types.

The encoding of constructors is not defined here.
"""

import struct
from functools import partial
from itertools import islice

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.object cimport PyObject
from cpython.pycapsule cimport PyCapsule_Import
from libc.stdint cimport int64_t, uint8_t

from rbfly._wire cimport load_u64
from rbfly.amqp cimport _constructors as codes

from rbfly.checks import number_text
from rbfly.error import (
    AMQPEncoderOverflowError, AMQPEncoderTypeError, AMQPEncoderValueError,
)

SAME_HASH = MAX_SAME_HASH   # for Python

# Not `cpython.datetime`, which imports the module at once.
cdef extern from 'datetime.h':
    ctypedef struct PyDateTime_CAPI:
        PyObject *DateTimeType
        PyObject *TimeZone_UTC
        object DateTime_FromDateAndTime(
            int, int, int, int, int, int, int, PyObject *zone, PyObject *type
        )
    PyDateTime_CAPI *PyDateTimeAPI
    bint PyDateTime_Check(object value) noexcept
    bint PyDateTime_CheckExact(object value) noexcept
    bint PyDelta_Check(object value) noexcept
    int PyDateTime_GET_YEAR(object value) noexcept
    int PyDateTime_GET_MONTH(object value) noexcept
    int PyDateTime_GET_DAY(object value) noexcept
    int PyDateTime_DATE_GET_HOUR(object value) noexcept
    int PyDateTime_DATE_GET_MINUTE(object value) noexcept
    int PyDateTime_DATE_GET_SECOND(object value) noexcept
    int PyDateTime_DATE_GET_MICROSECOND(object value) noexcept
    PyObject *PyDateTime_DATE_GET_TZINFO(object value) noexcept     # borrowed
    int PyDateTime_DELTA_GET_DAYS(object value) noexcept
    int PyDateTime_DELTA_GET_SECONDS(object value) noexcept
    int PyDateTime_DELTA_GET_MICROSECONDS(object value) noexcept

cdef extern from 'Python.h':
    object PyLong_FromUnsignedLongLong(unsigned long long value)
    int PyObject_GenericSetAttr(object o, object name, object value) except -1
    str PyUnicode_FromObject(object value)


@cython.final
cdef class Symbol:
    """AMQP symbol: an ASCII name from a constrained domain (part 1, section 1.6.21).

    A symbol is not a string: ``Symbol('a') != 'a'``.  Raises AMQPEncoderValueError for a name
    that is not ASCII.  Only a received symbol may have one: its bytes, decoded as UTF-8 with the
    error handler `surrogateescape`.

    :param name: the name (str).
    """

    def __init__(self, name):
        cdef str text
        if not isinstance(name, str):
            raise AMQPEncoderTypeError(f'a symbol name must be str, not {type(name).__name__}')
        text = plain_text(name)
        if not text.isascii():
            raise AMQPEncoderValueError(f'a symbol name must be ASCII, not {clip(name)}')
        set_name(self, text)

    def __str__(self):
        return self.name

    def __repr__(self):
        return f'Symbol({self.name!r})'

    def __eq__(self, other):
        if type(other) is not Symbol:
            return NotImplemented
        return self is other or self.name == (<Symbol> other).name

    def __hash__(self):
        return self._hash

    def __reduce__(self):
        if self.name is None or self.name.isascii():
            return Symbol, (self.name,)
        return received_symbol, (self.name,)

    def __copy__(self):
        return self

    def __deepcopy__(self, memo):
        return self


def received_symbol(str name not None):
    return new_symbol(name)


@cython.final
@cython.trashcan(True)      # deallocation must not recurse when nested a million deep
cdef class Described:
    """A value with a descriptor that defines its meaning (part 1, section 1.2).

    :param descriptor: any AMQP value; by convention a :class:`Symbol`, or an int, which is encoded
        as ulong.
    :param value: any AMQP value.
    """

    def __init__(self, descriptor, value):
        self.descriptor = descriptor
        self.value = value

    def __repr__(self):
        return f'Described({self.descriptor!r}, {self.value!r})'

    def __eq__(self, other):
        if type(other) is not Described:
            return NotImplemented
        return (
            self.descriptor == (<Described> other).descriptor
            and self.value == (<Described> other).value
        )

    def __hash__(self):
        return hash((self.descriptor, self.value))

    def __reduce__(self):
        return Described, (self.descriptor, self.value)


@cython.final
cdef class AMQPArray:
    """Array: values that share one type and one constructor (part 1, section 1.6.24).

    An immutable sequence.  Raises AMQPEncoderTypeError for a type that is not allowed in arrays.

    :param element_type: type of the elements: ``type(None)``, bool, one of the integer classes of
        :mod:`rbfly.types`, int (as :class:`Long`), Float32, float, Char, datetime, Timestamp, UUID,
        bytes, str, Symbol, Decimal32, Decimal64, Decimal128, list, dict or AMQPArray.
    :param items: the elements (iterable).
    :param descriptors: descriptors of the elements, outermost first (iterable); usually none or
        one.
    """

    def __init__(self, type element_type not None, items=(), *, descriptors=()):
        code = ELEMENT_CODES.get(element_type)
        if code is None and element_type is datetime_class():
            code = codes.TIMESTAMP
        if code is None and element_type is uuid_class():
            code = codes.UUID
        if code is None:
            raise AMQPEncoderTypeError(
                f'{element_type.__name__} is not allowed as element type of an array'
            )
        self.element_type = element_class(code)
        self._code = code
        self.items = tuple(items)
        self.descriptors = tuple(descriptors)

    def __len__(self):
        return len(self.items)

    def __getitem__(self, index):
        return self.items[index]

    def __iter__(self):
        return iter(self.items)

    def __repr__(self):
        described = f', descriptors={self.descriptors!r}' if self.descriptors else ''
        return f'AMQPArray({self.element_type.__name__}, {list(self.items)!r}{described})'

    def __eq__(self, other):
        if type(other) is not AMQPArray:
            return NotImplemented
        return (
            self._code == (<AMQPArray> other)._code
            and self.items == (<AMQPArray> other).items
            and self.descriptors == (<AMQPArray> other).descriptors
        )

    def __hash__(self):
        return hash((self._code, self.items, self.descriptors))

    def __reduce__(self):
        return partial(AMQPArray, descriptors=self.descriptors), (self.element_type, self.items)


cdef str clip(object value):
    try:
        text = repr(value)
    except Exception:
        text = f'<{type(value).__name__}>'
    return text if len(text) <= 40 else text[:37] + '...'


class _Integer(int):
    __slots__ = ()
    _min, _max = 0, 0

    def __new__(cls, value=0, /):
        self = int.__new__(cls, value)
        if not cls._min <= self <= cls._max:
            raise AMQPEncoderOverflowError(
                f'{cls.__name__} must be from {cls._min} to {cls._max},'
                f' not {number_text(self)[:40]}'
            )
        return self

    def __repr__(self):
        return f'{type(self).__name__}({int.__repr__(self)})'

    def __str__(self):
        return int.__repr__(self)


def new_class(base, name, meaning, **attributes):
    """Create a class that differs from others only in its limits."""
    doc = f'AMQP {name.lower()}: {meaning}.'
    return type(
        name, (base,), {'__module__': __name__, '__doc__': doc, '__slots__': (), **attributes}
    )


UByte = new_class(_Integer, 'UByte', 'an integer from 0 to 255', _max=0xff)
UShort = new_class(_Integer, 'UShort', 'an integer from 0 to 65,535', _max=0xffff)
UInt = new_class(_Integer, 'UInt', 'an integer from 0 to 2**32 - 1', _max=2**32 - 1)
ULong = new_class(_Integer, 'ULong', 'an integer from 0 to 2**64 - 1', _max=2**64 - 1)
Byte = new_class(_Integer, 'Byte', 'an integer from -128 to 127', _min=-0x80, _max=0x7f)
Short = new_class(
    _Integer, 'Short', 'an integer from -32,768 to 32,767', _min=-0x8000, _max=0x7fff
)
Int = new_class(
    _Integer, 'Int', 'an integer from -2**31 to 2**31 - 1', _min=-2**31, _max=2**31 - 1
)
Long = new_class(
    _Integer, 'Long', 'an integer from -2**63 to 2**63 - 1', _min=-2**63, _max=2**63 - 1
)


class Timestamp(_Integer):
    """AMQP timestamp as an integer: milliseconds since 1970 UTC, -2**63 to 2**63 - 1.

    Timestamps in the years 1 to 9999 are decoded as aware datetimes in UTC, others as this class.
    A datetime is encoded as a timestamp: a naive one is taken as UTC, and microseconds are rounded
    down to milliseconds.
    """

    __slots__ = ()
    _min, _max = -0x8000000000000000, 0x7fffffffffffffff


class Float32(float):
    """AMQP float: a 32-bit number, rounded on creation.  It is decoded as float."""

    __slots__ = ()

    def __new__(cls, value=0.0, /):
        try:
            number = float(value)
            rounded = struct.unpack('>f', struct.pack('>f', number))[0]
        except OverflowError:
            raise AMQPEncoderOverflowError(f'{clip(value)} is out of range for Float32') from None
        return float.__new__(cls, rounded)

    def __repr__(self):
        return f'{type(self).__name__}({float.__repr__(self)})'

    def __str__(self):
        return float.__repr__(self)


class Char(str):
    """AMQP char: one Unicode scalar value."""

    __slots__ = ()

    def __new__(cls, value, /):
        self = str.__new__(cls, value)
        if len(self) != 1 or 0xd800 <= ord(self) <= 0xdfff:
            raise AMQPEncoderValueError(f'Char must be one Unicode scalar value, not {clip(value)}')
        return self

    def __repr__(self):
        return f'{type(self).__name__}({str.__repr__(self)})'


class _Decimal(bytes):
    __slots__ = ()
    _size = 0

    def __new__(cls, value, /):
        if not isinstance(value, (bytes, bytearray, memoryview)):
            raise AMQPEncoderTypeError(f'{cls.__name__} must be created from bytes')
        self = bytes.__new__(cls, value)
        if len(self) != cls._size:
            raise AMQPEncoderValueError(f'{cls.__name__} needs {cls._size} bytes, not {len(self)}')
        return self

    def __repr__(self):
        return f'{type(self).__name__}({bytes.__repr__(self)})'


Decimal32, Decimal64, Decimal128 = [
    new_class(
        _Decimal, f'Decimal{8 * size}',
        f'the {size} bytes of an IEEE 754 decimal{8 * size}, not interpreted', _size=size,
    )
    for size in (4, 8, 16)
]

# Python class of each wire type by its wide constructor, and the reverse.
cdef dict ELEMENT_TYPES = {
    codes.NULL: type(None),
    codes.BOOLEAN: bool,
    codes.UBYTE: UByte,
    codes.USHORT: UShort,
    codes.UINT: UInt,
    codes.ULONG: ULong,
    codes.BYTE: Byte,
    codes.SHORT: Short,
    codes.INT: Int,
    codes.LONG: Long,
    codes.FLOAT: Float32,
    codes.DOUBLE: float,
    codes.CHAR: Char,
    codes.TIMESTAMP: Timestamp,         # datetime, once `datetime_class` has imported it
    codes.VBIN32: bytes,
    codes.STR32: str,
    codes.SYM32: Symbol,
    codes.DECIMAL32: Decimal32,
    codes.DECIMAL64: Decimal64,
    codes.DECIMAL128: Decimal128,
    codes.LIST32: list,
    codes.MAP32: dict,
    codes.ARRAY32: AMQPArray,
}
cdef dict ELEMENT_CODES = {t: code for code, t in ELEMENT_TYPES.items()}
ELEMENT_CODES.update({int: codes.LONG, tuple: codes.LIST32})

# Classes that are not encoded like the Python type they inherit from.
cdef dict WIRE_CLASSES = {
    t: code for t, code in ELEMENT_CODES.items()
    if issubclass(t, (_Integer, Float32, Char, _Decimal))
}
DECIMALS = (Decimal32, Decimal64, Decimal128)

cdef tuple TEXT_CLASSES = (str, bytes, bytearray, memoryview)
DATETIME = None
UUID = None
cdef object UNKNOWN = None


# Imported when first used: a program that starts often pays only for what it uses.

cdef object datetime_class():
    global DATETIME, PyDateTimeAPI
    if DATETIME is None:
        import datetime
        PyDateTimeAPI = <PyDateTime_CAPI *> PyCapsule_Import('datetime.datetime_CAPI', 0)
        ELEMENT_TYPES[codes.TIMESTAMP] = datetime.datetime
        DATETIME = datetime.datetime
    return DATETIME


cdef bint is_datetime(object value) except -1:
    if DATETIME is None:
        datetime_class()
    return PyDateTime_Check(value)


cdef object element_class(int code):
    if code == codes.TIMESTAMP:
        return datetime_class()
    return uuid_class() if code == codes.UUID else ELEMENT_TYPES[code]


cdef object uuid_class():
    global UUID, UNKNOWN
    if UUID is None:
        import uuid
        UNKNOWN = uuid.SafeUUID.unknown
        ELEMENT_TYPES[codes.UUID] = uuid.UUID
        ELEMENT_CODES[uuid.UUID] = codes.UUID
        UUID = uuid.UUID
    return UUID


# --- conversions ---

cdef str plain_text(object value):
    # the contents of a subclass, not its __str__: an Enum's returns its name
    return PyUnicode_FromObject(value)


cdef bytes plain_bytes(object value):
    if isinstance(value, bytes):
        return PyBytes_FromStringAndSize(PyBytes_AS_STRING(value), PyBytes_GET_SIZE(value))
    return copy_buffer(value)


cdef bytes copy_buffer(object value):
    try:
        return memoryview(value).tobytes()
    except Exception as ex:
        raise AMQPEncoderValueError(f'cannot read a buffer: {ex}') from ex


cdef dict plain_dict(object value):
    cdef dict pairs
    cdef list keys
    try:
        keys = [key for key in value]       # without asking for its length
        pairs = {key: value[key] for key in keys}
        if len(pairs) != len(keys):
            raise ValueError('a key occurs more than once')
        return pairs
    except Exception as ex:
        raise AMQPEncoderValueError(f'cannot read a mapping: {clip(ex)}') from ex


cdef list plain_list(object value):
    # a proxy of a string has its class and items; a table has the length of its rows, but iterating
    # over it returns its columns
    if isinstance(value, TEXT_CLASSES) or hasattr(value, 'columns'):
        raise AMQPEncoderTypeError(
            f'AMQP 1.0 has no type for {type(value).__name__}: {clip(value)}'
        )
    cdef Py_ssize_t n
    cdef list items
    try:
        # not by index, which may not be the position, and not further than the length
        n = len(value)
        if n > MAX_ITEMS:
            raise ValueError(f'{n} items are too many')
        items = list(islice(value, n))
        if len(items) != n:
            raise ValueError(f'its length is {n}, but it has {len(items)} items')
        return items
    except Exception as ex:
        raise AMQPEncoderValueError(f'cannot read a sequence: {clip(ex)}') from ex


cdef int64_t microseconds(object delta) except? -1:
    """Convert a UTC offset; a tzinfo or datetime subclass may return anything."""
    cdef int days
    cdef int64_t total
    if not PyDelta_Check(delta):
        raise TypeError(f'the UTC offset must be timedelta, not {type(delta).__name__}')
    days = PyDateTime_DELTA_GET_DAYS(delta)
    if -1 <= days <= 0:         # seconds and microseconds are never negative
        total = <int64_t> days * 86400 + PyDateTime_DELTA_GET_SECONDS(delta)
        total = total * 1000000 + PyDateTime_DELTA_GET_MICROSECONDS(delta)
        if total > -86400000000:
            return total
    raise ValueError(f'the UTC offset {delta} is a day or more')


cdef int check_moment(object value) except -1:
    """Refuse an instance of a subclass that stores its time elsewhere, such as pandas.NaT."""
    cdef tuple stored = (
        PyDateTime_GET_YEAR(value), PyDateTime_GET_MONTH(value), PyDateTime_GET_DAY(value),
        PyDateTime_DATE_GET_HOUR(value), PyDateTime_DATE_GET_MINUTE(value),
        PyDateTime_DATE_GET_SECOND(value), PyDateTime_DATE_GET_MICROSECOND(value),
    )
    try:
        shown = (
            value.year, value.month, value.day, value.hour, value.minute, value.second,
            value.microsecond,
        )
    except Exception as ex:
        raise AMQPEncoderValueError(f'cannot read a time: {clip(ex)}') from ex
    if stored != shown:
        raise AMQPEncoderValueError(
            f'cannot encode {clip(value)}: its fields are not those of a datetime'
        )
    return 0


cdef int64_t milliseconds(object value) except? -1:
    """Convert a datetime to milliseconds since 1970 UTC, rounded down; a naive one is in UTC."""
    if not PyDateTime_CheckExact(value):
        check_moment(value)
    cdef int64_t year = PyDateTime_GET_YEAR(value), month = PyDateTime_GET_MONTH(value)
    cdef int64_t era, days, seconds, offset = 0
    # days of the proleptic Gregorian calendar, with years that begin in March
    if month <= 2:
        year -= 1
        month += 12
    era = year // 400
    days = (
        era * 146097 + (year - era * 400) * 365 + (year - era * 400) // 4
        - (year - era * 400) // 100 + (153 * (month - 3) + 2) // 5
        + PyDateTime_GET_DAY(value) - 1 - 719468
    )
    if <object> PyDateTime_DATE_GET_TZINFO(value) is not None:
        try:
            delta = value.utcoffset()
            if delta is not None:
                offset = microseconds(delta)
        except Exception as ex:
            raise AMQPEncoderValueError(f'cannot read a UTC offset: {clip(ex)}') from ex
    seconds = (days * 24 + PyDateTime_DATE_GET_HOUR(value)) * 60 + PyDateTime_DATE_GET_MINUTE(value)
    seconds = seconds * 60 + PyDateTime_DATE_GET_SECOND(value)
    cdef int64_t micros = seconds * 1000000 + PyDateTime_DATE_GET_MICROSECOND(value) - offset
    if micros >= 0:
        return micros // 1000
    return -((999 - micros) // 1000)


cdef object from_milliseconds(int64_t ms):
    cdef int64_t days, seconds, era, day, year, month
    if not -62135596800000 <= ms <= 253402300799999:
        return Timestamp(ms)
    if DATETIME is None:
        datetime_class()
    # the inverse of milliseconds(); first shift all quantities to be positive
    ms += 62135596800000
    days = ms // 86400000 + 306
    ms = ms % 86400000
    era = days // 146097
    day = days - era * 146097
    year = (day - day // 1460 + day // 36524 - day // 146096) // 365
    day -= 365 * year + year // 4 - year // 100
    month = (5 * day + 2) // 153
    day = day - (153 * month + 2) // 5 + 1
    year += era * 400
    month += 3
    if month > 12:
        month -= 12
        year += 1
    seconds = ms // 1000
    return PyDateTimeAPI.DateTime_FromDateAndTime(
        <int> year, <int> month, <int> day, <int> (seconds // 3600), <int> (seconds // 60 % 60),
        <int> (seconds % 60), <int> (ms % 1000 * 1000), PyDateTimeAPI.TimeZone_UTC,
        PyDateTimeAPI.DateTimeType,
    )


cdef object uuid_of(const uint8_t *p):
    # like UUID(bytes=...), but without checking its other arguments
    cls = uuid_class() if UUID is None else UUID
    value = cls.__new__(cls)
    PyObject_GenericSetAttr(
        value, 'int',
        (PyLong_FromUnsignedLongLong(load_u64(p)) << 64)
        | PyLong_FromUnsignedLongLong(load_u64(p + 8)),
    )
    PyObject_GenericSetAttr(value, 'is_safe', UNKNOWN)
    return value
