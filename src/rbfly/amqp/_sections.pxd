# Header and properties, and how they are written.  No ABI promise between releases.

cimport cython

from rbfly._wire cimport OutBuffer


@cython.final
cdef class AMQPHeader:
    cdef readonly bint durable
    cdef readonly object priority
    cdef readonly object ttl
    cdef readonly bint first_acquirer
    cdef readonly object delivery_count

    cdef tuple astuple(self)


@cython.final
cdef class AMQPProperties:
    cdef tuple _fields


# An int of 0 to `limit`, or an encoder error that tells the name.
cdef object check_uint(object value, object limit, str name)

# Properties out of the decoded value of their section: a list, or None.
cdef AMQPProperties decoded_properties(object value)

# Lists of the fields; `count` is what header_length or properties_length gave, not 0.
cdef Py_ssize_t header_length(AMQPHeader header) except -1
cdef Py_ssize_t properties_length(AMQPProperties properties) except -1
cdef int encode_header(OutBuffer *out, AMQPHeader header, Py_ssize_t count) except -1
cdef int encode_properties(OutBuffer *out, AMQPProperties properties, Py_ssize_t count) except -1
