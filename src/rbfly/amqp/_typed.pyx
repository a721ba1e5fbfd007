"""Decode AMQP values into the classes of a program, without a dict in between.

The keys of a map are compared with the fields in their order: most maps have that order.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.mem cimport PyMem_Calloc, PyMem_Free
from cpython.object cimport PyObject
from cpython.ref cimport Py_XDECREF
from libc.stdint cimport int8_t, int32_t, int64_t, uint8_t
from libc.string cimport memset

from rbfly._cpython cimport rbfly_list, rbfly_list_give
from rbfly._wire cimport load_double, load_u32, load_u64
from rbfly.amqp cimport _constructors as codes
from rbfly.amqp._decode cimport (
    Cursor, cursor_open, decode_error, decode_value, keep_error, note_hash,
)
from rbfly.amqp._layout cimport (
    VALUE, Layout, build_body, is_one_section, scan, skip_value, take_descriptor,
)
from rbfly.amqp._message cimport Message
from rbfly.amqp._native cimport rbfly_ascii, rbfly_is_ascii, rbfly_same
from rbfly.amqp._plan cimport (
    ANY, BODY, BOOL, BYTES, DATETIME, DICT, FLOAT, FOREIGN, INSTANCE, INT, K_BOOL, K_BYTES, K_FLOAT,
    K_INT, K_LIST, K_MAP, K_NULL, K_OTHER, K_STR, K_TIME, K_UUID, LIST, MADE, NO_DEFAULT, NULL_,
    ONE_OF, RECORD, STR, TUPLE, UNION, UUID, Field, Plan, fail_at, fail_made, fail_making,
    find_field, make_record, name_of, use_default,
)
from rbfly.amqp._types cimport (
    MAX_DEPTH, MAX_SAME_HASH, Symbol, clip, datetime_class, uuid_class,
)

from rbfly.amqp._sections import SequenceBody
from rbfly.error import AMQPDecoderError

cdef extern from *:
    """
    /* Take over a reference. */
    #define rbfly_own(found) (found)
    """
    object rbfly_own(PyObject *found)

cdef extern from 'Python.h':
    object PyLong_FromLong(long value)
    object PyLong_FromLongLong(long long value)
    object PyFloat_FromDouble(double value)

# Called without exception propagation: cheaper than try and except.
ctypedef PyObject *(*raw_take)(Plan plan, Cursor *c, int depth) noexcept
ctypedef PyObject *(*raw_make)(Plan plan, PyObject **values) noexcept
ctypedef PyObject *(*raw_body)(Plan plan, Cursor *c) noexcept
ctypedef int (*raw_fill)(Plan plan, Cursor *c, int depth, PyObject **values) noexcept

cdef enum:
    ON_STACK = 32               # fields of a record whose values need no allocation

cdef uint8_t[256] KIND_OF
for _code in range(256):
    KIND_OF[_code] = K_OTHER
KIND_OF[codes.NULL] = K_NULL
KIND_OF[codes.TRUE] = KIND_OF[codes.FALSE] = KIND_OF[codes.BOOLEAN] = K_BOOL
for _code in (
    codes.UINT0, codes.ULONG0, codes.UBYTE, codes.BYTE, codes.SMALLUINT, codes.SMALLULONG,
    codes.SMALLINT, codes.SMALLLONG, codes.USHORT, codes.SHORT, codes.UINT, codes.INT, codes.ULONG,
    codes.LONG,
):
    KIND_OF[_code] = K_INT
KIND_OF[codes.FLOAT] = KIND_OF[codes.DOUBLE] = K_FLOAT
KIND_OF[codes.STR8] = KIND_OF[codes.STR32] = KIND_OF[codes.CHAR] = K_STR
KIND_OF[codes.SYM8] = KIND_OF[codes.SYM32] = K_STR
KIND_OF[codes.VBIN8] = KIND_OF[codes.VBIN32] = K_BYTES
KIND_OF[codes.LIST0] = KIND_OF[codes.LIST8] = KIND_OF[codes.LIST32] = K_LIST
KIND_OF[codes.MAP8] = KIND_OF[codes.MAP32] = K_MAP
KIND_OF[codes.TIMESTAMP] = K_TIME
KIND_OF[codes.UUID] = K_UUID

# --- errors ---

cdef object mismatch(Plan plan, Cursor *c, const uint8_t *at, object value):
    raise AMQPDecoderError(f'expected {plan.name}, got {name_of(value)}', at - c.start)


cdef object fail_value(Plan plan, Cursor *c, const uint8_t *at):
    """Fail for a value of another type, or one that is malformed."""
    c.p = at
    return mismatch(plan, c, at, decode_value(c, 0))


# --- scalars ---

cdef object accept(Plan plan, Cursor *c, const uint8_t *at, object value):
    """Return a decoded value, converted if the plan allows that; or fail."""
    kind = type(value)
    if plan.work == ANY:
        return value
    if plan.work == NULL_:
        if value is None:
            return None
    elif plan.work == BOOL:
        if kind is bool:
            return value
    elif plan.work == INT:
        if kind is int:
            return value
    elif plan.work == FLOAT:
        if kind is float:
            return value
        if kind is int:
            return float(value)
    elif plan.work == STR:
        if kind is str:
            return value
        if kind is Symbol or isinstance(value, str):
            return str(value)
        if kind is bytes and at < c.end and KIND_OF[at[0]] == K_STR:
            raise AMQPDecoderError('expected str, got a string that is not UTF-8', at - c.start)
    elif plan.work == BYTES:
        if kind is bytes:
            return value
    elif plan.work == DATETIME:
        if kind is datetime_class():
            return value
    elif plan.work == UUID:
        if kind is uuid_class():
            return value
    return mismatch(plan, c, at, value)


cdef object take_other(Plan plan, Cursor *c, int depth):
    """Decode what `take` does not: types without parts, and those that functions make."""
    cdef const uint8_t *at = c.p
    if plan.work == UNION:
        return take_choice(plan, c, depth)
    if plan.work == MADE:
        value = take(plan.item, c, depth)
    else:
        value = decode_value(c, depth)
    if plan.work == ONE_OF:
        try:
            # 1 and True are different members of a Literal, but equal
            found = plan.members.get(
                (type(value), value) if plan.make is None else value, NO_DEFAULT
            )
        except TypeError:           # a list or map has no hash
            found = NO_DEFAULT
        if found is not NO_DEFAULT:
            return found
        if plan.make is None:
            raise AMQPDecoderError(f'expected {plan.name}, got {clip(value)}', at - c.start)
    if plan.work == MADE or plan.work == ONE_OF or plan.work == FOREIGN:
        try:
            return plan.make(value)
        except MemoryError:
            raise
        except Exception as ex:
            return fail_made(plan, value, ex, at - c.start)
    if plan.work == INSTANCE:
        if isinstance(value, plan.make):
            return value
        return mismatch(plan, c, at, value)
    return accept(plan, c, at, value)


cdef object take_choice(Plan plan, Cursor *c, int depth):
    cdef PyObject *chosen = NULL
    if c.p < c.end:
        chosen = plan.choices[KIND_OF[c.p[0]]]
        if chosen is NULL:
            return fail_value(plan, c, c.p)
        return take(<Plan> chosen, c, depth)
    return decode_value(c, depth)       # raises


cdef object take(Plan plan, Cursor *c, int depth):
    """Decode one value.  `depth` is the number of compounds and described values around it."""
    cdef const uint8_t *p = c.p
    cdef Py_ssize_t left = c.end - p
    cdef int work = plan.work
    cdef uint8_t code
    cdef Py_ssize_t n
    if left < 2:
        code = codes.NULL if left < 1 else p[0]
    else:
        code = p[0]
        if work == STR:
            n = p[1]
            if code == codes.STR8 and n <= left - 2 and rbfly_is_ascii(p + 2, n):
                c.p = p + 2 + n
                return rbfly_ascii(p + 2, n)
        elif work == INT:
            if code == codes.SMALLINT or code == codes.SMALLLONG:
                c.p = p + 2
                return PyLong_FromLong(<int8_t> p[1])
            if code == codes.INT and left >= 5:
                c.p = p + 5
                return PyLong_FromLong(<int32_t> load_u32(p + 1))
            if code == codes.LONG and left >= 9:
                c.p = p + 9
                return PyLong_FromLongLong(<int64_t> load_u64(p + 1))
        elif work == FLOAT:
            if code == codes.DOUBLE and left >= 9:
                c.p = p + 9
                return PyFloat_FromDouble(load_double(p + 1))
        elif work == BYTES:
            n = p[1]
            if code == codes.VBIN8 and n <= left - 2:
                c.p = p + 2 + n
                return PyBytes_FromStringAndSize(<const char *> p + 2, n)
    if work == RECORD:
        return take_record(plan, c, depth)
    if work == BOOL and left >= 1 and (code == codes.TRUE or code == codes.FALSE):
        c.p = p + 1
        return code == codes.TRUE
    if work == LIST:
        return take_list(plan, c, depth)
    if work == DICT:
        return take_dict(plan, c, depth)
    if work == TUPLE:
        return take_tuple(plan, c, depth)
    return take_other(plan, c, depth)


# --- lists and maps ---

# The items of a list or map.
ctypedef struct Items:
    const uint8_t *outer        # end of what contains it
    const uint8_t *end
    Py_ssize_t count


cdef bint open_items(Cursor *c, Items *items, uint8_t code8, int depth) noexcept:
    """Read the size and count of a list or map, and move the cursor to its first item.

    False if there is none, or if it is malformed; then the cursor stays where it is.
    """
    cdef const uint8_t *p = c.p
    cdef Py_ssize_t left = c.end - p
    cdef Py_ssize_t size, width
    if left >= 3 and p[0] == code8:
        size = p[1]
        items.count = p[2]
        width = 1
    elif left >= 9 and p[0] == code8 + codes.SIZE32:
        size = load_u32(p + 1)
        items.count = load_u32(p + 5)
        width = 4
    else:
        return False
    # each item takes at least one byte: do not allocate memory for more items than bytes
    if size < width or size > left - 1 - width or items.count > size - width or depth >= MAX_DEPTH:
        return False
    items.outer = c.end
    items.end = p + 1 + width + size
    c.end = items.end
    c.p = p + 1 + 2 * width
    return True


cdef int close_items(Cursor *c, Items *items, const uint8_t *at, str kind) except -1:
    """Leave a list or map, which its items must fill."""
    if c.p != items.end:
        decode_error(c, at, f'{kind} of {items.end - at} bytes, not filled by its items')
    c.end = items.outer
    return 0


cdef object fail_items(Plan plan, Cursor *c, int depth):
    """Fail where a list or map should be; the general decoder reports a malformed value."""
    cdef const uint8_t *at = c.p
    return mismatch(plan, c, at, decode_value(c, depth))


cdef object take_list(Plan plan, Cursor *c, int depth):
    cdef const uint8_t *at = c.p
    cdef Items items
    cdef Py_ssize_t i
    cdef PyObject *found
    if c.end - at >= 1 and at[0] == codes.LIST0 and depth < MAX_DEPTH:
        c.p = at + 1
        return []
    if not open_items(c, &items, codes.LIST8, depth):
        return fail_items(plan, c, depth)
    result = rbfly_list(items.count)
    for i in range(items.count):
        # leave one byte for each later item, so that nested lists cannot count on the same bytes
        c.end = items.end - (items.count - 1 - i)
        found = (<raw_take> take)(plan.item, c, depth + 1)
        if found is NULL:
            return fail_at(NULL, i, None)
        if rbfly_list_give(result, found) < 0:
            return keep_error()
    close_items(c, &items, at, 'list')
    return result


cdef object take_tuple(Plan plan, Cursor *c, int depth):
    cdef const uint8_t *at = c.p
    cdef Items items
    cdef Py_ssize_t i
    cdef PyObject *found
    cdef Py_ssize_t count = len(plan.plans)
    cdef list result = []
    if not count and c.end - at >= 1 and at[0] == codes.LIST0 and depth < MAX_DEPTH:
        c.p = at + 1
        return ()
    if not open_items(c, &items, codes.LIST8, depth):
        return fail_items(plan, c, depth)
    if items.count != count:
        raise AMQPDecoderError(
            f'expected {plan.name}, got a list with {items.count} items', at - c.start
        )
    for i in range(count):
        found = (<raw_take> take)(<Plan> plan.plans[i], c, depth + 1)
        if found is NULL:
            return fail_at(NULL, i, None)
        result.append(rbfly_own(found))
    close_items(c, &items, at, 'list')
    return tuple(result)


cdef object take_dict(Plan plan, Cursor *c, int depth):
    cdef const uint8_t *at = c.p
    cdef Items items
    cdef Py_ssize_t _i
    cdef PyObject *found
    cdef dict result, hashes
    if not open_items(c, &items, codes.MAP8, depth) or items.count & 1:
        c.p = at
        return fail_items(plan, c, depth)
    result = {}
    hashes = {} if items.count > 2 * MAX_SAME_HASH else None
    for _i in range(items.count >> 1):
        found = (<raw_take> take)(plan.key, c, depth + 1)
        if found is NULL:
            return fail_at(NULL, None, ' (a key)')
        key = rbfly_own(found)
        found = (<raw_take> take)(plan.item, c, depth + 1)
        if found is NULL:
            return fail_at(NULL, key, None)
        value = rbfly_own(found)
        try:
            result[key] = value
        except TypeError:
            raise AMQPDecoderError(f'map key of unhashable type {name_of(key)}', at - c.start)
        # The sender may choose the hashes of other keys.
        if hashes is not None and type(key) is not str and type(key) is not int:
            note_hash(hashes, c, at, key)
    close_items(c, &items, at, 'map')
    return result


# --- records ---

cdef Py_ssize_t take_rare_field(Plan plan, Cursor *c, int depth) except -2:
    """Read a key that is not a short string: -1 if it names no field."""
    cdef bytes text
    key = decode_value(c, depth)
    if not isinstance(key, str) and type(key) is not Symbol:
        return -1
    text = str(key).encode('utf-8', 'surrogatepass')
    return find_field(plan, <const uint8_t *> PyBytes_AS_STRING(text), PyBytes_GET_SIZE(text))


cdef object fail_unknown(Plan plan, Cursor *c, const uint8_t *at):
    c.p = at
    raise AMQPDecoderError(f'unknown field {clip(decode_value(c, 0))}', at - c.start)


cdef int fill(Plan plan, Cursor *c, int depth, PyObject **values) except -1:
    """Decode the fields of a record; those that the map lacks have their defaults."""
    cdef const uint8_t *at = c.p
    cdef const uint8_t *p
    cdef Field *fields = plan.fields
    cdef Field *field
    cdef Items items
    cdef Py_ssize_t i, n, next_field = 0, _pair
    cdef PyObject *found
    if not open_items(c, &items, codes.MAP8, depth) or items.count & 1:
        c.p = at
        fail_items(plan, c, depth)
    for _pair in range(items.count >> 1):
        p = c.p
        if c.end - p > 2 and p[0] == codes.STR8 and p[1] <= c.end - p - 2:
            n = p[1]
            i = next_field
            if i == plan.count or fields[i].size != n or not rbfly_same(fields[i].key, p + 2, n):
                i = find_field(plan, p + 2, n)
            c.p = p + 2 + n
        else:
            i = take_rare_field(plan, c, depth + 1)
        if i < 0:
            if plan.strict:
                fail_unknown(plan, c, p)
            skip_value(c)
            continue
        field = &fields[i]
        found = (<raw_take> take)(<Plan> field.plan, c, depth + 1)
        if found is NULL:
            fail_at(field, None, None)
        keep_last(&values[i], found)
        next_field = i + 1
    close_items(c, &items, at, 'map')
    for i in range(plan.count):
        if values[i] is NULL:
            use_default(plan, &fields[i], &values[i], at - c.start)
    return 0


cdef inline void keep_last(PyObject **place, PyObject *found) noexcept:
    # Of a field that occurs twice, the last value counts.
    cdef PyObject *former = place[0]
    place[0] = found
    if former is not NULL:
        Py_XDECREF(former)


cdef object take_record(Plan plan, Cursor *c, int depth):
    cdef PyObject *space[ON_STACK]
    cdef PyObject **values = space
    cdef PyObject *made = NULL
    cdef Py_ssize_t i, n = plan.count
    cdef bint filled
    if n > ON_STACK:
        values = <PyObject **> PyMem_Calloc(<size_t> n, sizeof(PyObject *))
        if values is NULL:
            raise MemoryError()
    else:
        memset(values, 0, <size_t> n * sizeof(PyObject *))
    filled = (<raw_fill> fill)(plan, c, depth, values) == 0
    if filled:
        made = (<raw_make> make_record)(plan, values)
    for i in range(n):
        Py_XDECREF(values[i])
    if n > ON_STACK:
        PyMem_Free(values)
    if made is not NULL:
        return rbfly_own(made)
    return fail_making(plan) if filled else keep_error()


# --- bodies ---

cdef object accept_body(Plan plan, Cursor *c, const uint8_t *at, object body):
    """Check a body that is not a value section: binary, a sequence, or none."""
    cdef PyObject *chosen = NULL
    if plan.work == BODY or plan.work == FOREIGN:
        if plan.work == BODY and not isinstance(body, bytes):
            raise AMQPDecoderError(
                f'expected a data section for the codec, got {name_of(body)}', at - c.start
            )
        try:
            return plan.make(bytes(body) if isinstance(body, bytes) else body)
        except MemoryError:
            raise
        except Exception as ex:
            return fail_made(plan, body, ex, at - c.start)
    if plan.work == UNION:
        chosen = plan.choices[
            K_NULL if body is None else K_BYTES if isinstance(body, bytes) else K_OTHER
        ]
        if chosen is not NULL:
            return accept_body(<Plan> chosen, c, at, body)
    if plan.work == BYTES and isinstance(body, bytes):
        return bytes(body)
    if plan.work == INSTANCE and isinstance(body, plan.make):
        return body
    if plan.work > UUID or isinstance(body, SequenceBody) and plan.work != ANY:
        return mismatch(plan, c, at, body)
    return accept(plan, c, at, body)


cdef object take_body(Plan plan, Cursor *c):
    cdef Layout layout
    cdef const uint8_t *at = c.p
    if not is_one_section(at, c.end - at):
        scan(c, &layout)
        at = c.p = c.start + layout.body_at
        if at == c.end:
            return accept_body(plan, c, at, None)
    if plan.work != BODY and take_descriptor(c) == VALUE:
        return take(plan, c, 0)
    c.p = at
    return accept_body(plan, c, at, build_body(c))


cdef object decode_typed(Plan plan, const uint8_t *p, Py_ssize_t n):
    cdef Cursor c
    cdef PyObject *found
    cursor_open(&c, p, p, p + n)
    found = (<raw_body> take_body)(plan, &c)
    return fail_at(NULL, None, '$') if found is NULL else rbfly_own(found)


cdef int type_body(Plan plan, Message ctx) except -1:
    cdef object _owner = ctx._owner     # hold a reference: classes may run any code
    body = decode_typed(plan, ctx._p, ctx._n)
    ctx._body = body
    ctx._body_ready = True
    ctx._plan = plan
    return 0
