# cython: language_level=3str
"""Values of AMQP 1.0: one Python value to one AMQP value and back (part 1 of the specification)."""

from collections.abc import Mapping
from uuid import UUID

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.datetime cimport datetime, import_datetime
from cpython.dict cimport PyDict_Next
from cpython.exc cimport PyErr_Clear, PyErr_ExceptionMatches
from cpython.list cimport PyList_GET_ITEM, PyList_GET_SIZE, PyList_New, PyList_SET_ITEM
from cpython.object cimport PyObject
from cpython.ref cimport Py_INCREF
from cpython.tuple cimport PyTuple_GET_ITEM, PyTuple_GET_SIZE, PyTuple_New, PyTuple_SET_ITEM
from libc.stdint cimport int8_t, int16_t, int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memcpy, memmove

from rbfly._wire cimport (
    OutBuffer, double_bits, float_bits, load_double, load_float, load_u16, load_u32, load_u64,
    out_reserve, put_bytes, put_u8, put_u16, put_u32, put_u64, store_u32, store_u64,
)
from rbfly.amqp._native cimport (
    RBFLY_CACHE_MAX, rbfly_ascii, rbfly_ascii_data, rbfly_cached_ascii, rbfly_integer,
    rbfly_is_ascii, rbfly_make_integers, rbfly_need, rbfly_small_integer,
)
from rbfly.amqp._types cimport (
    ELEMENT_TYPES, WIRE_CLASSES, AMQPArray, Described, Symbol, clip, copy_buffer, from_milliseconds,
    milliseconds, new_symbol, plain_dict, plain_list, uuid_of,
)

from rbfly.amqp._types import Char, Decimal32, Decimal64, Decimal128, Float32, Timestamp
from rbfly.error import (
    AMQPDecoderError, AMQPEncoderOverflowError, AMQPEncoderTypeError, AMQPEncoderValueError,
)

import_datetime()
rbfly_make_integers()

cdef extern from 'Python.h':
    long long PyLong_AsLongLongAndOverflow(object value, int *overflow) except? -1
    unsigned long long PyLong_AsUnsignedLongLong(object value) except? -1
    object PyLong_FromLong(long value)
    object PyLong_FromLongLong(long long value)
    object PyLong_FromUnsignedLongLong(unsigned long long value)
    object PyFloat_FromDouble(double value)
    double PyFloat_AS_DOUBLE(object value) noexcept
    const char *PyUnicode_AsUTF8AndSize(object value, Py_ssize_t *size) except NULL
    str PyUnicode_DecodeUTF8(const char *p, Py_ssize_t n, const char *errors)
    bint PySequence_Check(object o) noexcept
    # an error stays set, to be looked at
    int PyDict_SetItem(object pairs, object key, object value) noexcept
    Py_ssize_t PyDict_GET_SIZE(PyObject *o) noexcept


# The wide constructor of every assigned one, 0 for the others.
cdef uint8_t[256] WIDE
for _code in range(256):
    WIDE[_code] = 0
for _code in ELEMENT_TYPES:
    WIDE[_code] = _code
WIDE[0x41] = WIDE[0x42] = 0x56
WIDE[0x43] = WIDE[0x52] = 0x70
WIDE[0x44] = WIDE[0x53] = 0x80
WIDE[0x54] = 0x71
WIDE[0x55] = 0x81
WIDE[0xa0] = 0xb0
WIDE[0xa1] = 0xb1
WIDE[0xa3] = 0xb3
WIDE[0x45] = WIDE[0xc0] = 0xd0
WIDE[0xc1] = 0xd1
WIDE[0xe0] = 0xf0

# --- encoding ---

cdef int fail_depth() except -1:
    raise AMQPEncoderValueError(
        f'more than {MAX_DEPTH} values nested, or a value that contains itself'
    )


cdef int fail_size(Py_ssize_t n) except -1:
    raise AMQPEncoderValueError(f'{n} bytes are more than an AMQP value can hold')


cdef int put_wide(OutBuffer *out, uint8_t code8, const void *data, Py_ssize_t n) except -1:
    if n > 0xffffffff:
        fail_size(n)
    out_reserve(out, n + 5)
    put_u8(out, code8 + 0x10)
    put_u32(out, <uint32_t> n)
    put_bytes(out, data, n)
    return 0


cdef inline int put_sized(
    OutBuffer *out, uint8_t code8, const void *data, Py_ssize_t n
) except -1:
    cdef uint8_t *p
    if n > 255:
        return put_wide(out, code8, data, n)
    out_reserve(out, n + 2)
    # a pointer of its own: the compiler must expect that bytes written change `out`
    p = out.p
    p[0] = code8
    p[1] = <uint8_t> n
    memcpy(p + 2, data, <size_t> n)
    out.p = p + 2 + n
    return 0


cdef int put_long_text(OutBuffer *out, object value) except -1:
    cdef Py_ssize_t n = 0
    cdef const char *data
    try:
        data = PyUnicode_AsUTF8AndSize(value, &n)
    except UnicodeEncodeError as ex:
        raise AMQPEncoderValueError(f'a string that UTF-8 cannot write: {ex}') from None
    return put_sized(out, 0xa1, data, n)


cdef inline int encode_text(OutBuffer *out, object value) except -1:
    cdef Py_ssize_t n = 0
    cdef const char *data = NULL
    if rbfly_ascii_data(<PyObject *> value, &data, &n):
        return put_sized(out, 0xa1, data, n)
    return put_long_text(out, value)


cdef int encode_symbol(OutBuffer *out, Symbol value) except -1:
    cdef Py_ssize_t n = 0
    cdef const char *data = NULL
    # None: it was made by Symbol.__new__ alone
    if value.name is None or not rbfly_ascii_data(<PyObject *> value.name, &data, &n):
        raise AMQPEncoderValueError('a symbol without name')
    return put_sized(out, 0xa3, data, n)


cdef inline int put_integer(OutBuffer *out, int64_t v) except -1:
    cdef uint8_t *p
    out_reserve(out, 9)
    p = out.p
    if -128 <= v <= 127:
        p[0] = 0x54
        p[1] = <uint8_t> v
        out.p = p + 2
    elif -0x80000000 <= v <= 0x7fffffff:
        p[0] = 0x71
        store_u32(p + 1, <uint32_t> v)
        out.p = p + 5
    else:
        p[0] = 0x81
        store_u64(p + 1, <uint64_t> v)
        out.p = p + 9
    return 0


cdef uint64_t unsigned(object value, uint64_t limit, str name) except? 0xdead:
    cdef uint64_t v
    try:
        v = PyLong_AsUnsignedLongLong(value)
    except OverflowError:
        v = 0
        limit = 0 if value != 0 else limit
        if limit == 0:
            raise AMQPEncoderOverflowError(f'{clip(value)} is out of the range of {name}') from None
    if v > limit:
        raise AMQPEncoderOverflowError(f'{clip(value)} is out of the range of {name}')
    return v


cdef int put_big_integer(OutBuffer *out, object value) except -1:
    cdef int overflow = 0
    cdef int64_t v = PyLong_AsLongLongAndOverflow(value, &overflow)
    if overflow == 0:
        return put_integer(out, v)
    cdef uint64_t u = unsigned(value, 0xffffffffffffffff, 'long and ulong')
    out_reserve(out, 9)
    put_u8(out, 0x80)
    put_u64(out, u)
    return 0


cdef inline int encode_integer(OutBuffer *out, object value) except -1:
    cdef int64_t v = 0
    if rbfly_small_integer(<PyObject *> value, &v):
        return put_integer(out, v)
    return put_big_integer(out, value)


cdef int encode_ubyte(OutBuffer *out, object value) except -1:
    cdef uint64_t v = unsigned(value, 0xff, 'ubyte')
    out_reserve(out, 2)
    put_u8(out, 0x50)
    put_u8(out, <uint8_t> v)
    return 0


cdef int encode_uint(OutBuffer *out, object value) except -1:
    cdef uint64_t v = unsigned(value, 0xffffffff, 'uint')
    out_reserve(out, 5)
    if v == 0:
        put_u8(out, 0x43)
    elif v <= 255:
        put_u8(out, 0x52)
        put_u8(out, <uint8_t> v)
    else:
        put_u8(out, 0x70)
        put_u32(out, <uint32_t> v)
    return 0


cdef int encode_ulong(OutBuffer *out, object value) except -1:
    cdef uint64_t v = unsigned(value, 0xffffffffffffffff, 'ulong')
    out_reserve(out, 9)
    if v == 0:
        put_u8(out, 0x44)
    elif v <= 255:
        put_u8(out, 0x53)
        put_u8(out, <uint8_t> v)
    else:
        put_u8(out, 0x80)
        put_u64(out, v)
    return 0


cdef int put_double(OutBuffer *out, double v) except -1:
    out_reserve(out, 9)
    put_u8(out, 0x82)
    put_u64(out, double_bits(v))
    return 0


cdef int encode_binary(OutBuffer *out, object value) except -1:
    """Any object with a buffer as binary."""
    cdef Py_buffer view
    if isinstance(value, bytes):
        return put_sized(out, 0xa0, PyBytes_AS_STRING(value), PyBytes_GET_SIZE(value))
    try:
        PyObject_GetBuffer(value, &view, PyBUF_SIMPLE)
    except Exception:
        return encode_binary(out, copy_buffer(value))
    try:
        return put_sized(out, 0xa0, view.buf, view.len)
    finally:
        PyBuffer_Release(&view)


# Lists and maps are written behind the header that their length suggests; it is exchanged for the
# other width when the bytes of the items turn out otherwise.
cdef Py_ssize_t open_compound(OutBuffer *out, Py_ssize_t count) except -1:
    cdef Py_ssize_t width = 3 if count <= 32 else 9
    out_reserve(out, width)
    out.p += width
    return out.p - out.start


cdef int close_compound(
    OutBuffer *out, Py_ssize_t first, Py_ssize_t count, uint8_t code8
) except -1:
    cdef Py_ssize_t n = out.p - out.start - first
    cdef uint8_t *head
    if count <= 32 and n <= 254:
        head = out.start + first - 3
        head[0] = code8
        head[1] = <uint8_t> (n + 1)
        head[2] = <uint8_t> count
        return 0
    return close_wide(out, first, count, code8)


cdef int close_wide(OutBuffer *out, Py_ssize_t first, Py_ssize_t count, uint8_t code8) except -1:
    cdef Py_ssize_t n = out.p - out.start - first
    cdef uint8_t *head
    if n > 0xffffffff - 5:
        fail_size(n)
    if count <= 32:
        out_reserve(out, 6)
        head = out.start + first - 3
        memmove(head + 9, head + 3, <size_t> n)
        out.p += 6
    else:
        head = out.start + first - 9
        if n <= 254 and count <= 255:
            memmove(head + 3, head + 9, <size_t> n)
            head[0] = code8
            head[1] = <uint8_t> (n + 1)
            head[2] = <uint8_t> count
            out.p -= 6
            return 0
    head[0] = code8 + 0x10
    store_u32(head + 1, <uint32_t> (n + 4))
    store_u32(head + 5, <uint32_t> count)
    return 0


cdef int fail_changed() except -1:
    raise AMQPEncoderValueError('a list or dict changed its size while it was encoded')


cdef int put_items(OutBuffer *out, object items, Py_ssize_t count, int depth) except -1:
    """Items of an exact list or tuple; `depth` is that of the items."""
    cdef Py_ssize_t i
    cdef object item
    if type(items) is list:
        for i in range(count):
            # a foreign item may change the list while it is encoded: it is held, and counted
            if i >= PyList_GET_SIZE(items):
                fail_changed()
            item = <object> PyList_GET_ITEM(items, i)
            encode_value(out, item, depth)
        if PyList_GET_SIZE(items) != count:
            fail_changed()
    else:
        for i in range(count):
            encode_value(out, <object> PyTuple_GET_ITEM(items, i), depth)
    return 0


cdef int encode_sequence(OutBuffer *out, object items, int depth) except -1:
    """An exact list or tuple as list."""
    cdef Py_ssize_t count, first
    if type(items) is list:
        count = PyList_GET_SIZE(items)
    else:
        count = PyTuple_GET_SIZE(items)
    if depth >= MAX_DEPTH:
        fail_depth()
    if count == 0:
        out_reserve(out, 1)
        put_u8(out, 0x45)
        return 0
    first = open_compound(out, count)
    put_items(out, items, count, depth + 1)
    return close_compound(out, first, count, 0xc0)


cdef int put_key(OutBuffer *out, object key, int depth, int keys) except -1:
    if keys == KEYS_STRING:
        if not isinstance(key, str) or type(key) is Char:
            raise AMQPEncoderTypeError(f'an application property name is str, not {clip(key)}')
    elif keys == KEYS_ANNOTATION:
        if type(key) is Symbol:
            return encode_symbol(out, key)
        if isinstance(key, str):
            return encode_symbol(out, Symbol(str(key)))
        if isinstance(key, int) and not isinstance(key, bool):
            return encode_ulong(out, key)
        raise AMQPEncoderTypeError(f'an annotation key is Symbol, str or int, not {clip(key)}')
    return encode_value(out, key, depth)


cdef int put_pairs(OutBuffer *out, dict value, int depth, int keys) except -1:
    cdef Py_ssize_t position = 0
    cdef Py_ssize_t count = PyDict_GET_SIZE(<PyObject *> value)
    cdef PyObject *key = NULL
    cdef PyObject *item = NULL
    cdef object held_key, held_item
    while PyDict_Next(value, &position, &key, &item):
        held_key = <object> key
        held_item = <object> item
        if type(held_key) is str and keys != KEYS_ANNOTATION:
            encode_text(out, held_key)
        else:
            put_key(out, held_key, depth, keys)
        encode_value(out, held_item, depth)
        if PyDict_GET_SIZE(<PyObject *> value) != count:
            fail_changed()
    return 0


cdef int encode_map(OutBuffer *out, object value, int depth, int keys) except -1:
    """A dict, or any mapping, as map whose keys are of the kind `keys`."""
    cdef Py_ssize_t count, first
    cdef dict pairs
    if type(value) is dict:
        pairs = value
    else:
        pairs = plain_dict(value)
    count = PyDict_GET_SIZE(<PyObject *> pairs)
    if depth >= MAX_DEPTH:
        fail_depth()
    if count > 0x7fffffff:
        fail_size(count)
    first = open_compound(out, 2 * count)
    put_pairs(out, pairs, depth + 1, keys)
    return close_compound(out, first, 2 * count, 0xc1)


cdef int put_timestamp(OutBuffer *out, object value) except -1:
    """A datetime or Timestamp as timestamp."""
    cdef int64_t ms
    if isinstance(value, datetime):
        ms = milliseconds(value)
    else:
        ms = <int64_t> value
    out_reserve(out, 9)
    put_u8(out, 0x83)
    put_u64(out, <uint64_t> ms)
    return 0


cdef int put_descriptor(OutBuffer *out, object descriptor, int depth) except -1:
    # by custom a number is a ulong, and it is read as int
    if type(descriptor) is int and descriptor >= 0:
        return encode_ulong(out, descriptor)
    return encode_value(out, descriptor, depth)


cdef int encode_described(OutBuffer *out, Described value, int depth) except -1:
    if depth >= MAX_DEPTH:
        fail_depth()
    out_reserve(out, 1)
    put_u8(out, 0x00)
    put_descriptor(out, value.descriptor, depth + 1)
    return encode_value(out, value.value, depth + 1)


cdef int encode_wire_class(OutBuffer *out, object value, int code) except -1:
    """A value of a wrapper class, in the smallest form of its type."""
    cdef int64_t v
    if code == 0x80:
        return encode_ulong(out, value)
    if code == 0x70:
        return encode_uint(out, value)
    if code == 0x81:
        v = <int64_t> value
        if -128 <= v <= 127:
            out_reserve(out, 2)
            put_u8(out, 0x55)
            put_u8(out, <uint8_t> v)
            return 0
    elif code == 0x71:
        return put_integer(out, <int64_t> value)
    out_reserve(out, 1)
    put_u8(out, <uint8_t> code)
    return encode_payload(out, value, code, 0)


cdef int put_uuid(OutBuffer *out, object value) except -1:
    # a subclass gives what it likes
    try:
        data = value.bytes
    except Exception:
        data = None
    if type(data) is not bytes or PyBytes_GET_SIZE(data) != 16:
        raise AMQPEncoderValueError(f'a UUID without its 16 bytes: {clip(value)}')
    put_bytes(out, PyBytes_AS_STRING(data), 16)
    return 0


cdef int fail_element(object value, int code) except -1:
    raise AMQPEncoderTypeError(
        f'an array of {ELEMENT_TYPES[code].__name__} cannot hold {clip(value)}'
    )


cdef int64_t signed_element(object value, int code) except? -1:
    if not isinstance(value, int) or isinstance(value, bool):
        fail_element(value, code)
    cls = Timestamp if code == 0x83 else ELEMENT_TYPES[code]
    if not cls._min <= value <= cls._max:
        raise AMQPEncoderOverflowError(f'{clip(value)} is out of the range of {cls.__name__}')
    return <int64_t> (value if value <= 0x7fffffffffffffff else value - 0x10000000000000000)


cdef int encode_payload(OutBuffer *out, object value, int code, int depth) except -1:
    """What follows the wide constructor `code`: an array element, or a wrapper class's value."""
    cdef int64_t v
    out_reserve(out, 16)
    if code == 0x40:
        if value is not None:
            fail_element(value, code)
    elif code == 0x56:
        if value is not True and value is not False:
            fail_element(value, code)
        put_u8(out, 1 if value is True else 0)
    elif code == 0x50 or code == 0x51:
        put_u8(out, <uint8_t> signed_element(value, code))
    elif code == 0x60 or code == 0x61:
        put_u16(out, <uint16_t> signed_element(value, code))
    elif code == 0x70 or code == 0x71:
        put_u32(out, <uint32_t> signed_element(value, code))
    elif code == 0x80 or code == 0x81:
        put_u64(out, <uint64_t> signed_element(value, code))
    elif code == 0x72:
        if not isinstance(value, float):
            fail_element(value, code)
        put_u32(out, float_bits(PyFloat_AS_DOUBLE(Float32(value))))
    elif code == 0x82:
        if not isinstance(value, float):
            fail_element(value, code)
        put_u64(out, double_bits(PyFloat_AS_DOUBLE(value)))
    elif code == 0x73:
        if not isinstance(value, str):
            fail_element(value, code)
        put_u32(out, <uint32_t> ord(Char(value)))
    elif code == 0x83:
        if isinstance(value, datetime):
            v = milliseconds(value)
        else:
            v = signed_element(value, code)
        put_u64(out, <uint64_t> v)
    elif code == 0x98:
        if not isinstance(value, UUID):
            fail_element(value, code)
        put_uuid(out, value)
    elif code == 0x74 or code == 0x84 or code == 0x94:
        # bytes.__new__ makes one of any length
        if (
            not isinstance(value, ELEMENT_TYPES[code])
            or PyBytes_GET_SIZE(value) != 1 << ((code >> 4) - 5)
        ):
            fail_element(value, code)
        put_bytes(out, PyBytes_AS_STRING(value), PyBytes_GET_SIZE(value))
    elif code == 0xd0 or code == 0xd1 or code == 0xf0:
        encode_wide_compound(out, value, code, depth)
    else:
        encode_wide_text(out, value, code)
    return 0


cdef int encode_wide_text(OutBuffer *out, object value, int code) except -1:
    cdef bytes data
    if code == 0xb0 and isinstance(value, (bytes, bytearray, memoryview)):
        data = bytes(value) if isinstance(value, bytes) else copy_buffer(value)
    elif code == 0xb1 and isinstance(value, str):
        try:
            data = str.encode(value)
        except UnicodeEncodeError as ex:
            raise AMQPEncoderValueError(f'a string that UTF-8 cannot write: {ex}') from None
    elif code == 0xb3 and type(value) is Symbol and (<Symbol> value).name is not None:
        data = (<Symbol> value).name.encode()
    else:
        return fail_element(value, code)
    if len(data) > 0xffffffff:
        fail_size(len(data))
    out_reserve(out, len(data) + 4)
    put_u32(out, <uint32_t> len(data))
    put_bytes(out, PyBytes_AS_STRING(data), len(data))
    return 0


cdef int encode_wide_compound(OutBuffer *out, object value, int code, int depth) except -1:
    """List, map or array as array element: 32-bit size and count, whatever its length."""
    cdef Py_ssize_t first, n, count
    cdef dict pairs
    if depth >= MAX_DEPTH:
        fail_depth()
    out_reserve(out, 8)
    out.p += 8
    first = out.p - out.start
    if code == 0xd0 and isinstance(value, (list, tuple)):
        items = value if type(value) is list or type(value) is tuple else list(value)
        count = len(items)
        put_items(out, items, count, depth + 1)
    elif code == 0xd1 and isinstance(value, Mapping):
        pairs = value if type(value) is dict else plain_dict(value)
        count = 2 * len(pairs)
        put_pairs(out, pairs, depth + 1, KEYS_ANY)
    elif code == 0xf0 and type(value) is AMQPArray:
        count = len((<AMQPArray> value).items)
        put_array_items(out, value, depth)
    else:
        return fail_element(value, code)
    n = out.p - out.start - first
    if n > 0xffffffff - 4:
        fail_size(n)
    store_u32(out.start + first - 8, <uint32_t> (n + 4))
    store_u32(out.start + first - 4, <uint32_t> count)
    return 0


cdef int put_array_items(OutBuffer *out, AMQPArray value, int depth) except -1:
    """Element constructor and elements; `depth` is that of the array."""
    cdef int level = depth + 1
    if value._code == 0x40 and len(value.items) > MAX_ZERO_WIDTH:
        raise AMQPEncoderValueError(f'an array of more than {MAX_ZERO_WIDTH} nulls')
    for descriptor in value.descriptors:
        if level >= MAX_DEPTH:
            fail_depth()
        out_reserve(out, 1)
        put_u8(out, 0x00)
        level += 1
        put_descriptor(out, descriptor, level)
    out_reserve(out, 1)
    put_u8(out, <uint8_t> value._code)
    for item in value.items:
        encode_payload(out, item, value._code, level)
    return 0


cdef int encode_array(OutBuffer *out, AMQPArray value, int depth) except -1:
    cdef Py_ssize_t count = len(value.items)
    cdef Py_ssize_t first
    if depth >= MAX_DEPTH:
        fail_depth()
    first = open_compound(out, count)
    put_array_items(out, value, depth)
    return close_compound(out, first, count, 0xe0)


cdef int encode_other(OutBuffer *out, object value, int depth) except -1:
    """Whatever is not one of the types that most values are."""
    kind = type(value)
    if kind is tuple:
        return encode_sequence(out, value, depth)
    if kind is Symbol:
        return encode_symbol(out, value)
    if isinstance(value, datetime):
        return put_timestamp(out, value)
    if isinstance(value, UUID):
        out_reserve(out, 17)
        put_u8(out, 0x98)
        return put_uuid(out, value)
    if kind is Described:
        return encode_described(out, value, depth)
    if kind is AMQPArray:
        return encode_array(out, value, depth)
    for base in kind.__mro__:
        code = WIRE_CLASSES.get(base)
        if code is not None:
            return encode_wire_class(out, value, code)
    if isinstance(value, str):
        return encode_text(out, value)
    if isinstance(value, int):
        return encode_integer(out, value)
    if isinstance(value, float):
        return put_double(out, PyFloat_AS_DOUBLE(value))
    if isinstance(value, (bytes, bytearray, memoryview)):
        return encode_binary(out, value)
    if isinstance(value, Mapping):
        return encode_map(out, value, depth, KEYS_ANY)
    if PySequence_Check(value) and not isinstance(value, type):
        if depth >= MAX_DEPTH:
            fail_depth()
        return encode_sequence(out, plain_list(value), depth)
    raise AMQPEncoderTypeError(f'AMQP 1.0 has no type for {kind.__name__}: {clip(value)}')


cdef int encode_value(OutBuffer *out, object value, int depth) except -1:
    """Append one value.  `depth` is the number of compounds and described values around it."""
    if type(value) is str:
        return encode_text(out, value)
    if type(value) is int:
        return encode_integer(out, value)
    if type(value) is bytes:
        return put_sized(out, 0xa0, PyBytes_AS_STRING(value), PyBytes_GET_SIZE(value))
    if type(value) is list:
        return encode_sequence(out, value, depth)
    if type(value) is dict:
        return encode_map(out, value, depth, KEYS_ANY)
    if value is None or value is True or value is False:
        out_reserve(out, 1)
        put_u8(out, 0x40 if value is None else (0x41 if value is True else 0x42))
        return 0
    if type(value) is float:
        return put_double(out, PyFloat_AS_DOUBLE(value))
    return encode_other(out, value, depth)


# --- decoding ---

cdef object decode_error(Cursor *c, const uint8_t *at, str problem):
    position = at - c.start
    raise AMQPDecoderError(f'{problem} at byte {position}', position)


cdef object fail_end(Cursor *c):
    return decode_error(c, c.p, 'the bytes end where a value must begin')


cdef inline object take_value(Cursor *c, int depth):
    cdef const uint8_t *p = c.p
    if p >= c.end:
        return fail_end(c)
    c.p = p + 1
    return decode_payload(c, p[0], depth)


cdef object fail_short(Cursor *c, const uint8_t *at, uint8_t code):
    return decode_error(c, at, f'constructor 0x{code:02x} needs more bytes than there are')


cdef object fail_depth_at(Cursor *c, const uint8_t *at):
    return decode_error(c, at, f'more than {MAX_DEPTH} values nested')


cdef object decode_text(Cursor *c, const uint8_t *at, const uint8_t *p, Py_ssize_t n):
    if rbfly_is_ascii(p, n):
        return rbfly_ascii(p, n)
    try:
        return PyUnicode_DecodeUTF8(<const char *> p, n, NULL)
    except UnicodeDecodeError as ex:
        problem = f'a string that is not UTF-8 ({ex.reason})'
    return decode_error(c, at, problem)


cdef object decode_symbol(Cursor *c, const uint8_t *at, const uint8_t *p, Py_ssize_t n):
    name = None
    if n <= RBFLY_CACHE_MAX:
        name = rbfly_cached_ascii(p, n)
    elif rbfly_is_ascii(p, n):
        name = rbfly_ascii(p, n)
    if name is None:
        return decode_error(c, at, 'a symbol that is not ASCII')
    return new_symbol(name)


cdef object decode_described(Cursor *c, const uint8_t *at, int depth):
    cdef Described value
    if depth >= MAX_DEPTH:
        return fail_depth_at(c, at)
    value = Described.__new__(Described)
    value.descriptor = decode_value(c, depth + 1)
    value.value = decode_value(c, depth + 1)
    return value


cdef object decode_list(Cursor *c, const uint8_t *at, Py_ssize_t size, Py_ssize_t count, int depth):
    """Items of a list; the cursor is behind the count, `size` is what the items have."""
    cdef const uint8_t *outer = c.end
    cdef const uint8_t *end = c.p + size
    cdef Py_ssize_t i
    cdef list items
    if depth >= MAX_DEPTH:
        return fail_depth_at(c, at)
    # an item has a byte at least: no list is larger than its bytes justify
    if count > size:
        return decode_error(c, at, f'a list of {count} items in {size} bytes')
    items = PyList_New(count)
    for i in range(count):
        # each item leaves one byte to every item behind it, so that nested counts add up
        c.end = end - (count - 1 - i)
        item = take_value(c, depth + 1)
        Py_INCREF(item)
        PyList_SET_ITEM(items, i, item)
    if c.p != end:
        return decode_error(c, at, f'a list whose {count} items do not fill its {size} bytes')
    c.end = outer
    return items


cdef int keep_error() except -1:
    # an error is set already, e.g. MemoryError
    return -1


cdef object fail_key(Cursor *c, const uint8_t *at, object key):
    if not PyErr_ExceptionMatches(TypeError):
        keep_error()
    PyErr_Clear()
    return decode_error(c, at, f'a map key that cannot be one in Python ({type(key).__name__})')


cdef object decode_map(Cursor *c, const uint8_t *at, Py_ssize_t size, Py_ssize_t count, int depth):
    cdef const uint8_t *outer = c.end
    cdef const uint8_t *end = c.p + size
    cdef const uint8_t *p
    cdef Py_ssize_t _i
    cdef dict pairs
    if depth >= MAX_DEPTH:
        return fail_depth_at(c, at)
    if count & 1:
        return decode_error(c, at, f'a map of {count} keys and values')
    if count > size:
        return decode_error(c, at, f'a map of {count} keys and values in {size} bytes')
    c.end = end
    pairs = {}
    for _i in range(count >> 1):
        p = c.p
        key = None
        if end - p > 2 and p[0] == 0xa1 and p[1] <= RBFLY_CACHE_MAX and p[1] <= end - p - 2:
            key = rbfly_cached_ascii(p + 2, p[1])
        if key is not None:
            c.p = p + 2 + p[1]
        else:
            key = take_value(c, depth + 1)
        value = take_value(c, depth + 1)
        if PyDict_SetItem(pairs, key, value) < 0:
            return fail_key(c, p, key)
    if c.p != end:
        return decode_error(c, at, f'a map whose {count} items do not fill its {size} bytes')
    c.end = outer
    return pairs


cdef object decode_array(
    Cursor *c, const uint8_t *at, Py_ssize_t size, Py_ssize_t count, int depth
):
    """Constructor and elements of an array; the cursor is behind the count."""
    cdef const uint8_t *outer = c.end
    cdef const uint8_t *end = c.p + size
    cdef Py_ssize_t i, need
    cdef uint8_t code
    cdef AMQPArray array
    cdef tuple items
    cdef list descriptors = []
    if depth >= MAX_DEPTH:
        return fail_depth_at(c, at)
    c.end = end
    depth += 1
    while c.p < end and c.p[0] == 0x00:
        if depth >= MAX_DEPTH:
            return fail_depth_at(c, c.p)
        c.p += 1
        depth += 1
        descriptors.append(decode_value(c, depth))
    if c.p >= end:
        return decode_error(c, at, 'an array without element constructor')
    code = c.p[0]
    if WIDE[code] == 0:
        return decode_error(c, c.p, f'unknown constructor 0x{code:02x} of array elements')
    c.p += 1
    need = rbfly_need[code >> 4]
    if need == 0:
        if count > c.zero_width:
            return decode_error(c, at, f'an array of {count} elements without bytes')
        c.zero_width -= count
    elif count > (end - c.p) // need:
        return decode_error(c, at, f'an array of {count} elements in {end - c.p} bytes')
    items = PyTuple_New(count)
    for i in range(count):
        c.end = end - (count - 1 - i) * need
        item = decode_payload(c, code, depth)
        Py_INCREF(item)
        PyTuple_SET_ITEM(items, i, item)
    if c.p != end:
        return decode_error(c, at, f'an array whose {count} elements do not fill its {size} bytes')
    c.end = outer
    array = AMQPArray.__new__(AMQPArray)
    array._code = WIDE[code]
    array.element_type = ELEMENT_TYPES[WIDE[code]]
    array.items = items
    array.descriptors = tuple(descriptors)
    return array


cdef object decode_sized(Cursor *c, const uint8_t *at, uint8_t code, int depth):
    """Values with a size of 32 bits or with a rare type."""
    cdef const uint8_t *p = c.p
    cdef Py_ssize_t left = c.end - p
    cdef Py_ssize_t size, count
    if code == 0xb0 or code == 0xb1 or code == 0xb3:
        size = load_u32(p)
        if size > left - 4:
            return fail_short(c, at, code)
        c.p = p + 4 + size
        if code == 0xb0:
            return PyBytes_FromStringAndSize(<const char *> p + 4, size)
        if code == 0xb1:
            return decode_text(c, at, p + 4, size)
        return decode_symbol(c, at, p + 4, size)
    if code == 0xe0:
        size = p[0]
        if size < 2:
            return decode_error(c, at, f'an array of size {size}')
        if size > left - 1:
            return fail_short(c, at, code)
        c.p = p + 2
        return decode_array(c, at, size - 1, p[1], depth)
    # d0, d1, f0
    size = load_u32(p)
    count = load_u32(p + 4)
    if size < 4:
        return decode_error(c, at, f'constructor 0x{code:02x} with size {size}')
    if size > left - 4:
        return fail_short(c, at, code)
    c.p = p + 8
    if code == 0xd0:
        return decode_list(c, at, size - 4, count, depth)
    if code == 0xd1:
        return decode_map(c, at, size - 4, count, depth)
    return decode_array(c, at, size - 4, count, depth)


cdef object decode_char(Cursor *c, const uint8_t *at, uint32_t point):
    if point > 0x10ffff or 0xd800 <= point <= 0xdfff:
        return decode_error(c, at, f'a char that is no Unicode scalar value (0x{point:x})')
    return Char(chr(point))


cdef object decode_payload(Cursor *c, uint8_t code, int depth):
    """The value behind constructor `code`; the cursor is behind the constructor."""
    cdef const uint8_t *p = c.p
    cdef const uint8_t *at = p - 1
    cdef Py_ssize_t left = c.end - p
    cdef Py_ssize_t n
    if left < rbfly_need[code >> 4]:
        return fail_short(c, at, code)
    if code == 0xa1:
        n = p[0]
        if n > left - 1:
            return fail_short(c, at, code)
        c.p = p + 1 + n
        return decode_text(c, at, p + 1, n)
    elif code == 0x54 or code == 0x55 or code == 0x51:
        c.p = p + 1
        return rbfly_integer(<int8_t> p[0])
    elif code == 0x71:
        c.p = p + 4
        return PyLong_FromLong(<int32_t> load_u32(p))
    elif code == 0x81:
        c.p = p + 8
        return PyLong_FromLongLong(<int64_t> load_u64(p))
    elif code == 0xa0:
        n = p[0]
        if n > left - 1:
            return fail_short(c, at, code)
        c.p = p + 1 + n
        return PyBytes_FromStringAndSize(<const char *> p + 1, n)
    elif code == 0xc0:
        n = p[0]
        if n < 1:
            return decode_error(c, at, 'a list of size 0')
        if n > left - 1:
            return fail_short(c, at, code)
        c.p = p + 2
        return decode_list(c, at, n - 1, p[1], depth)
    elif code == 0xc1:
        n = p[0]
        if n < 1:
            return decode_error(c, at, 'a map of size 0')
        if n > left - 1:
            return fail_short(c, at, code)
        c.p = p + 2
        return decode_map(c, at, n - 1, p[1], depth)
    elif code == 0x40:
        return None
    elif code == 0x41:
        return True
    elif code == 0x42:
        return False
    elif code == 0x45:
        if depth >= MAX_DEPTH:
            return fail_depth_at(c, at)
        return []
    elif code == 0x82:
        c.p = p + 8
        return PyFloat_FromDouble(load_double(p))
    elif code == 0x43 or code == 0x44:
        return 0
    elif code == 0x50 or code == 0x52 or code == 0x53:
        c.p = p + 1
        return rbfly_integer(p[0])
    elif code == 0x56:
        if p[0] > 1:
            return decode_error(c, at, f'a boolean of 0x{p[0]:02x}')
        c.p = p + 1
        return p[0] == 1
    elif code == 0x60:
        c.p = p + 2
        return PyLong_FromLong(load_u16(p))
    elif code == 0x61:
        c.p = p + 2
        return PyLong_FromLong(<int16_t> load_u16(p))
    elif code == 0x70:
        c.p = p + 4
        return PyLong_FromUnsignedLongLong(load_u32(p))
    elif code == 0x80:
        c.p = p + 8
        return PyLong_FromUnsignedLongLong(load_u64(p))
    elif code == 0x72:
        c.p = p + 4
        return PyFloat_FromDouble(load_float(p))
    elif code == 0x83:
        c.p = p + 8
        return from_milliseconds(<int64_t> load_u64(p))
    elif code == 0x98:
        c.p = p + 16
        return uuid_of(p)
    elif code == 0xa3:
        n = p[0]
        if n > left - 1:
            return fail_short(c, at, code)
        c.p = p + 1 + n
        return decode_symbol(c, at, p + 1, n)
    elif code == 0x73:
        c.p = p + 4
        return decode_char(c, at, load_u32(p))
    elif code == 0x74:
        c.p = p + 4
        return Decimal32(PyBytes_FromStringAndSize(<const char *> p, 4))
    elif code == 0x84:
        c.p = p + 8
        return Decimal64(PyBytes_FromStringAndSize(<const char *> p, 8))
    elif code == 0x94:
        c.p = p + 16
        return Decimal128(PyBytes_FromStringAndSize(<const char *> p, 16))
    elif code == 0x00:
        return decode_described(c, at, depth)
    elif (
        code == 0xb0 or code == 0xb1 or code == 0xb3 or code == 0xd0 or code == 0xd1
        or code == 0xe0 or code == 0xf0
    ):
        return decode_sized(c, at, code, depth)
    return decode_error(c, at, f'unknown constructor 0x{code:02x}')


cdef object decode_value(Cursor *c, int depth):
    """Take one value.  `depth` is the number of compounds and described values around it."""
    return take_value(c, depth)
