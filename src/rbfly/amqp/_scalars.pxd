# Encoding of scalars.  No ABI promise between releases.
# The most common types are inline.

from cpython.object cimport PyObject
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t

from rbfly._cpython cimport rbfly_small_integer
from rbfly._wire cimport OutBuffer, double_bits, out_reserve, store_u32, store_u64
from rbfly.amqp cimport _constructors as codes
from rbfly.amqp._native cimport rbfly_ascii_data, rbfly_copy
from rbfly.amqp._types cimport Symbol

cdef int fail_size(Py_ssize_t n) except -1
cdef int put_wide(OutBuffer *out, uint8_t code8, const void *data, Py_ssize_t n) except -1
cdef int put_long_text(OutBuffer *out, object value) except -1
cdef int put_big_integer(OutBuffer *out, object value) except -1
cdef int put_uuid(OutBuffer *out, object value) except -1
cdef int encode_symbol(OutBuffer *out, Symbol value) except -1
# Append a uint or ulong; `code` is its wide constructor.
cdef int encode_unsigned(OutBuffer *out, object value, int code) except -1
cdef int encode_binary(OutBuffer *out, object value) except -1


cdef inline int put_sized(
    OutBuffer *out, uint8_t code8, const void *data, Py_ssize_t n
) except -1:
    cdef uint8_t *p
    if n > 255:
        return put_wide(out, code8, data, n)
    out_reserve(out, n + 2)
    # a local pointer: the compiler must assume that writing bytes may change `out`
    p = out.p
    p[0] = code8
    p[1] = <uint8_t> n
    rbfly_copy(p + 2, <const uint8_t *> data, n)
    out.p = p + 2 + n
    return 0


cdef inline int encode_text(OutBuffer *out, object value) except -1:
    cdef Py_ssize_t n = 0
    cdef const char *data = NULL
    if rbfly_ascii_data(<PyObject *> value, &data, &n):
        return put_sized(out, codes.STR8, data, n)
    return put_long_text(out, value)


cdef inline int put_integer(OutBuffer *out, int64_t v) except -1:
    cdef uint8_t *p
    out_reserve(out, 9)
    p = out.p
    if -128 <= v <= 127:
        p[0] = codes.SMALLINT
        p[1] = <uint8_t> v
        out.p = p + 2
    elif -0x80000000 <= v <= 0x7fffffff:
        p[0] = codes.INT
        store_u32(p + 1, <uint32_t> v)
        out.p = p + 5
    else:
        p[0] = codes.LONG
        store_u64(p + 1, <uint64_t> v)
        out.p = p + 9
    return 0


cdef inline int put_double(OutBuffer *out, double v) except -1:
    cdef uint8_t *p
    out_reserve(out, 9)
    p = out.p
    p[0] = codes.DOUBLE
    store_u64(p + 1, double_bits(v))
    out.p = p + 9
    return 0


cdef inline int encode_integer(OutBuffer *out, object value) except -1:
    cdef int64_t v = 0
    if rbfly_small_integer(<PyObject *> value, &v):
        return put_integer(out, v)
    return put_big_integer(out, value)
