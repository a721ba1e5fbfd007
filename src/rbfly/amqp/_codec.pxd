# Encode and decode whole messages.  No ABI promise between releases.

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from libc.stdint cimport uint8_t, uint32_t, uint64_t

from rbfly._wire cimport OutBuffer, out_reserve, store_u32
from rbfly.amqp._layout cimport DATA8
from rbfly.amqp._message cimport Message
from rbfly.amqp._native cimport rbfly_copy

# Append the encoding of `message`, a body of any type or a Message.  On an error, out.p may be
# anywhere beyond its old position; the caller has to restore it.
cdef int encode_message(OutBuffer *out, object message) except -1

# Decode only the body of the message in [p, p + n).
cdef object decode_body(const uint8_t *p, Py_ssize_t n)

# Create a context over a slice of `owner`, a `bytes` or memoryview that it keeps alive.  This
# checks the structure of the message; values are checked when they are first accessed.
cdef Message decode_context(
    object owner, const uint8_t *p, Py_ssize_t n, uint64_t stream_offset, double stream_timestamp
)


cdef int put_long_data(OutBuffer *out, object body) except -1


cdef enum:
    SHORT = 255         # longest bytes or text whose size takes one byte
    SHORT_HEAD = 5      # bytes before it


# Size of a message that is only a section of `n` bytes of data or of text.
cdef inline Py_ssize_t section_size(Py_ssize_t n) noexcept:
    return n + SHORT_HEAD if n <= SHORT else n + 8


# Size of exact bytes as a message with one data section.
cdef inline Py_ssize_t data_size(object body) noexcept:
    return section_size(PyBytes_GET_SIZE(body))


# Write the head, DATA8 or TEXT8, of a section of `n` bytes, at most SHORT; return its end.
cdef inline uint8_t *store_short_head(uint8_t *p, uint32_t head, Py_ssize_t n) noexcept:
    store_u32(p, head)
    p[4] = <uint8_t> n
    return p + SHORT_HEAD


# Append exact bytes as a message with one data section.
cdef inline int put_data(OutBuffer *out, object body) except -1:
    cdef Py_ssize_t n = PyBytes_GET_SIZE(body)
    cdef uint8_t *p
    if n > SHORT:
        return put_long_data(out, body)
    out_reserve(out, n + SHORT_HEAD)
    p = store_short_head(out.p, DATA8, n)
    rbfly_copy(p, <const uint8_t *> PyBytes_AS_STRING(body), n)
    out.p = p + n
    return 0
