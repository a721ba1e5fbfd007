"""Atomic batches: one sub-entry with all messages of a call, one publishing id and one confirm.

The broker stores an entry as a whole or not at all.  A batch is encoded, compressed and checked
before it enters the window, which then treats it as any other sub-entry.
"""

cimport cython
from libc.stdint cimport uint64_t

from rbfly._wire cimport out_size
from rbfly.amqp._message cimport Message
from rbfly.protocol._entry cimport SUB_HEADER, SUB_MAX, SubEntry
from rbfly.protocol._frames cimport MESSAGE_HEAD, PREFIX, use_id
from rbfly.protocol._pending cimport ConfirmWaiter, SubEntrySpan
from rbfly.protocol._publish cimport PublishWindow
from rbfly.protocol._ring cimport contains

from rbfly.error import ArgumentError, MessageTooLarge, PublisherError, counted

ATOMIC_MAX = 0xFFFF     # messages


@cython.final
cdef class AtomicBatch:
    """Messages that become one entry.

    Compressed as the sub-entries of the window, if it has any.

    :param window: where the batch will go.
    :ivar count: number of messages encoded so far (int).
    """

    def __init__(self, PublishWindow window not None):
        cdef SubEntry like = window.sub_entry
        if window.filter_extract is not None:
            raise ArgumentError(
                'send_atomic needs a publisher without filter_extract: messages in sub-entries'
                ' cannot have filter values'
            )
        self.window = window
        if like is None:
            self.messages = SubEntry(ATOMIC_MAX)
        else:
            self.messages = SubEntry(ATOMIC_MAX, like.code, like.compress)

    @property
    def count(self):
        return self.messages.count

    cdef Py_ssize_t _limit(self) noexcept:
        # Of the entry in bytes, without its publishing id.
        return self.window.frame_max - (PREFIX - 4 + 8)

    def extend(self, messages):
        """Encode messages; stop behind one that makes the batch too large.

        :raises ArgumentError: a message has a publishing id, or the batch too many messages.
        :raises AMQPEncoderError: a message cannot be encoded as AMQP 1.0.
        :raises MessageTooLarge: a message does not fit into a frame.
        """
        cdef SubEntry batch = self.messages
        cdef Py_ssize_t limit = self.window.frame_max - (PREFIX - 4 + MESSAGE_HEAD)
        cdef Py_ssize_t most = SUB_MAX
        if batch.compress is None:
            most = min(most, self._limit() - SUB_HEADER)
        for message in messages:
            if type(message) is Message and (<Message> message).is_set_stream_publish_id:
                raise ArgumentError(
                    'a message of an atomic batch has no publishing id of its own: pass the'
                    ' publish_id of the batch to send_atomic'
                )
            if batch.count == batch.limit:
                raise ArgumentError(f'an atomic batch has at most {ATOMIC_MAX:,} messages')
            batch._put(message, self.window.amqp, limit)
            batch.count += 1
            if out_size(&batch.out) > most and batch.count > 1:
                break

    def close(self):
        """Compress the messages, and check that they fit into a frame.

        :raises MessageTooLarge: they do not.
        """
        cdef SubEntry batch = self.messages
        self.used = out_size(&batch.out)
        if self.used <= SUB_MAX:
            self.size = batch._close(self.used)
        if self.used > SUB_MAX or self.size > self._limit():
            self._fail()

    def _fail(self):
        cdef Py_ssize_t size = self.used, limit = SUB_MAX
        kind = ''
        if self.used <= SUB_MAX:
            size, limit = self.size, max(self._limit(), 0)
            if self.messages.stored is not None:
                kind = ' compressed'
        raise MessageTooLarge(
            f'an atomic batch does not fit into a frame: {counted(self.messages.count, "message")}'
            f' of it have {size}{kind} bytes; the limit is {limit} bytes'
        )


cdef uint64_t put_atomic(
    PublishWindow window, AtomicBatch batch, ConfirmWaiter waiter, object publish_id
) except? 0xdead:
    """Add a closed batch to the window; return its publishing id.

    After an error, the window is unchanged.

    :raises ArgumentError: the explicit publishing id was used before, or is too low.
    :raises MessageTooLarge: the frames of the connection are smaller than when it was closed.
    """
    cdef SubEntry messages = batch.messages
    cdef SubEntrySpan span
    cdef uint64_t id
    window._enter()
    try:
        if batch.size > batch._limit():
            batch._fail()
        if window.sub_entry is not None:
            window._close_sub_entry(out_size(&window.sub_entry.out))
        if publish_id is not None:
            id = publish_id
            window._check_explicit(id)
        else:
            id = window.next_id
            if contains(&window.used, id):
                raise PublisherError(f'publishing id {id}, the highest, is used up')
        span = SubEntrySpan.__new__(SubEntrySpan)
        span.waiter = waiter
        span.count = messages.count
        span.order = 0
        window._put_sub_entry(messages, batch.used, batch.size, id, [span])
        window.bytes_encoded += <uint64_t> batch.size
        window.queued += messages.count
        waiter.count += <uint64_t> messages.count
        waiter.remaining += messages.count
        use_id(window, id)
        if window.open.count >= window.frame_entries:
            window._finish_frame()
        return id
    finally:
        window.busy = False
