# VALUES room, upper half: sections and messages (part 3 of the AMQP 1.0 specification).
# No ABI promise between releases.

from libc.stdint cimport uint8_t, uint64_t

from rbfly._wire cimport OutBuffer
from rbfly.amqp._sections cimport AMQPHeader, AMQPProperties


cdef class Sections:
    cdef list values
    cdef Py_ssize_t[6] at


cdef class MessageCtx:
    # `body` is right when `_body_ready`; else it is decoded out of the bytes at `_p`, which
    # `_owner` keeps alive.  Read it with take_body().
    cdef object _body
    cdef object _owner
    cdef Sections _sections
    cdef const uint8_t *_p
    cdef Py_ssize_t _n
    cdef Py_ssize_t _body_at
    cdef public uint64_t stream_offset
    cdef public double stream_timestamp
    cdef public uint64_t stream_publish_id
    cdef public bint is_set_stream_publish_id
    cdef bint _body_ready

    cdef object take_body(self)
    cdef object section(self, int index)


# Append the encoding of `message`, a body of any type or a MessageCtx.  On an error out.p may be
# anywhere behind where it was: the caller rolls back.
cdef int encode_message(OutBuffer *out, object message) except -1

# Body of the message in [p, p + n), without building anything else.
cdef object decode_body(const uint8_t *p, Py_ssize_t n)

# Context over a slice of `owner`, which is `bytes` or a memoryview and is kept alive.  What the
# message consists of is checked at once, values when first asked for.
cdef MessageCtx decode_context(
    object owner, const uint8_t *p, Py_ssize_t n, uint64_t stream_offset, double stream_timestamp
)
