from cpython.bytes cimport PyBytes_GET_SIZE

from rbfly._wire cimport OutBuffer


cdef enum:
    LARGE = 1 << 12         # bytes of a body from which on a frame does not copy it

cdef inline bint is_large(object message) noexcept:
    return type(message) is bytes and PyBytes_GET_SIZE(message) >= LARGE


# Append u32 length of a message and, in AMQP 1.0, the head of its data section, but not the body.
cdef int put_head(OutBuffer *out, bytes body, bint amqp) except -1


cdef class LargeBodies:
    cdef dict bodies                # by the start of their entries in the frame, in order
    cdef Py_ssize_t size            # of all of them, in bytes

    cdef int add(self, Py_ssize_t start, bytes body) except -1
    cdef bytes get(self, Py_ssize_t start)
    cdef list parts(self, bytes data, bint amqp)
