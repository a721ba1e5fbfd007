"""Encode scalars: numbers, text, binary and times, each in the smallest form of its type."""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from cpython.object cimport PyObject
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t

from rbfly._wire cimport (
    OutBuffer, is_beyond_u32, out_reserve, out_size, put_bytes, put_u8, put_u32, put_u64,
)
from rbfly.amqp cimport _constructors as codes
from rbfly.amqp._native cimport rbfly_ascii_data
from rbfly.amqp._types cimport Symbol, clip, copy_buffer

from rbfly.error import (
    AMQPEncoderIntegerError, AMQPEncoderOverflowError, AMQPEncoderValueError,
)

cdef enum:
    MAX_OUTPUT = 1 << 29    # bytes written before a value of more than 255 bytes

cdef extern from 'Python.h':
    long long PyLong_AsLongLongAndOverflow(object value, int *overflow) except? -1
    unsigned long long PyLong_AsUnsignedLongLong(object value) except? -1
    const char *PyUnicode_AsUTF8AndSize(object value, Py_ssize_t *size) except NULL


cdef int fail_size(Py_ssize_t n) except -1:
    raise AMQPEncoderValueError(f'{n} bytes are too many for an AMQP value')


cdef int put_wide(OutBuffer *out, uint8_t code8, const void *data, Py_ssize_t n) except -1:
    if is_beyond_u32(n):
        fail_size(n)
    if out_size(out) > MAX_OUTPUT:
        # a message may contain the same long value many times: it takes memory only when encoded
        raise AMQPEncoderValueError('message is larger than 512 MiB')
    out_reserve(out, n + 5)
    put_u8(out, code8 + codes.SIZE32)
    put_u32(out, <uint32_t> n)
    put_bytes(out, data, n)
    return 0


cdef int put_long_text(OutBuffer *out, object value) except -1:
    cdef Py_ssize_t n = 0
    cdef const char *data
    try:
        data = PyUnicode_AsUTF8AndSize(value, &n)
    except UnicodeEncodeError as ex:
        raise AMQPEncoderValueError(f'cannot encode a string as UTF-8: {ex}') from None
    return put_sized(out, codes.STR8, data, n)


cdef int encode_symbol(OutBuffer *out, Symbol value) except -1:
    cdef Py_ssize_t n = 0
    cdef const char *data = NULL
    cdef bytes name
    if value.name is None:      # only Symbol.__new__ was called
        raise AMQPEncoderValueError('symbol has no name: its __init__ was not called')
    if rbfly_ascii_data(<PyObject *> value.name, &data, &n):
        return put_sized(out, codes.SYM8, data, n)
    name = value.name.encode('utf-8', 'surrogateescape')
    return put_sized(out, codes.SYM8, PyBytes_AS_STRING(name), PyBytes_GET_SIZE(name))


cdef uint64_t unsigned(object value, uint64_t limit, str name) except? 0xdead:
    cdef uint64_t v
    try:
        v = PyLong_AsUnsignedLongLong(value)
        if v <= limit:
            return v
    except OverflowError:
        pass
    raise AMQPEncoderOverflowError(f'{clip(value)} is out of range for {name}')


cdef int put_big_integer(OutBuffer *out, object value) except -1:
    cdef int overflow = 0
    cdef int64_t v = PyLong_AsLongLongAndOverflow(value, &overflow)
    if overflow == 0:
        return put_integer(out, v)
    if overflow < 0 or int.bit_length(value) > 64:
        raise AMQPEncoderIntegerError(f'{clip(value)} is out of range for long and ulong')
    out_reserve(out, 9)
    put_u8(out, codes.ULONG)
    put_u64(out, PyLong_AsUnsignedLongLong(value))
    return 0


cdef int encode_unsigned(OutBuffer *out, object value, int code) except -1:
    cdef bint is_long = code == codes.ULONG
    cdef uint64_t v
    if is_long:
        v = unsigned(value, 0xffffffffffffffff, 'ulong')
    else:
        v = unsigned(value, 0xffffffff, 'uint')
    out_reserve(out, 9)
    if v == 0:
        put_u8(out, codes.ULONG0 if is_long else codes.UINT0)
    elif v <= 255:
        put_u8(out, codes.SMALLULONG if is_long else codes.SMALLUINT)
        put_u8(out, <uint8_t> v)
    else:
        put_u8(out, <uint8_t> code)
        if is_long:
            put_u64(out, v)
        else:
            put_u32(out, <uint32_t> v)
    return 0


cdef int encode_binary(OutBuffer *out, object value) except -1:
    """Append any object with a buffer as binary."""
    cdef Py_buffer view
    if isinstance(value, bytes):
        return put_sized(out, codes.VBIN8, PyBytes_AS_STRING(value), PyBytes_GET_SIZE(value))
    try:
        PyObject_GetBuffer(value, &view, PyBUF_SIMPLE)
    except Exception:
        return encode_binary(out, copy_buffer(value))
    try:
        return put_sized(out, codes.VBIN8, view.buf, view.len)
    finally:
        PyBuffer_Release(&view)


cdef int put_uuid(OutBuffer *out, object value) except -1:
    # a subclass may return anything
    try:
        data = value.bytes
    except Exception:
        data = None
    if type(data) is not bytes or PyBytes_GET_SIZE(data) != 16:
        raise AMQPEncoderValueError(f'cannot read the 16 bytes of a UUID: {clip(value)}')
    put_bytes(out, PyBytes_AS_STRING(data), 16)
    return 0
