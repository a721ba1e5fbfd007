# Whole messages.  No ABI promise between releases.

from libc.stdint cimport uint8_t, uint64_t

from rbfly._wire cimport OutBuffer
from rbfly.amqp._message cimport MessageCtx

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
