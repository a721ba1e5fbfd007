from cpython.bytes cimport PyBytes_GET_SIZE
from libc.stdint cimport uint8_t, uint32_t

from rbfly._wire cimport OutBuffer, out_reserve, put_u32
from rbfly.amqp._codec cimport data_size, put_data

cdef enum:
    SUB_HEADER = 11         # bytes behind the publishing id: kind, count, two sizes
    SUB_MAX = 1 << 26       # bytes of a sub-entry's messages that RabbitMQ 4.3.5 accepts


cdef int put_any_message(OutBuffer *out, object message, bint amqp, Py_ssize_t limit) except -1

# The same for a message whose body a function of the program encodes to bytes.
cdef int put_custom(OutBuffer *out, object message, object encode, Py_ssize_t limit) except -1

# Append u16 length and filter value, for Publish v2.
cdef int put_filter(OutBuffer *out, object value) except -1

# Free memory after a roll-back, if it is much.
cdef int trim(OutBuffer *out) except -1


# Append u32 length and exact bytes as a message with one data section: the most common kind.
cdef inline int put_data_message(OutBuffer *out, object body) except -1:
    out_reserve(out, 4)
    put_u32(out, <uint32_t> data_size(body))
    return put_data(out, body)


# Append u32 length and message.  On an error, the caller rolls back.
cdef inline int put_message(
    OutBuffer *out, object message, bint amqp, Py_ssize_t limit
) except -1:
    if type(message) is not bytes or not amqp or PyBytes_GET_SIZE(message) > limit - 8:
        return put_any_message(out, message, amqp, limit)
    return put_data_message(out, message)


cdef class SubEntry:
    cdef readonly Py_ssize_t limit, count
    cdef readonly uint8_t code
    cdef object compress, encode
    cdef OutBuffer out
    cdef bytes stored               # compressed messages of a closed entry; None if not smaller

    cdef Py_ssize_t _put(self, object message, bint amqp, Py_ssize_t limit) except -1
    cdef bytes _compressed(self, Py_ssize_t size, Py_ssize_t limit)
    cdef Py_ssize_t _close(self, Py_ssize_t used) except -1
    cdef int _write(self, OutBuffer *out, Py_ssize_t used) except -1
    cdef int _drop(self, Py_ssize_t size) except -1
