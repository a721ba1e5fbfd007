# VALUES room: one Python value <-> one AMQP 1.0 value (part 1 of the specification).
# Sections and messages stand in `_message`.  No ABI promise between releases.

from libc.stdint cimport uint8_t

from rbfly._wire cimport OutBuffer
from rbfly.amqp._types cimport Symbol

cdef enum:
    MAX_DEPTH = 100
    MAX_ZERO_WIDTH = 65536

# What the keys of a map must be: that depends on the section that holds it.
cdef enum:
    KEYS_ANY = 0
    KEYS_STRING = 1
    KEYS_ANNOTATION = 2

# A cursor over one message.  `start` gives the positions in errors, `zero_width` counts down what
# array elements without bytes may still be made.
ctypedef struct Cursor:
    const uint8_t *p
    const uint8_t *end
    const uint8_t *start
    Py_ssize_t zero_width


cdef inline void cursor_open(
    Cursor *c, const uint8_t *start, const uint8_t *p, const uint8_t *end
) noexcept:
    c.start = start
    c.p = p
    c.end = end
    c.zero_width = MAX_ZERO_WIDTH


cdef int encode_value(OutBuffer *out, object value, int depth) except -1
cdef int encode_binary(OutBuffer *out, object value) except -1
cdef int encode_map(OutBuffer *out, object value, int depth, int keys) except -1
cdef int encode_sequence(OutBuffer *out, object items, int depth) except -1
cdef int encode_symbol(OutBuffer *out, Symbol value) except -1
cdef Py_ssize_t open_compound(OutBuffer *out, Py_ssize_t count) except -1
cdef int close_compound(
    OutBuffer *out, Py_ssize_t first, Py_ssize_t count, uint8_t code8
) except -1
cdef int put_timestamp(OutBuffer *out, object value) except -1
cdef int encode_uint(OutBuffer *out, object value) except -1
cdef int encode_ulong(OutBuffer *out, object value) except -1
cdef int encode_ubyte(OutBuffer *out, object value) except -1

cdef object decode_value(Cursor *c, int depth)
cdef object decode_error(Cursor *c, const uint8_t *at, str problem)
