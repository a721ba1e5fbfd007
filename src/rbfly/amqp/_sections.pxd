# Header and properties, and their encoding.  No ABI promise between releases.

cimport cython

from rbfly._wire cimport OutBuffer
from rbfly.amqp._decode cimport Cursor


@cython.final
cdef class AMQPHeader:
    cdef readonly object durable, priority, ttl, first_acquirer, delivery_count

    cdef tuple astuple(self)


@cython.final
cdef class AMQPProperties:
    cdef tuple _fields


# The names of AMQPProperties._fields.
cdef tuple PROPERTY_NAMES

# Check that a value is an int from 0 to `limit`, and return it; errors contain `name`.
cdef object check_uint(object value, object limit, str name)

# Create a header or properties from the decoded value of the section: a list, or None.  Fields of
# other types stay as they are.
cpdef AMQPHeader received_header(list fields)
cpdef AMQPProperties received_properties(list fields)

# The same from the bytes, without a list in between; None, with the cursor where it was, if their
# form is unusual or wrong.
cdef AMQPProperties decode_properties(Cursor *c)

# Write the list of fields; `count` is the nonzero result of header_length or properties_length.
cdef Py_ssize_t header_length(AMQPHeader header) except -1
cdef Py_ssize_t properties_length(AMQPProperties properties) except -1
cdef int encode_header(OutBuffer *out, AMQPHeader header, Py_ssize_t count) except -1
cdef int encode_properties(OutBuffer *out, AMQPProperties properties, Py_ssize_t count) except -1
