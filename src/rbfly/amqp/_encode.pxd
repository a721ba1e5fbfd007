# Encode one Python value as an AMQP 1.0 value.  No ABI promise between releases.

from libc.stdint cimport uint8_t

from rbfly._wire cimport OutBuffer, out_reserve

# The types allowed for map keys, which depend on the section that contains the map.
cdef enum:
    KEYS_ANY, KEYS_STRING, KEYS_ANNOTATION

# `depth` is the number of compounds and described values around the value.
cdef int encode_value(OutBuffer *out, object value, int depth) except -1
cdef int encode_map(OutBuffer *out, object value, int depth, int keys) except -1
cdef int encode_sequence(OutBuffer *out, object items, int depth) except -1
cdef int close_wide(OutBuffer *out, Py_ssize_t first, Py_ssize_t count, uint8_t code8) except -1


# Leave room for the header of a list, map or array, and return the position after it, which is
# negative if the header is wide.  The width is a guess from the number of items; close_compound
# moves the items if the guess was wrong.  open_wide does so before a long value, which then stays.
# Inlining both functions saves 4 % of the instructions of nested values.
cdef inline Py_ssize_t open_compound(OutBuffer *out, Py_ssize_t count) except 0:
    if count > 32:
        out_reserve(out, 9)
        out.p += 9
        return out.start - out.p
    out_reserve(out, 3)
    out.p += 3
    return out.p - out.start


cdef inline int close_compound(
    OutBuffer *out, Py_ssize_t first, Py_ssize_t count, uint8_t code8
) except -1:
    cdef Py_ssize_t n = out.p - out.start - first
    cdef uint8_t *head
    if first > 0 and n <= 254:
        head = out.start + first - 3
        head[0] = code8
        head[1] = <uint8_t> (n + 1)
        head[2] = <uint8_t> count
        return 0
    return close_wide(out, first, count, code8)
