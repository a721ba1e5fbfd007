"""Encode single Python values as AMQP values (part 1 of the specification)."""

from collections.abc import Mapping
from enum import Enum

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from cpython.dict cimport PyDict_Next
from cpython.list cimport PyList_GET_ITEM, PyList_GET_SIZE
from cpython.object cimport PyObject
from cpython.tuple cimport PyTuple_GET_ITEM, PyTuple_GET_SIZE
from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memmove

from rbfly._wire cimport (
    OutBuffer, double_bits, float_bits, out_reserve, out_size, put_bytes, put_u8, put_u16,
    put_u32, put_u64,
    store_u32,
)
from rbfly.amqp cimport _constructors as codes
from rbfly.amqp._native cimport rbfly_ascii_data
from rbfly.amqp._records cimport NO_FIELDS, READERS, fields_of
from rbfly.amqp._scalars cimport (
    encode_binary, encode_integer, encode_symbol, encode_text, encode_unsigned, fail_size,
    put_double, put_integer, put_long_text, put_sized, put_uuid,
)
from rbfly.amqp._types cimport (
    ELEMENT_TYPES, MAX_DEPTH, MAX_ZERO_WIDTH, WIRE_CLASSES, AMQPArray, Described, Symbol,
    clip, is_datetime, is_uuid, milliseconds, plain_bytes, plain_dict, plain_list,
)

from rbfly.amqp._types import Char, Float32, Timestamp
from rbfly.error import AMQPEncoderOverflowError, AMQPEncoderTypeError, AMQPEncoderValueError

cdef enum:
    MAX_COMPOUND = 1 << 28    # bytes

cdef extern from 'Python.h':
    double PyFloat_AS_DOUBLE(object value) noexcept
    bint PySequence_Check(object o) noexcept
    Py_ssize_t PyDict_GET_SIZE(PyObject *o) noexcept


cdef int fail_depth() except -1:
    raise AMQPEncoderValueError(
        f'value nested more than {MAX_DEPTH} deep, or containing itself'
    )


cdef int fail_large_compound() except -1:
    # a list that contains another one twice, and so on, doubles in size at each level
    raise AMQPEncoderValueError('list, map or array is larger than 256 MiB')


cdef int close_wide(OutBuffer *out, Py_ssize_t first, Py_ssize_t count, uint8_t code8) except -1:
    cdef Py_ssize_t n
    cdef uint8_t *head
    if first > 0:
        open_wide(out, &first)
    n = out.p - out.start + first
    head = out.start - first - 9
    if n > MAX_COMPOUND:
        fail_large_compound()
    if n <= 254 and count <= 255:
        memmove(head + 3, head + 9, <size_t> n)
        head[0] = code8
        head[1] = <uint8_t> (n + 1)
        head[2] = <uint8_t> count
        out.p -= 6
        return 0
    head[0] = code8 + codes.SIZE32
    store_u32(head + 1, <uint32_t> (n + 4))
    store_u32(head + 5, <uint32_t> count)
    return 0


cdef int open_wide(OutBuffer *out, Py_ssize_t *first) except -1:
    """Leave room for a wide header instead of a narrow one; move the items written so far."""
    cdef Py_ssize_t at = first[0]
    out_reserve(out, 6)
    memmove(out.start + at + 6, out.start + at, <size_t> (out.p - out.start - at))
    out.p += 6
    first[0] = -at - 6
    return 0


cdef int fail_changed() except -1:
    raise AMQPEncoderValueError('list or dict changed size during encoding')


cdef int put_long_leaf(OutBuffer *out, object value, Py_ssize_t *first) except -1:
    """Append bytes or text of more than 255 bytes."""
    if first is not NULL and first[0] > 0:
        open_wide(out, first)
    if type(value) is str:
        encode_text(out, value)
    else:
        encode_binary(out, value)
    return 1


cdef int put_other_leaf(OutBuffer *out, object value, Py_ssize_t *first) except -1:
    cdef Py_ssize_t n
    if type(value) is bytes:
        n = PyBytes_GET_SIZE(value)
        if n > 255:
            return put_long_leaf(out, value, first)
        put_sized(out, codes.VBIN8, PyBytes_AS_STRING(value), n)
        return 1
    if value is None or value is True or value is False:
        out_reserve(out, 1)
        put_u8(
            out,
            codes.NULL if value is None else (codes.TRUE if value is True else codes.FALSE),
        )
        return 1
    return 0


cdef inline int put_leaf(OutBuffer *out, object value, Py_ssize_t *first) except -1:
    """Append a value of a common type, without running foreign code, and return 1.

    Return 0 and write nothing if it has another type.  `first` is what open_compound returned, or
    NULL.
    """
    cdef const char *data = NULL
    cdef Py_ssize_t n = 0
    if type(value) is str:
        if not rbfly_ascii_data(<PyObject *> value, &data, &n):
            put_long_text(out, value)
        elif n > 255:
            put_long_leaf(out, value, first)
        else:
            put_sized(out, codes.STR8, data, n)
        return 1
    if type(value) is int:
        encode_integer(out, value)
        return 1
    if type(value) is float:
        put_double(out, PyFloat_AS_DOUBLE(value))
        return 1
    return put_other_leaf(out, value, first)


cdef int put_held(OutBuffer *out, object value, int depth) except -1:
    """Append a value of a list or dict that may run foreign code, which may remove it from there:
    hold a reference."""
    cdef object held = value
    return encode_branch(out, held, depth)


cdef inline int put_items(
    OutBuffer *out, object items, Py_ssize_t count, int depth, Py_ssize_t *first
) except -1:
    """Append the items of an exact list or tuple; `depth` is that of the items."""
    cdef Py_ssize_t i
    if type(items) is list:
        for i in range(count):
            if put_leaf(out, <object> PyList_GET_ITEM(items, i), first):
                continue
            put_held(out, <object> PyList_GET_ITEM(items, i), depth)
            if PyList_GET_SIZE(items) != count:
                fail_changed()
    else:
        for i in range(count):
            encode_value(out, <object> PyTuple_GET_ITEM(items, i), depth)
    return 0


cdef int encode_sequence(OutBuffer *out, object items, int depth) except -1:
    """Append an exact list or tuple as a list."""
    cdef Py_ssize_t count, first
    if type(items) is list:
        count = PyList_GET_SIZE(items)
    else:
        count = PyTuple_GET_SIZE(items)
    if depth >= MAX_DEPTH:
        fail_depth()
    if count == 0:
        out_reserve(out, 1)
        put_u8(out, codes.LIST0)
        return 0
    first = open_compound(out, count)
    put_items(out, items, count, depth + 1, &first)
    return close_compound(out, first, count, codes.LIST8)


cdef int put_key(OutBuffer *out, object key, int depth, int keys) except -1:
    cdef Py_ssize_t at
    if keys == KEYS_STRING:
        if not isinstance(key, str) or type(key) is Char:
            raise AMQPEncoderTypeError(f'application property name must be str, not {clip(key)}')
    elif keys == KEYS_ANNOTATION:
        if type(key) is Symbol:
            return encode_symbol(out, key)
        if isinstance(key, str) and type(key) is not Char:
            return encode_symbol(out, Symbol(key))
        if isinstance(key, int) and not isinstance(key, bool):
            return encode_unsigned(out, key, codes.ULONG)
        raise AMQPEncoderTypeError(f'annotation key must be Symbol, str or int, not {clip(key)}')
    at = out_size(out)
    encode_value(out, key, depth)
    if out.start[at] in (codes.LIST0, codes.LIST8, codes.LIST32, codes.MAP8, codes.MAP32):
        raise AMQPEncoderTypeError(f'a map key must not be a list or map: {clip(key)}')
    return 0


cdef int put_held_pair(
    OutBuffer *out, object key, object value, int depth, int keys
) except -1:
    """Append a pair whose key may run foreign code."""
    cdef object held_key = key
    cdef object held_value = value
    put_key(out, held_key, depth, keys)
    return encode_value(out, held_value, depth)


cdef inline int put_pairs(
    OutBuffer *out, dict value, int depth, int keys, Py_ssize_t *first
) except -1:
    cdef Py_ssize_t position = 0, _i
    cdef Py_ssize_t count = PyDict_GET_SIZE(<PyObject *> value)
    cdef PyObject *key = NULL
    cdef PyObject *item = NULL
    for _i in range(count):
        # a dict changed during encoding may yield more pairs, even if its size is the same
        if not PyDict_Next(value, &position, &key, &item):
            return fail_changed()
        if type(<object> key) is str and keys != KEYS_ANNOTATION:
            encode_text(out, <object> key)
            if put_leaf(out, <object> item, first):
                continue
            put_held(out, <object> item, depth)
        else:
            put_held_pair(out, <object> key, <object> item, depth, keys)
        if PyDict_GET_SIZE(<PyObject *> value) != count:
            return fail_changed()
    return 0


cdef int encode_map(OutBuffer *out, object value, int depth, int keys) except -1:
    """Append a dict or other mapping as a map; `keys` says which types its keys may have."""
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
    put_pairs(out, pairs, depth + 1, keys, &first)
    return close_compound(out, first, 2 * count, codes.MAP8)


cdef int put_descriptor(OutBuffer *out, object descriptor, int depth) except -1:
    # by convention, a numeric descriptor is a ulong
    if type(descriptor) is int and descriptor >= 0:
        return encode_unsigned(out, descriptor, codes.ULONG)
    return encode_value(out, descriptor, depth)


cdef int encode_described(OutBuffer *out, Described value, int depth) except -1:
    if depth >= MAX_DEPTH:
        fail_depth()
    out_reserve(out, 1)
    put_u8(out, codes.DESCRIBED)
    put_descriptor(out, value.descriptor, depth + 1)
    return encode_value(out, value.value, depth + 1)


cdef int encode_wire_class(OutBuffer *out, object value, int code) except -1:
    """Append a value of a wrapper class in the smallest form of its type."""
    cdef int64_t v
    if code == codes.UINT or code == codes.ULONG:
        return encode_unsigned(out, value, code)
    if code == codes.LONG:
        v = signed_element(value, code)
        if -128 <= v <= 127:
            out_reserve(out, 2)
            put_u8(out, codes.SMALLLONG)
            put_u8(out, <uint8_t> v)
            return 0
    elif code == codes.INT:
        return put_integer(out, signed_element(value, code))
    out_reserve(out, 1)
    put_u8(out, <uint8_t> code)
    return encode_payload(out, value, code, 0)


cdef int fail_element(object value, int code) except -1:
    raise AMQPEncoderTypeError(
        f'cannot store {clip(value)} in an array of {ELEMENT_TYPES[code].__name__}'
    )


cdef int64_t signed_element(object value, int code) except? -1:
    if not isinstance(value, int) or isinstance(value, bool):
        fail_element(value, code)
    cls = Timestamp if code == codes.TIMESTAMP else ELEMENT_TYPES[code]
    if not cls._min <= value <= cls._max:
        raise AMQPEncoderOverflowError(f'{clip(value)} is out of range for {cls.__name__}')
    return <int64_t> (value if value <= 0x7fffffffffffffff else value - 0x10000000000000000)


cdef int encode_payload(OutBuffer *out, object value, int code, int depth) except -1:
    """Append what follows the wide constructor `code`, for an array element or a wrapper class."""
    cdef int64_t v
    out_reserve(out, 16)
    if code == codes.NULL:
        if value is not None:
            fail_element(value, code)
    elif code == codes.BOOLEAN:
        if value is not True and value is not False:
            fail_element(value, code)
        put_u8(out, 1 if value is True else 0)
    elif code == codes.UBYTE or code == codes.BYTE:
        put_u8(out, <uint8_t> signed_element(value, code))
    elif code == codes.USHORT or code == codes.SHORT:
        put_u16(out, <uint16_t> signed_element(value, code))
    elif code == codes.UINT or code == codes.INT:
        put_u32(out, <uint32_t> signed_element(value, code))
    elif code == codes.ULONG or code == codes.LONG:
        put_u64(out, <uint64_t> signed_element(value, code))
    elif code == codes.FLOAT:
        if not isinstance(value, float):
            fail_element(value, code)
        put_u32(out, float_bits(PyFloat_AS_DOUBLE(Float32(value))))
    elif code == codes.DOUBLE:
        if not isinstance(value, float):
            fail_element(value, code)
        put_u64(out, double_bits(PyFloat_AS_DOUBLE(value)))
    elif code == codes.CHAR:
        if not isinstance(value, str):
            fail_element(value, code)
        put_u32(out, <uint32_t> ord(Char(value)))
    elif code == codes.TIMESTAMP:
        if is_datetime(value):
            v = milliseconds(value)
        else:
            v = signed_element(value, code)
        put_u64(out, <uint64_t> v)
    elif code == codes.UUID:
        if not is_uuid(value):
            fail_element(value, code)
        put_uuid(out, value)
    elif code == codes.DECIMAL32 or code == codes.DECIMAL64 or code == codes.DECIMAL128:
        # bytes.__new__ creates a decimal of any length, and an object can lie about its class
        if (
            not isinstance(value, bytes)
            or not isinstance(value, ELEMENT_TYPES[code])
            or PyBytes_GET_SIZE(value) != 1 << ((code >> 4) - codes.FIXED_ONE)
        ):
            fail_element(value, code)
        put_bytes(out, PyBytes_AS_STRING(value), PyBytes_GET_SIZE(value))
    elif code == codes.LIST32 or code == codes.MAP32 or code == codes.ARRAY32:
        encode_wide_compound(out, value, code, depth)
    else:
        encode_wide_text(out, value, code)
    return 0


cdef bint is_utf8(bytes value) except -1:
    try:
        value.decode()
    except UnicodeDecodeError:
        return False
    return True


cdef int encode_wide_text(OutBuffer *out, object value, int code) except -1:
    cdef bytes data
    if code == codes.VBIN32 and isinstance(value, (bytes, bytearray, memoryview)):
        data = plain_bytes(value)
    elif code == codes.STR32 and isinstance(value, str):
        try:
            data = str.encode(value)
        except UnicodeEncodeError as ex:
            raise AMQPEncoderValueError(f'cannot encode a string as UTF-8: {ex}') from None
    elif code == codes.STR32 and type(value) is bytes and not is_utf8(value):
        data = value        # of a received array
    elif code == codes.SYM32 and type(value) is Symbol and (<Symbol> value).name is not None:
        data = (<Symbol> value).name.encode('utf-8', 'surrogateescape')
    else:
        return fail_element(value, code)
    if len(data) > 0xffffffff:
        fail_size(len(data))
    out_reserve(out, len(data) + 4)
    put_u32(out, <uint32_t> len(data))
    put_bytes(out, PyBytes_AS_STRING(data), len(data))
    return 0


cdef int encode_wide_compound(OutBuffer *out, object value, int code, int depth) except -1:
    """Append a list, map or array as an array element, always with 32-bit size and count."""
    cdef Py_ssize_t first, n, count
    cdef dict pairs
    if depth >= MAX_DEPTH:
        fail_depth()
    out_reserve(out, 8)
    out.p += 8
    first = out.p - out.start
    if code == codes.LIST32 and isinstance(value, (list, tuple)):
        items = value if type(value) is list or type(value) is tuple else list(value)
        count = len(items)
        put_items(out, items, count, depth + 1, NULL)
    elif code == codes.MAP32 and isinstance(value, Mapping):
        pairs = value if type(value) is dict else plain_dict(value)
        count = 2 * len(pairs)
        put_pairs(out, pairs, depth + 1, KEYS_ANY, NULL)
    elif code == codes.ARRAY32 and type(value) is AMQPArray:
        count = len((<AMQPArray> value).items)
        put_array_items(out, value, depth)
    else:
        return fail_element(value, code)
    n = out.p - out.start - first
    if n > MAX_COMPOUND:
        fail_large_compound()
    store_u32(out.start + first - 8, <uint32_t> (n + 4))
    store_u32(out.start + first - 4, <uint32_t> count)
    return 0


cdef int put_array_items(OutBuffer *out, AMQPArray value, int depth) except -1:
    """Append the element constructor and the elements; `depth` is that of the array."""
    cdef int level = depth + 1
    if value._code == codes.NULL and len(value.items) > MAX_ZERO_WIDTH:
        raise AMQPEncoderValueError(f'array with more than {MAX_ZERO_WIDTH} nulls')
    for descriptor in value.descriptors:
        if level >= MAX_DEPTH:
            fail_depth()
        out_reserve(out, 1)
        put_u8(out, codes.DESCRIBED)
        level += 1
        put_descriptor(out, descriptor, level)
    out_reserve(out, 1)
    put_u8(out, <uint8_t> value._code)
    for item in value.items:
        encode_payload(out, item, value._code, level)
    return 0


cdef int encode_array(OutBuffer *out, AMQPArray value, int depth) except -1:
    cdef Py_ssize_t count, first
    if value.items is None:
        raise AMQPEncoderTypeError('AMQPArray is not initialized: its __init__ was not called')
    count = len(value.items)
    if depth >= MAX_DEPTH:
        fail_depth()
    first = open_compound(out, count)
    put_array_items(out, value, depth)
    return close_compound(out, first, count, codes.ARRAY8)


cdef int encode_fields(OutBuffer *out, object found, int depth) except -1:
    """Append what `fields_of` has returned."""
    if type(found) is not dict and type(found) is not list:
        if depth >= MAX_DEPTH:      # a model may return itself
            fail_depth()
        depth += 1
    return encode_value(out, found, depth)


cdef int encode_other(OutBuffer *out, object value, int depth) except -1:
    """Append a value of a less common type."""
    kind = type(value)
    if kind is tuple:
        return encode_sequence(out, value, depth)
    if kind is Symbol:
        return encode_symbol(out, value)
    if is_datetime(value):
        out_reserve(out, 9)
        put_u8(out, codes.TIMESTAMP)
        put_u64(out, <uint64_t> milliseconds(value))
        return 0
    if kind is Described:
        return encode_described(out, value, depth)
    if kind is AMQPArray:
        return encode_array(out, value, depth)
    if READERS.get(kind) is not None:
        return encode_fields(out, fields_of(value), depth)
    for base in kind.__mro__:
        code = WIRE_CLASSES.get(base)
        if code is not None:
            return encode_wire_class(out, value, code)
    if isinstance(value, str):
        return encode_text(out, value)
    if isinstance(value, int):
        if int(value) != int.__pos__(value):
            raise AMQPEncoderValueError(f'cannot encode {clip(value)}: it is not the int it stores')
        return encode_integer(out, value)
    if isinstance(value, float):
        return put_double(out, PyFloat_AS_DOUBLE(value))
    if isinstance(value, (bytes, bytearray, memoryview)):
        return encode_binary(out, value)
    if is_uuid(value):      # late: no class inherits from UUID and one of those above
        out_reserve(out, 17)
        put_u8(out, codes.UUID)
        return put_uuid(out, value)
    if isinstance(value, Mapping):
        return encode_map(out, value, depth, KEYS_ANY)
    found = fields_of(value)
    if found is not NO_FIELDS:
        return encode_fields(out, found, depth)
    if PySequence_Check(value) and not isinstance(value, type):
        if depth >= MAX_DEPTH:
            fail_depth()
        return encode_sequence(out, plain_list(value), depth)
    raise AMQPEncoderTypeError(
        f'AMQP 1.0 has no type for {kind.__name__}: {clip(value)}; send {substitute(value)}'
    )


cdef str substitute(object value):
    # What to send instead of a value that AMQP 1.0 has no type for, as an expression.
    if isinstance(value, Enum):
        return 'value.value'
    return 'list(value)' if hasattr(type(value), '__iter__') else 'str(value)'


cdef int encode_branch(OutBuffer *out, object value, int depth) except -1:
    """Append a value that put_leaf did not take."""
    if type(value) is list:
        return encode_sequence(out, value, depth)
    if type(value) is dict:
        return encode_map(out, value, depth, KEYS_ANY)
    return encode_other(out, value, depth)


cdef int encode_value(OutBuffer *out, object value, int depth) except -1:
    """Append one value.  `depth` is the number of compounds and described values around it."""
    if put_leaf(out, value, NULL):
        return 0
    return encode_branch(out, value, depth)
