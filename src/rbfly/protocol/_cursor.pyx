"""The position in a stream: the next message, and the last finished one.

    queue of chunks -> current chunk -> message selected? -> body, context or batch
"""

from libc.math cimport INFINITY
from libc.stdint cimport int64_t, uint8_t, uint64_t

from cpython.object cimport PyObject

from rbfly._turn cimport Turn
from rbfly.amqp._message cimport Message
from rbfly.protocol._batch cimport MessageBatch, new_batch
from rbfly.protocol._chunk cimport Chunk, ChunkQueue
from rbfly.protocol._decoder cimport SKIP, Decoder, rbfly_steal
from rbfly.protocol._identity cimport LastChunk

from rbfly.error import AMQPDecoderError, ChunkError, MessageContextError, SubscriptionError

KINDS = {'body': BODY, 'context': CONTEXT, 'batch': BATCH}

cdef uint64_t NEVER = 0xffffffffffffffff


cdef Py_ssize_t messages_in(object held) except -1:
    # A context is one message.
    return len(held) if type(held) is MessageBatch else 1


cdef class LastMessage:
    """The message that a cursor returned last; its context is built on demand.

    :ivar stream: name of the stream; None if the cursor has none.
    :ivar super_stream: name of the super stream that it is a partition of; None for none.
    """

    def __init__(self, MessageCursor cursor not None):
        self.decoder = cursor.decoder
        self.stream = cursor.stream
        self.super_stream = cursor.super_stream

    def context(self):
        """Return its context.  The body of a message that is not AMQP 1.0 is its bytes.

        :raises MessageContextError: no message was returned yet.
        """
        cdef Message ctx
        if self.built is None:
            if self.message is NULL:
                raise MessageContextError('no message was received yet')
            ctx = self.decoder._context(
                self.owner, self.message, self.size, self.offset, self.timestamp
            )
            ctx._stream = self.stream
            self.built = ctx
        elif type(self.built) is MessageBatch:
            self.built = (<MessageBatch> self.built).build(len(self.built) - 1)
        return self.built


cdef class MessageCursor:
    """Returns the messages of a :class:`ChunkQueue`, one after the other.

    :param session: has `on_chunk_consumed`, called after the last message of a chunk;
        `on_progress`, called when messages up to the offset passed to `notify_at` are finished;
        `on_replaced`, called when a chunk belongs to a new stream of the same name, which raises
        the error; and `on_end`, called when a chunk is not delivered because it follows `until`.
    :param decoder: decodes the messages.
    :param filter: selects the messages to return; None for all.
    :param wake: called when a chunk enters the empty queue.
    :param turn: limits how long other tasks wait; None for no limit.
    :param yield_after: number of chunks to finish in one turn; their credit is returned after it,
        or when none are left.
    :param stream: name of the stream; None if it is of no interest.
    :param super_stream: name of the super stream that the stream is a partition of; None for none.
    :param until: where the subscription ends (:class:`rbfly.protocol.end.End`); None for nowhere.
    :param queue_limit: maximum number of chunks in the queue.
    :ivar last: the message that was returned last (LastMessage).
    :ivar chunk: the chunk that is being read (Chunk); None for none.
    :ivar last_chunk: the chunk that was read last (LastChunk).
    :ivar skip_before: offset below which messages are dropped (int).
    :ivar skip_through_chunk: id up to which chunks are dropped (int); -1 for none.
    """

    def __init__(
        self, session, Decoder decoder not None, filter=None, wake=None, Turn turn=None,
        int yield_after=NO_LIMIT, str stream=None, str super_stream=None, until=None,
        int queue_limit=NO_LIMIT,
    ):
        self.session = session
        self.decoder = decoder
        self.queue = ChunkQueue(wake, queue_limit)
        self.stream = stream
        self.super_stream = super_stream
        self.until = until
        self.last = LastMessage(self)
        self.last_chunk = LastChunk()
        self.skip_through_chunk = -1
        self.filter = filter
        self.prefetches = filter is not None or (decoder.amqp and decoder.policy == SKIP)
        self.direct = not self.prefetches
        self.notify_offset = NEVER
        self.turn = Turn(INFINITY) if turn is None else turn
        self.yield_after = yield_after

    def resume(self, uint64_t skip_before=0, int64_t skip_through_chunk=-1):
        """Drop all chunks, and continue with those that the broker sends for a new subscription.

        :param skip_before: drop messages with an offset below this one.
        :param skip_through_chunk: drop chunks up to the one with this id; -1 for none.
        """
        self._drop_chunks(self.position)
        self.suspended = False
        self.skip_before = skip_before
        self.skip_through_chunk = skip_through_chunk

    def drop(self):
        """Drop all messages that were not returned; return the number of dropped chunks (int).

        The position stays after the last message that was returned.  Chunks that still arrive are
        also dropped: to continue, subscribe again at the position.  A pending error is still
        raised.
        """
        cdef object position = self.position
        held, self.held = self.held, None
        if held is not None:
            position = held.stream_offset if type(held) is Message else held.offsets[0]
            self._fail_with(None)
            self.delivered_before -= <uint64_t> messages_in(held)
        self.suspended = True
        return self._drop_chunks(position)

    cdef Py_ssize_t _drop_chunks(self, object position) except -1:
        cdef Py_ssize_t count = len(self.queue.chunks) + (self.chunk is not None)
        if self.chunk is not None:
            self._count_chunk(self.chunk)
        self.queue.chunks.clear()
        self.chunk = None
        if position is not None:
            self.chunk_done = True
            self.next_offset = position
        return count

    def start_over(self):
        """Forget everything read: the stream was deleted, and its offsets with it."""
        self.drop()
        self.resume()
        self._fail_with(None)
        self.chunk_done = self.has_delivered = False
        self.next_offset = 0
        self.last_chunk = LastChunk()   # a member of a group keeps the former one
        self.notify_offset = NEVER

    def close(self):
        """Drop all messages, and the references to the session and to the waiting task."""
        cdef object delivered = self.delivered
        self.drop()
        self._fail_with(None)
        if delivered is not None:       # not beyond the error
            self.next_offset = delivered
        self.queue.wake = None
        self.notify_offset = NEVER
        self.session = None

    @property
    def must_yield(self):
        """True if other tasks should run before the next message."""
        return not self._may_advance() or self.turn._is_over()

    @property
    def has_messages(self):
        """True if messages have arrived that were not returned."""
        cdef Chunk chunk = self.chunk
        if self.queue.chunks or self.held is not None:
            return True
        return chunk is not None and chunk.left > 0

    # -- progress

    cdef int _count_chunk(self, Chunk chunk) except -1:
        # The cursor leaves it.
        self.delivered_before += chunk.next_offset - self.read_from
        return 0

    @property
    def delivered_count(self):
        """Number of messages that were returned, or skipped because they cannot be decoded."""
        cdef uint64_t count = self.delivered_before
        if self.filter is not None:
            return self.taken
        if self.chunk is not None:
            count += self.chunk.next_offset - self.read_from
        if self.held is not None:
            count -= <uint64_t> messages_in(self.held)
        return count

    @property
    def position(self):
        """Offset after the last message that was returned or dropped; None before the first."""
        cdef Chunk chunk = self.chunk
        if chunk is not None:
            return max(chunk.next_offset, self.skip_before)
        return max(self.next_offset, self.skip_before) if self.chunk_done else None

    @property
    def delivered(self):
        """Offset after the last message that was returned; None before the first.

        Dropped messages after it count as returned; a message that is ready does not.
        """
        held = self.held
        if not self.has_delivered:
            return None
        if held is not None:
            return held.stream_offset if type(held) is Message else held.offsets[0]
        if self.failure is not None:    # to raise after the batch that was returned last
            return self.last.context().stream_offset + 1
        return self.position

    @property
    def unfinished(self):
        """Offset after the last finished message; None before the first."""
        return self.current_offset if self.has_delivered else None

    @property
    def finished(self):
        """Offset of the last finished message; None if there is none."""
        if self.has_delivered and self.current_offset > self.first_offset:
            return self.current_offset - 1
        return None

    @property
    def finished_count(self):
        """Number of finished messages that the filter has selected; None without a filter."""
        return None if self.filter is None else self.counted

    def notify_at(self, offset):
        """Call `on_progress` when the message with that offset, or a later one, is finished."""
        self.notify_offset = min(offset + 1, <object> NEVER)

    def mark_consumed(self):
        """Mark all returned messages as finished, because the program asks for more."""
        self._finish_all()

    cdef int _finish_all(self) except -1:
        if self.has_delivered:
            self.counted = self.taken
            self._finish_below(self.position)
        return 0

    cdef int _notify(self) except -1:
        self.notify_offset = NEVER
        self.session.on_progress()
        return 0

    # -- chunks

    cdef bint _open(self) except -1:
        """True if the current chunk has messages left; false also when the turn is over.

        :raises ChunkError: a chunk is damaged; the next call continues after it.
        """
        cdef Chunk chunk
        while True:
            chunk = self.chunk
            if chunk is not None:
                if chunk.left:
                    return True
                self._end_chunk()
            if not self.queue.chunks or self.turn._is_over():
                return False
            if self.suspended:
                self._drop_chunks(None)
                return False
            chunk = self.queue.chunks.popleft()
            self.read_from = chunk.next_offset
            if self.last_chunk._has_read(chunk):
                self._leave(chunk, False)
                continue
            self.chunk = chunk
            try:
                chunk.verify()
            except BaseException:
                self._leave(chunk, False)
                raise
            if self.last_chunk._is_replaced(chunk):
                self.chunk = None
                self.session.on_replaced()
            if self.until is not None and not self._shorten(chunk):
                return False
            self._skip(chunk)

    cdef bint _shorten(self, Chunk chunk) except -1:
        """Drop the messages after the end; return false if no other message is left."""
        cdef uint64_t stop = self.until.stop(chunk)
        if stop > chunk.offset:
            chunk._shorten(stop)
            return True
        self.suspended = True
        self._drop_chunks(None)     # messages that are ready to be returned stay
        self.session.on_end()
        return False

    cdef int _skip(self, Chunk chunk) except -1:
        """Skip messages before the start, then raise the first error among them."""
        cdef uint64_t start = self.skip_before
        cdef int64_t through = self.skip_through_chunk
        if through >= 0 and chunk.offset <= <uint64_t> through:
            start = NEVER
        failure = None
        while chunk.left and chunk.next_offset < start:
            try:
                chunk._skip_below(start)
            except ChunkError as ex:
                failure = failure or ex
        self.read_from = chunk.next_offset
        if failure is not None:
            raise failure
        return 0

    cdef int _leave(self, Chunk chunk, bint sound) except -1:
        self.chunk = None
        self._count_chunk(chunk)
        if self.last_chunk._move(chunk, sound):
            self.chunk_done = True
            self.next_offset = chunk.next_offset
        if self.counted_in != self.turn.number:
            self.counted_in = self.turn.number
            self.chunks_since_yield = 0
        self.chunks_since_yield += 1
        self.session.on_chunk_consumed(chunk)
        return 0

    cdef int _end_chunk(self) except -1:
        """Leave the current chunk, whose messages were returned."""
        cdef Chunk chunk = self.chunk
        cdef const uint8_t *p = NULL
        cdef Py_ssize_t n = 0
        self._leave(chunk, True)
        if not chunk.shortened:
            chunk._next(&p, &n)             # raises if bytes follow the last message
        return 0

    # -- messages

    cdef bint _advance(self, int kind, Py_ssize_t limit) except -1:
        """Make a body, context or batch ready; false if none has arrived or the turn is over.

        :raises ChunkError: a chunk is damaged; the next call continues after it.
        :raises AMQPDecoderError: a message is not AMQP 1.0; the next call continues after it.
        """
        if kind == BODY and self.direct:
            return self._open()
        if self.held is None:
            try:
                if self.failure is not None:
                    failure = self.failure
                    self._fail_with(None)
                    raise failure
                self.held = self._next(kind, limit)
            except AMQPDecoderError as ex:
                self._begin(ex.offset)
                raise
        return self.held is not None

    cdef int _fail_with(self, object error) except -1:
        self.failure = error
        self.direct = error is None and not self.prefetches
        return 0

    cdef object _take(self, int kind):
        """Return what `_advance` made ready.

        :raises AMQPDecoderError: it is not AMQP 1.0; the next call continues after it.
        """
        cdef Message ctx
        held = self.held
        if held is None:
            if kind != BODY or not self._has_body():
                raise SubscriptionError('no message is ready; one task at a time can iterate')
            return self._take_body()
        if (type(held) is MessageBatch) != (kind == BATCH):
            raise SubscriptionError('another iteration has requested the message that is ready')
        self.held = None
        if self.filter is not None:
            self._count(held)
        if kind == BATCH:
            self._note_built(held, (<MessageBatch> held).offset_at(0))
            return held
        ctx = held
        self._note_built(ctx, ctx._offset)
        return ctx if kind == CONTEXT else ctx.take_body()

    cdef int _count(self, object held) except -1:
        """Count the messages that are about to be returned; those before them are finished."""
        self.counted = self.taken
        self.taken += len(held) if type(held) is MessageBatch else 1
        return 0

    cdef object _take_body(self):
        cdef Chunk chunk = self.chunk
        cdef const uint8_t *p = NULL
        cdef Py_ssize_t n = 0
        cdef PyObject *body
        chunk._next_message(&p, &n)
        owner = chunk.source    # noting the message may run code that reads on
        self._note(chunk, p, n)
        body = self.decoder._body(p, n, <PyObject *> owner)
        if body is NULL:
            return self._undecodable_body(chunk, p, n)
        return rbfly_steal(body)

    cdef object _undecodable_body(self, Chunk chunk, const uint8_t *p, Py_ssize_t n):
        cdef uint64_t offset = chunk.next_offset - 1
        cdef Message ctx
        try:
            return self.decoder._undecodable(p, n, offset, self.stream)
        finally:
            ctx = self.decoder._undecodable_context(p, n, offset, chunk.timestamp)
            ctx._stream = self.stream
            self.last.built = ctx

    cdef object _next(self, int kind, Py_ssize_t limit):
        """The next context or batch; None if none has arrived or the turn is over."""
        while self._open():
            held = self._batch(limit) if kind == BATCH else self._next_selected()
            if held is not None or self.turn._is_over():
                return held
        return None

    cdef Message _next_selected(self):
        """The next selected message of the current chunk; None if it or the turn ends before."""
        cdef Chunk chunk = self.chunk
        cdef Decoder decoder = self.decoder
        cdef const uint8_t *p = NULL
        cdef Py_ssize_t n = 0
        cdef uint64_t offset
        cdef Message ctx
        cdef object owner
        while chunk.left:
            chunk._next_message(&p, &n)
            owner = chunk.source        # kept, whatever the filter does
            offset = chunk.next_offset - 1
            try:
                ctx = decoder._full_context(owner, p, n, offset, chunk.timestamp)
                ctx._stream = self.stream
                if self.filter is None or self.filter.matches(ctx):
                    return ctx
            except AMQPDecoderError as ex:
                if decoder._handle(ex, p, n, offset, self.stream) is not None:
                    ctx = decoder._undecodable_context(p, n, offset, chunk.timestamp)
                    ctx._stream = self.stream
                    return ctx
            if self.turn._is_over():
                break
        return None

    cdef MessageBatch _batch(self, Py_ssize_t limit):
        """A batch of the current chunk; None if it has no message to return."""
        cdef MessageBatch batch = new_batch(
            self.decoder, self.filter is not None, self.chunk, limit, self.stream
        )
        try:
            if self.filter is not None:
                self._fill_filtered(batch, limit)
            else:
                batch.fill(self.chunk, limit)
        except Exception as ex:
            if not batch.bodies:
                raise
            self._fail_with(ex)
        return batch if batch.bodies else None

    def join(self, Py_ssize_t limit, double now):
        """Make a batch ready that contains messages of all chunks that have arrived.

        Further calls add to it, until it is taken.  It takes no chunk in while it keeps 16 MiB
        alive, and ends before an error.

        :param limit: maximum number of messages.
        :param now: the time in seconds, by any clock.
        :returns: age of the batch in seconds (float), infinity if nothing can be added; None if no
            message has arrived.
        :raises ChunkError: a chunk is damaged; the next call continues after it.
        :raises AMQPDecoderError: a message is not AMQP 1.0; the next call continues after it.
        """
        cdef MessageBatch batch, part
        if not self._advance(BATCH, limit):
            return None
        if type(self.held) is not MessageBatch:
            return INFINITY             # `_take` raises the error
        batch = self.held
        if not batch.size:
            batch.measure(self.chunk, now)
            if self.has_delivered:      # the program asks for more
                self.counted = self.taken
                self._finish_below(batch.offset_at(0))
        while self.failure is None and not batch.is_full(limit):
            # If the next chunk is of a new stream, reading it drops the batch.
            if self.last_chunk.unverified and self.queue.chunks:
                return INFINITY
            try:
                if not self._may_advance() or not self._open():
                    return now - batch.since
                part = self._batch(limit - len(batch.bodies))
            except Exception as ex:
                self._fail_with(ex)     # raised after the batch
                break
            if part is not None:
                part.measure(self.chunk, now)
                self.held = batch = batch.join(part)
        return INFINITY

    cdef int _fill_filtered(self, MessageBatch batch, Py_ssize_t limit) except -1:
        cdef Message ctx
        cdef Chunk chunk = self.chunk
        while batch.has_capacity(chunk, limit):
            ctx = self._next_selected()
            if ctx is None:
                break
            batch.filtered.append(ctx)
            batch.bodies.append(ctx.take_body())
        return 0
