from libc.stdint cimport uint8_t

from rbfly._wire cimport OutBuffer

# Append u32 length and message.  On an error, the caller rolls back.
cdef int put_message(OutBuffer *out, object message, bint amqp, Py_ssize_t limit) except -1

# Append u16 length and filter value, for Publish v2.
cdef int put_filter(OutBuffer *out, object value) except -1

# Free memory after a roll-back, if it is much.
cdef int trim(OutBuffer *out) except -1


cdef class SubEntry:
    cdef readonly Py_ssize_t limit, count
    cdef readonly uint8_t code
    cdef object compress
    cdef OutBuffer out

    cdef Py_ssize_t _put(self, object message, bint amqp, Py_ssize_t limit) except -1
    cdef bytes _compressed(self, Py_ssize_t size, Py_ssize_t limit)
    cdef int _drop(self, Py_ssize_t size) except -1
