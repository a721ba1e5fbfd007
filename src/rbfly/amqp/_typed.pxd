# Decode values into the classes of a program.  No ABI promise between releases.

from libc.stdint cimport uint8_t

from rbfly.amqp._message cimport Message
from rbfly.amqp._plan cimport Plan

# Decode the body of the message in [p, p + n); the owner of the bytes must stay alive.
cdef object decode_typed(Plan plan, const uint8_t *p, Py_ssize_t n)

# Replace the body of a received context with the decoded one.
cdef int type_body(Plan plan, Message ctx) except -1
