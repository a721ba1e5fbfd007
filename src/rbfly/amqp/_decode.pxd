# Decode one AMQP 1.0 value.  No ABI promise between releases.

from libc.stdint cimport uint8_t

from rbfly.amqp._types cimport MAX_ZERO_WIDTH

# A cursor over one message.  Positions in errors are relative to `start`.  `zero_width` is the
# number of zero-width array elements that may still be created; `other_keys` is set when a map key
# is not a short ASCII string.
ctypedef struct Cursor:
    const uint8_t *p
    const uint8_t *end
    const uint8_t *start
    Py_ssize_t zero_width
    bint other_keys


cdef inline void cursor_open(
    Cursor *c, const uint8_t *start, const uint8_t *p, const uint8_t *end
) noexcept:
    c.start = start
    c.p = p
    c.end = end
    c.zero_width = MAX_ZERO_WIDTH


# Propagate the current exception.
cdef inline int keep_error() except -1:
    return -1


cdef object decode_value(Cursor *c, int depth)
cdef object decode_error(Cursor *c, const uint8_t *at, str problem)

# Count a key of a map in `hashes`; fail for too many with the same hash.
cdef int note_hash(dict hashes, Cursor *c, const uint8_t *at, object key) except -1
