"""Decode single AMQP values to Python values (part 1 of the specification)."""

from cpython.bytes cimport PyBytes_FromStringAndSize
from cpython.exc cimport PyErr_Clear, PyErr_ExceptionMatches
from cpython.list cimport PyList_New, PyList_SET_ITEM
from cpython.object cimport PyObject
from cpython.ref cimport Py_INCREF, Py_XDECREF
from cpython.tuple cimport PyTuple_New, PyTuple_SET_ITEM
from libc.stdint cimport int8_t, int16_t, int32_t, int64_t, uint8_t, uint32_t

from rbfly._wire cimport load_double, load_float, load_u16, load_u32, load_u64
from rbfly.amqp cimport _constructors as codes
from rbfly.amqp._native cimport (
    RBFLY_CACHE_MAX, rbfly_ascii, rbfly_cached_ascii, rbfly_integer, rbfly_is_ascii,
    rbfly_make_integers, rbfly_need, rbfly_place_for, rbfly_set_integer,
)
from rbfly.amqp._types cimport (
    ELEMENT_TYPES, MAX_DEPTH, MAX_SAME_HASH, AMQPArray, Described, Symbol, element_class,
    from_milliseconds, new_symbol, uuid_of,
)

from rbfly.amqp._types import Char
from rbfly.error import AMQPDecoderError, counted

rbfly_make_integers()

cdef extern from 'Python.h':
    object PyLong_FromLong(long value)
    object PyLong_FromLongLong(long long value)
    object PyLong_FromUnsignedLongLong(unsigned long long value)
    object PyFloat_FromDouble(double value)
    str PyUnicode_DecodeUTF8(const char *p, Py_ssize_t n, const char *errors)
    # does not propagate the error: fail_key inspects it
    int PyDict_SetItem(object pairs, object key, object value) noexcept


# The widest constructor of the same type, for each constructor; 0 if it is not assigned.
cdef uint8_t[256] WIDE
for _code in range(256):
    WIDE[_code] = 0
for _code in ELEMENT_TYPES:
    WIDE[_code] = _code
WIDE[codes.UUID] = codes.UUID
WIDE[codes.TRUE] = WIDE[codes.FALSE] = codes.BOOLEAN
WIDE[codes.UINT0] = WIDE[codes.SMALLUINT] = codes.UINT
WIDE[codes.ULONG0] = WIDE[codes.SMALLULONG] = codes.ULONG
WIDE[codes.SMALLINT] = codes.INT
WIDE[codes.SMALLLONG] = codes.LONG
WIDE[codes.VBIN8] = codes.VBIN32
WIDE[codes.STR8] = codes.STR32
WIDE[codes.SYM8] = codes.SYM32
WIDE[codes.LIST0] = WIDE[codes.LIST8] = codes.LIST32
WIDE[codes.MAP8] = codes.MAP32
WIDE[codes.ARRAY8] = codes.ARRAY32


cdef object decode_error(Cursor *c, const uint8_t *at, str problem):
    position = at - c.start
    raise AMQPDecoderError(f'{problem} at byte {position}', position)


cdef object fail_end(Cursor *c):
    return decode_error(c, c.p, 'unexpected end of data where a value should begin')


cdef inline object take_value(Cursor *c, int depth):
    cdef const uint8_t *p = c.p
    if p >= c.end:
        return fail_end(c)
    c.p = p + 1
    return decode_payload(c, p[0], depth)


cdef object fail_short(Cursor *c, const uint8_t *at, uint8_t code):
    return decode_error(c, at, f'data too short for constructor 0x{code:02x}')


cdef object fail_depth_at(Cursor *c, const uint8_t *at):
    return decode_error(c, at, f'values nested more than {MAX_DEPTH} deep')


cdef object decode_text(const uint8_t *p, Py_ssize_t n):
    if rbfly_is_ascii(p, n):
        return rbfly_ascii(p, n)
    try:
        return PyUnicode_DecodeUTF8(<const char *> p, n, NULL)
    except UnicodeDecodeError:      # RabbitMQ converts AMQP 0.9.1 properties without checking them
        return PyBytes_FromStringAndSize(<const char *> p, n)


cdef object cached_symbol(str name):
    """The symbol with a cached name: messages repeat annotation keys and content types."""
    cdef PyObject **place = rbfly_place_for(name)
    cdef PyObject *former
    cdef Symbol symbol
    if place is NULL:
        return new_symbol(name)
    former = place[0]
    if former is not NULL and (<Symbol> former).name is name:
        return <Symbol> former
    symbol = new_symbol(name)
    Py_INCREF(symbol)
    place[0] = <PyObject *> symbol
    Py_XDECREF(former)
    return symbol


cdef object decode_symbol(const uint8_t *p, Py_ssize_t n):
    name = None
    if n <= RBFLY_CACHE_MAX:
        name = rbfly_cached_ascii(p, n)
        if name is not None:
            return cached_symbol(name)
    elif rbfly_is_ascii(p, n):
        name = rbfly_ascii(p, n)
    if name is None:
        name = PyUnicode_DecodeUTF8(<const char *> p, n, 'surrogateescape')
    return new_symbol(name)


cdef object decode_described(Cursor *c, const uint8_t *at, int depth):
    cdef Described value
    if depth >= MAX_DEPTH:
        return fail_depth_at(c, at)
    value = Described.__new__(Described)
    value.descriptor = decode_value(c, depth + 1)
    value.value = decode_value(c, depth + 1)
    return value


cdef object fail_list(Cursor *c, const uint8_t *at, Py_ssize_t size, Py_ssize_t count):
    cdef str length = counted(size, 'byte')
    cdef str items = counted(count, 'item')
    if count > size:
        return decode_error(c, at, f'list with {items} in only {length}')
    return decode_error(c, at, f'list of {length}, not filled by its {items}')


cdef object decode_list(Cursor *c, const uint8_t *at, Py_ssize_t size, Py_ssize_t count, int depth):
    """Decode the items of a list; the cursor is after the count, `size` excludes the count."""
    cdef const uint8_t *outer = c.end
    cdef const uint8_t *end = c.p + size
    cdef const uint8_t *p
    cdef Py_ssize_t i
    cdef list items
    if depth >= MAX_DEPTH:
        return fail_depth_at(c, at)
    # each item takes at least one byte: do not allocate a list for more items than bytes
    if count > size:
        return fail_list(c, at, size, count)
    items = PyList_New(count)
    for i in range(count):
        # leave one byte for each later item, so that nested lists cannot count on the same bytes
        c.end = end - (count - 1 - i)
        p = c.p
        if c.end - p >= 2 and p[0] == codes.SMALLINT:
            c.p = p + 2
            rbfly_set_integer(items, i, <int8_t> p[1])
        else:
            item = take_value(c, depth + 1)
            Py_INCREF(item)
            PyList_SET_ITEM(items, i, item)
    if c.p != end:
        return fail_list(c, at, size, count)
    c.end = outer
    return items


cdef object fail_key(Cursor *c, const uint8_t *at, object key):
    if not PyErr_ExceptionMatches(TypeError):
        keep_error()
    PyErr_Clear()
    return decode_error(c, at, f'map key of unhashable type {type(key).__name__}')


cdef object fail_map(Cursor *c, const uint8_t *at, Py_ssize_t size, Py_ssize_t count, int depth):
    cdef str length = counted(size, 'byte')
    if depth >= MAX_DEPTH:
        return fail_depth_at(c, at)
    if count & 1:
        return decode_error(c, at, f'map with an odd number of keys and values ({count})')
    if count > size:
        return decode_error(c, at, f'map with {count} keys and values in only {length}')
    return decode_error(c, at, f'map of {length}, not filled by its {count} keys and values')


cdef inline object take_key(Cursor *c, const uint8_t *p, int depth):
    """Decode a map key at `p`, the cursor's position; short strings come from the cache."""
    cdef Py_ssize_t left = c.end - p
    if left > 2 and p[0] == codes.STR8 and p[1] <= RBFLY_CACHE_MAX and p[1] <= left - 2:
        key = rbfly_cached_ascii(p + 2, p[1])
        if key is not None:
            c.p = p + 2 + p[1]
            return key
    return take_other_key(c, p, depth)


cdef object take_other_key(Cursor *c, const uint8_t *p, int depth):
    cdef Py_ssize_t left = c.end - p
    c.other_keys = True
    if left > 2 and p[0] == codes.SYM8 and p[1] <= left - 2:
        c.p = p + 2 + p[1]
        return decode_symbol(p + 2, p[1])
    return take_value(c, depth)


cdef inline bint is_hash_chosen(uint8_t code) noexcept:
    """Whether the sender can choose many keys of this type that have the same hash."""
    return code == codes.UUID or code == codes.DESCRIBED or code >= codes.LIST8


cdef object decode_map(Cursor *c, const uint8_t *at, Py_ssize_t size, Py_ssize_t count, int depth):
    cdef const uint8_t *outer = c.end
    cdef const uint8_t *end = c.p + size
    cdef const uint8_t *p
    cdef Py_ssize_t _i
    cdef dict pairs
    if depth >= MAX_DEPTH or count & 1 or count > size:
        return fail_map(c, at, size, count, depth)
    c.end = end
    pairs = {}
    if count > 2 * MAX_SAME_HASH:
        take_many_pairs(c, pairs, count >> 1, depth)
    else:
        for _i in range(count >> 1):
            p = c.p
            key = take_key(c, p, depth + 1)
            if PyDict_SetItem(pairs, key, take_value(c, depth + 1)) < 0:
                return fail_key(c, p, key)
    if c.p != end:
        return fail_map(c, at, size, count, depth)
    c.end = outer
    return pairs


cdef int take_many_pairs(Cursor *c, dict pairs, Py_ssize_t count, int depth) except -1:
    """Decode the pairs of a map, whose keys may have the same hash."""
    cdef const uint8_t *p
    cdef Py_ssize_t _i
    cdef dict hashes = {}
    for _i in range(count):
        p = c.p
        key = take_key(c, p, depth + 1)
        if PyDict_SetItem(pairs, key, take_value(c, depth + 1)) < 0:
            fail_key(c, p, key)
        if is_hash_chosen(p[0]):
            note_hash(hashes, c, p, key)
    return 0


cdef int note_hash(dict hashes, Cursor *c, const uint8_t *at, object key) except -1:
    """Count a key of a map by its hash, and fail for too many with the same one: the dict compares
    each of them with all others."""
    cdef Py_hash_t found = hash(key)
    cdef object same = hashes.get(found, 0) + 1
    hashes[found] = same
    if same > MAX_SAME_HASH:
        decode_error(c, at, f'more than {MAX_SAME_HASH} map keys have the same hash')
    return 0


cdef object decode_array(
    Cursor *c, const uint8_t *at, Py_ssize_t size, Py_ssize_t count, int depth
):
    """Decode the constructor and elements of an array; the cursor is after the count."""
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
    while c.p < end and c.p[0] == codes.DESCRIBED:
        if depth >= MAX_DEPTH:
            return fail_depth_at(c, c.p)
        c.p += 1
        depth += 1
        descriptors.append(decode_value(c, depth))
    if c.p < end:
        code = c.p[0]
        c.p += 1
    elif count == 0 and not descriptors:
        code = codes.NULL           # pyamqp omits the constructor of an empty array
    else:
        return decode_error(c, at, 'array without an element constructor')
    if WIDE[code] == 0:
        return decode_error(c, c.p - 1, f'unknown constructor 0x{code:02x} for array elements')
    need = rbfly_need(code)
    if need == 0:
        if count > c.zero_width:
            return decode_error(c, at, f'array with too many zero-width elements ({count})')
        c.zero_width -= count
    elif count > (end - c.p) // need:
        left = counted(end - c.p, 'byte')
        return decode_error(c, at, f'array with {counted(count, "element")} in only {left}')
    items = PyTuple_New(count)
    for i in range(count):
        c.end = end - (count - 1 - i) * need
        item = decode_payload(c, code, depth)
        Py_INCREF(item)
        PyTuple_SET_ITEM(items, i, item)
    if c.p != end:
        filled = counted(count, 'element')
        return decode_error(c, at, f'array of {counted(size, "byte")}, not filled by its {filled}')
    c.end = outer
    array = AMQPArray.__new__(AMQPArray)
    array._code = WIDE[code]
    array.element_type = element_class(array._code)
    array.items = items
    array.descriptors = tuple(descriptors)
    return array


cdef object decode_sized(Cursor *c, const uint8_t *at, uint8_t code, int depth):
    """Decode values that have a 32-bit size or a rare type."""
    cdef const uint8_t *p = c.p
    cdef Py_ssize_t left = c.end - p
    cdef Py_ssize_t size, count
    if code == codes.VBIN32 or code == codes.STR32 or code == codes.SYM32:
        size = load_u32(p)
        if size > left - 4:
            return fail_short(c, at, code)
        c.p = p + 4 + size
        if code == codes.VBIN32:
            return PyBytes_FromStringAndSize(<const char *> p + 4, size)
        if code == codes.STR32:
            return decode_text(p + 4, size)
        return decode_symbol(p + 4, size)
    if code == codes.ARRAY8:
        size = p[0]
        if size < 1:
            return decode_error(c, at, f'array with invalid size {size}')
        if size > left - 1:
            return fail_short(c, at, code)
        c.p = p + 2
        return decode_array(c, at, size - 1, p[1], depth)
    # list, map or array with a 32-bit size
    size = load_u32(p)
    count = load_u32(p + 4)
    if size < 4:
        return decode_error(c, at, f'constructor 0x{code:02x} with invalid size {size}')
    if size > left - 4:
        return fail_short(c, at, code)
    c.p = p + 8
    if code == codes.LIST32:
        return decode_list(c, at, size - 4, count, depth)
    if code == codes.MAP32:
        return decode_map(c, at, size - 4, count, depth)
    return decode_array(c, at, size - 4, count, depth)


cdef object decode_char(Cursor *c, const uint8_t *at, uint32_t point):
    if point > 0x10ffff or 0xd800 <= point <= 0xdfff:
        return decode_error(c, at, f'char is not a Unicode scalar value (0x{point:x})')
    return Char(chr(point))


cdef object fail_compound(Cursor *c, const uint8_t *at, uint8_t code):
    if at[1] == 0:
        kind = 'list' if code == codes.LIST8 else 'map'
        return decode_error(c, at, f'{kind} with invalid size 0')
    return fail_short(c, at, code)


cdef object decode_payload(Cursor *c, uint8_t code, int depth):
    """Decode the value of constructor `code`; the cursor is after the constructor."""
    cdef const uint8_t *p = c.p
    cdef const uint8_t *at = p - 1
    cdef Py_ssize_t left = c.end - p
    cdef Py_ssize_t n
    if left < rbfly_need(code):
        return fail_short(c, at, code)
    # common types only: a small function saves and restores fewer registers
    if code == codes.STR8:
        n = p[0]
        if n > left - 1:
            return fail_short(c, at, code)
        c.p = p + 1 + n
        return decode_text(p + 1, n)
    elif code == codes.SMALLINT or code == codes.SMALLLONG or code == codes.BYTE:
        c.p = p + 1
        return rbfly_integer(<int8_t> p[0])
    elif code == codes.INT:
        c.p = p + 4
        return PyLong_FromLong(<int32_t> load_u32(p))
    elif code == codes.LONG:
        c.p = p + 8
        return PyLong_FromLongLong(<int64_t> load_u64(p))
    elif code == codes.VBIN8:
        n = p[0]
        if n > left - 1:
            return fail_short(c, at, code)
        c.p = p + 1 + n
        return PyBytes_FromStringAndSize(<const char *> p + 1, n)
    elif code == codes.LIST8:
        n = p[0]
        if n < 1 or n > left - 1:
            return fail_compound(c, at, code)
        c.p = p + 2
        return decode_list(c, at, n - 1, p[1], depth)
    elif code == codes.MAP8:
        n = p[0]
        if n < 1 or n > left - 1:
            return fail_compound(c, at, code)
        c.p = p + 2
        return decode_map(c, at, n - 1, p[1], depth)
    elif code == codes.NULL:
        return None
    elif code == codes.TRUE:
        return True
    elif code == codes.FALSE:
        return False
    elif code == codes.LIST0:
        if depth >= MAX_DEPTH:
            return fail_depth_at(c, at)
        return []
    elif code == codes.DOUBLE:
        c.p = p + 8
        return PyFloat_FromDouble(load_double(p))
    return decode_rare(c, code, depth)


cdef object decode_rare(Cursor *c, uint8_t code, int depth):
    """Decode the types that decode_payload does not, which has checked that enough bytes follow."""
    cdef const uint8_t *p = c.p
    cdef const uint8_t *at = p - 1
    cdef Py_ssize_t left = c.end - p
    cdef Py_ssize_t n
    if code == codes.UINT0 or code == codes.ULONG0:
        return 0
    elif code == codes.UBYTE or code == codes.SMALLUINT or code == codes.SMALLULONG:
        c.p = p + 1
        return rbfly_integer(p[0])
    elif code == codes.BOOLEAN:
        # in arrays, pyamqp writes the constructors of true and false as values
        if p[0] > 1 and p[0] != codes.TRUE and p[0] != codes.FALSE:
            return decode_error(c, at, f'boolean with invalid value 0x{p[0]:02x}')
        c.p = p + 1
        return p[0] & 1 == 1
    elif code == codes.USHORT:
        c.p = p + 2
        return PyLong_FromLong(load_u16(p))
    elif code == codes.SHORT:
        c.p = p + 2
        return PyLong_FromLong(<int16_t> load_u16(p))
    elif code == codes.UINT:
        c.p = p + 4
        return PyLong_FromUnsignedLongLong(load_u32(p))
    elif code == codes.ULONG:
        c.p = p + 8
        return PyLong_FromUnsignedLongLong(load_u64(p))
    elif code == codes.FLOAT:
        c.p = p + 4
        return PyFloat_FromDouble(load_float(p))
    elif code == codes.TIMESTAMP:
        c.p = p + 8
        return from_milliseconds(<int64_t> load_u64(p))
    elif code == codes.UUID:
        c.p = p + 16
        return uuid_of(p)
    elif code == codes.SYM8:
        n = p[0]
        if n > left - 1:
            return fail_short(c, at, code)
        c.p = p + 1 + n
        return decode_symbol(p + 1, n)
    elif code == codes.CHAR:
        c.p = p + 4
        return decode_char(c, at, load_u32(p))
    elif code == codes.DECIMAL32 or code == codes.DECIMAL64 or code == codes.DECIMAL128:
        n = rbfly_need(code)
        c.p = p + n
        return ELEMENT_TYPES[code](PyBytes_FromStringAndSize(<const char *> p, n))
    elif code == codes.DESCRIBED:
        return decode_described(c, at, depth)
    elif WIDE[code]:
        return decode_sized(c, at, code, depth)
    return decode_error(c, at, f'unknown constructor 0x{code:02x}')


cdef object decode_value(Cursor *c, int depth):
    """Decode one value.  `depth` is the number of compounds and described values around it."""
    return take_value(c, depth)
