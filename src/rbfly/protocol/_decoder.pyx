"""Decodes received messages as AMQP 1.0, or not at all, and handles undecodable ones."""

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING
from libc.stdint cimport int64_t, uint8_t, uint64_t

from rbfly.amqp._codec cimport decode_context
from rbfly.amqp._decode cimport keep_error
from rbfly.amqp._layout cimport data_head, open_sections
from rbfly.amqp._message cimport Message, view_of
from rbfly.amqp._plan cimport Plan
from rbfly.amqp._typed cimport decode_typed, type_body

from rbfly.error import AMQPDecoderError, without_frames

POLICIES = {'raise': RAISE, 'skip': SKIP, 'raw': RAW}


cdef Message raw_context(object body, uint64_t offset, int64_t timestamp):
    return Message(body, stream_offset=offset, stream_timestamp=timestamp / 1000.0)


cdef object special(Decoder decoder, object owner, const uint8_t *p, Py_ssize_t n):
    cdef Py_ssize_t head
    if decoder.plan is not None:
        return decode_typed(decoder.plan, p, n)
    if decoder.copies:
        return p[:n]
    if not decoder.amqp:
        return view_of(owner, p, n)
    head = data_head(p, n)
    if head:
        return view_of(owner, p + head, n - head)
    return viewing_context(owner, p, n, 0, 0).take_body()


cdef Message viewing_context(
    object owner, const uint8_t *p, Py_ssize_t n, uint64_t offset, int64_t timestamp
):
    cdef Message ctx = decode_context(owner, p, n, offset, timestamp / 1000.0)
    view = ctx.data_view()
    if view is not None:
        ctx._body = view
        ctx._body_ready = True
    return ctx


cdef Message special_context(
    Decoder decoder, object owner, const uint8_t *p, Py_ssize_t n, uint64_t offset,
    int64_t timestamp,
):
    cdef Message ctx
    if not decoder.amqp:
        body = p[:n] if decoder.copies else view_of(owner, p, n)
        return raw_context(body, offset, timestamp)
    if not decoder.copies:
        return viewing_context(owner, p, n, offset, timestamp)
    ctx = decode_context(owner, p, n, offset, timestamp / 1000.0)
    type_body(decoder.plan, ctx)
    return ctx


@cython.final
cdef class Decoder:
    """Decodes the messages of a subscription.

    :param amqp: decode messages as AMQP 1.0; if false, return their bytes.
    :param plan: decodes bodies to a requested type (Plan); None for what the messages contain.
    :param on_decode_error: what to do with a message that is not AMQP 1.0: `'raise'`, `'skip'`, or
        return its bytes (`'raw'`).
    :param copy: copy binary bodies; if false, they are views of the chunk.
    """

    def __init__(
        self, bint amqp=True, str on_decode_error='raise', Plan plan=None, bint copy=True
    ):
        self.amqp = amqp
        self.plan = plan
        self.copies = copy
        self.plain = amqp and plan is None and copy
        self.policy = POLICIES[on_decode_error]

    cdef Message _undecodable_context(
        self, const uint8_t *p, Py_ssize_t n, uint64_t offset, int64_t timestamp
    ):
        cdef Message ctx = raw_context(p[:n], offset, timestamp)
        ctx._owner = ctx._body
        ctx._p = <const uint8_t *> PyBytes_AS_STRING(ctx._body)
        ctx._n = n
        ctx._sections = open_sections(NULL, 0)
        ctx._sections.error = self._type_error(ctx._p, n)
        return ctx

    cdef object _type_error(self, const uint8_t *p, Py_ssize_t n):
        if self.plan is not None:
            try:
                decode_typed(self.plan, p, n)
            except AMQPDecoderError as ex:
                return without_frames(ex)

    cdef object _undecodable(self, const uint8_t *p, Py_ssize_t n, uint64_t offset, str stream):
        """Handle the current exception: return the message's bytes, None to skip it, or raise."""
        try:
            keep_error()
        except AMQPDecoderError as ex:
            return self._handle(ex, p, n, offset, stream)

    cdef object _handle(
        self, object error, const uint8_t *p, Py_ssize_t n, uint64_t offset, str stream
    ):
        """Like `_undecodable`, for an exception that was caught."""
        if self.policy == SKIP:
            return None
        if self.policy == RAW:
            return p[:n]
        error.stream = stream
        error.offset = offset
        error.data = p[:n]
        raise error
