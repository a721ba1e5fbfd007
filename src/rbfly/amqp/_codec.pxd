# Encode and decode whole messages.  No ABI promise between releases.

from libc.stdint cimport uint8_t, uint64_t

from rbfly._wire cimport OutBuffer
from rbfly.amqp._message cimport MessageCtx

# Append the encoding of `message`, a body of any type or a MessageCtx.  On an error, out.p may be
# anywhere beyond its old position; the caller has to restore it.
cdef int encode_message(OutBuffer *out, object message) except -1

# Decode only the body of the message in [p, p + n).
cdef object decode_body(const uint8_t *p, Py_ssize_t n)

# Create a context over a slice of `owner`, a `bytes` or memoryview that it keeps alive.  This
# checks the structure of the message; values are checked when they are first accessed.
cdef MessageCtx decode_context(
    object owner, const uint8_t *p, Py_ssize_t n, uint64_t stream_offset, double stream_timestamp
)
