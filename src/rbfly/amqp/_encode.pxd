# Encode one Python value as an AMQP 1.0 value.  No ABI promise between releases.

from libc.stdint cimport uint8_t

from rbfly._wire cimport OutBuffer

# The types allowed for map keys, which depend on the section that contains the map.
cdef enum:
    KEYS_ANY, KEYS_STRING, KEYS_ANNOTATION

# `depth` is the number of compounds and described values around the value.
cdef int encode_value(OutBuffer *out, object value, int depth) except -1
cdef int encode_map(OutBuffer *out, object value, int depth, int keys) except -1
cdef int encode_sequence(OutBuffer *out, object items, int depth) except -1
cdef Py_ssize_t open_compound(OutBuffer *out, Py_ssize_t count) except -1
cdef int close_compound(
    OutBuffer *out, Py_ssize_t first, Py_ssize_t count, uint8_t code8
) except -1
