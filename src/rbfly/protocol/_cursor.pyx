"""The messages of a subscription, one after the other.

    queue of chunks -> chunk at hand -> message wanted? -> body, context or batch
"""

cimport cython
from cpython.object cimport PyObject
from libc.math cimport INFINITY
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t

from rbfly._cpython cimport (
    rbfly_list_give, rbfly_mark_step, rbfly_same_step, rbfly_watch_forks,
)
from rbfly._turn cimport Turn
from rbfly._wire cimport load_u32
from rbfly.amqp._codec cimport decode_body, decode_context
from rbfly.amqp._decode cimport keep_error
from rbfly.amqp._layout cimport DATA, data_head
from rbfly.amqp._message cimport MessageCtx
from rbfly.protocol._batch cimport MessageBatch, new_batch
from rbfly.protocol._chunk cimport Chunk, ChunkQueue
from rbfly.protocol._identity cimport LastChunk

from weakref import ref

from rbfly.amqp._message import set_message_ctx
from rbfly.error import (
    AMQPDecoderError, ChunkError, MessageContextError, SubscriptionError,
)

cdef extern from *:
    """
    /* An object whose reference is taken over. */
    #define rbfly_steal(found) (found)

    /* Bytes, or NULL with its error left set. */
    #define rbfly_bytes(p, n) PyBytes_FromStringAndSize((const char *)(p), n)
    """
    object rbfly_steal(PyObject *found)
    PyObject *rbfly_bytes(const uint8_t *p, Py_ssize_t n) noexcept


# What becomes of a message that is not AMQP 1.0.
cdef enum:
    RAISE = 0
    SKIP = 1
    RAW = 2

POLICIES = {'raise': RAISE, 'skip': SKIP, 'raw': RAW}

cdef enum:
    BATCH_UNPACKED = 1 << 24        # bytes of decompressed sub-entries after which a batch ends

cdef uint64_t NEVER = 0xffffffffffffffff

rbfly_watch_forks()

# The same function with its error left set, which costs less than try and except.
ctypedef PyObject *(*raw_decode_body)(const uint8_t *p, Py_ssize_t n) noexcept


cdef inline PyObject *read_body(bint amqp, const uint8_t *p, Py_ssize_t n) noexcept:
    # NULL with its error left set.
    return (<raw_decode_body> decode_body)(p, n) if amqp else rbfly_bytes(p, n)


@cython.final
cdef class LastMessage:
    """Where the message that a task got last lies; its context is built when it is asked for.

    It is what `get_message_ctx` finds in the task's context (:mod:`contextvars`).  A task that has
    inherited it gets a MessageContextError, never a later message than the one it was started for.

    :ivar stream: name of the stream of the message; None if the cursor does not know it.
    """

    def _current_message_ctx(self):
        if self.task is None or self.task() is not running_task(self.current_task):
            raise MessageContextError('this task has received no message')
        return self.context()

    def context(self):
        """Context of the message; its body is the bytes of the message if it is not AMQP 1.0.

        :raises MessageContextError: no message was given yet.
        """
        if self.made is None:
            if self.message is NULL:
                raise MessageContextError('no message was received yet')
            self.made = read_message(
                self.amqp, self.owner, self.message, self.size, self.offset, self.timestamp
            )
        elif type(self.made) is MessageBatch:
            self.made = (<MessageBatch> self.made).build(len(self.made) - 1)
        return self.made


cdef LastMessage new_last_message(bint amqp, str stream):
    cdef LastMessage last = LastMessage.__new__(LastMessage)
    last.amqp = amqp
    last.stream = stream
    return last


cdef object running_task(object current_task):
    try:
        return current_task()
    except RuntimeError:
        return None                 # no event loop runs in this thread


cdef MessageCtx read_message(
    bint amqp, object owner, const uint8_t *p, Py_ssize_t n, uint64_t offset, int64_t timestamp
):
    if amqp:
        return decode_context(owner, p, n, offset, timestamp / 1000.0)
    return MessageCtx(p[:n], stream_offset=offset, stream_timestamp=timestamp / 1000.0)


cdef class MessageCursor:
    """Takes messages from a :class:`ChunkQueue`, one after the other.

    :param session: has `check_loop`, called in each step of a task before it takes a message, which
        raises in another event loop; `on_chunk_consumed`, called after the last message of a chunk;
        `on_progress`, called when messages up to the offset passed to `notify_at` are finished;
        `on_replaced`, called when a chunk is of another stream than those before, which raises;
        `on_probed`, called when the first chunk was reported, to subscribe again; and the coroutine
        `wait(kind, limit, subscription)`, which waits for messages and takes them.
    :param amqp: decode messages; if false, return their bytes.
    :param filter: which messages to return; None for all.
    :param on_decode_error: `'raise'`, `'skip'` or `'raw'`.
    :param current_task: returns the running task.
    :param wake: called when a chunk enters the empty queue.
    :param turn: limits how long other tasks wait; None for no limit.
    :param yield_after: number of chunks to finish in one turn; their credit is returned after it.
    :param stream: name of the stream; None if it is of no interest.
    :ivar last_chunk: the chunk that was read last (LastChunk).
    :ivar skip_before: messages with an offset below are dropped (int).
    :ivar skip_through_chunk: so are chunks up to the one with this id (int); -1 for none.
    """

    def __init__(
        self, session, bint amqp=True, filter=None, str on_decode_error='raise', current_task=None,
        wake=None, Turn turn=None, int yield_after=NO_LIMIT, str stream=None,
    ):
        self.session = session
        self.queue = ChunkQueue(wake)
        self.last_chunk = LastChunk()
        self.skip_through_chunk = -1
        self.amqp = amqp
        self.stream = stream
        self.filter = filter
        self.policy = POLICIES[on_decode_error]
        self.looked_at = filter is not None or (amqp and self.policy == SKIP)
        self.direct = not self.looked_at
        self.last = new_last_message(amqp, stream)
        self.current_task = current_task
        self.notify_offset = NEVER
        self.turn = Turn(INFINITY) if turn is None else turn
        self.yield_after = yield_after

    def resume(self, uint64_t skip_before=0, int64_t skip_through_chunk=-1, probe=None):
        """Forget the chunks that have come; of those to come, some will be dropped.

        :param probe: called with the first chunk; no message is read, neither there nor behind it.
        """
        cdef object position = self.position
        self.queue.chunks.clear()
        self.chunk = None
        if position is not None:
            self.chunk_done = True
            self.next_offset = position
        self.skip_before = skip_before
        self.skip_through_chunk = skip_through_chunk
        self.probe = probe

    def rewind(self, uint64_t skip_before=0, int64_t skip_through_chunk=-1):
        """Like `resume`; also drop what is ready to be taken."""
        self.resume(skip_before, skip_through_chunk)
        self.held = None
        self._fail_with(None)

    def start_over(self):
        """Forget everything read: the stream was deleted, and its offsets with it."""
        self.rewind()
        self.chunk_done = self.has_delivered = False
        self.next_offset = 0
        self.last_chunk.forget()
        self.notify_offset = NEVER

    def close(self, session):
        """Refer to nobody but a session that does nothing: it goes with the last reference."""
        self.session = session
        self.queue.close()

    @property
    def must_yield(self):
        """True if other tasks should run before the next message."""
        return self.chunks_since_yield >= self.yield_after or self.turn._is_over()

    def on_yield(self):
        """Called after other tasks have run."""
        self.chunks_since_yield = 0
        self.turn.begin()

    # -- progress

    @property
    def position(self):
        """Offset after the last message that was returned or dropped; None before the first."""
        cdef Chunk chunk = self.chunk
        if chunk is not None:
            return max(chunk.next_offset, self.skip_before)
        return max(self.next_offset, self.skip_before) if self.chunk_done else None

    @property
    def unfinished(self):
        """Offset after the last finished message; None before the first."""
        return self.current_offset if self.has_delivered else None

    @property
    def finished(self):
        """Offset of the last finished message; None if there is none."""
        if self.has_delivered and self.current_offset > self.first:
            return self.current_offset - 1
        return None

    def notify_at(self, offset):
        """Call `on_progress` when the message with that offset, or a later one, is finished."""
        self.notify_offset = min(offset + 1, <object> NEVER)

    def mark_consumed(self):
        """The program asks for more: everything it received is finished."""
        if self.has_delivered:
            self._work(self.position)

    cdef int _notify(self) except -1:
        self.notify_offset = NEVER
        self.session.on_progress()
        return 0

    # -- chunks

    cdef bint _open(self) except -1:
        """True if the chunk at hand has messages left; false also when the turn is over.

        :raises ChunkError: a chunk is damaged; it is left behind.
        """
        cdef Chunk chunk
        cdef const uint8_t *p = NULL
        cdef Py_ssize_t n = 0
        while True:
            chunk = self.chunk
            if chunk is not None:
                if chunk.left:
                    return True
                self._leave(chunk, True)
                chunk._next(&p, &n)     # raises if bytes are left behind the last message
            if not self.queue.chunks or self.turn._is_over():
                return False
            chunk = self.queue.chunks.popleft()
            if self.probe is not None:
                self._report(chunk)
                return False
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
                self._refuse()
            self._skip(chunk)

    cdef int _refuse(self) except -1:
        self.chunk = None
        self.session.on_replaced()
        return 0

    cdef int _report(self, Chunk chunk) except -1:
        probe = self.probe
        self.resume()
        probe(chunk)
        self.session.on_probed()
        return 0

    cdef int _skip(self, Chunk chunk) except -1:
        """Leave out what was not asked for; what is damaged on the way is told at the end."""
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
        if failure is not None:
            raise failure
        return 0

    cdef int _leave(self, Chunk chunk, bint sound) except -1:
        self.chunk = None
        if self.last_chunk._move(chunk, sound):
            self.chunk_done = True
            self.next_offset = chunk.next_offset
        self.chunks_since_yield += 1
        self.session.on_chunk_consumed(chunk)
        return 0

    # -- messages

    cdef bint _advance(self, int kind, Py_ssize_t limit) except -1:
        if not rbfly_same_step(&self.checked):
            self._check_loop()
        if kind == BODY and self.direct:
            return self._open()
        if self.held is None:
            try:
                if self.failure is not None:
                    failure = self.failure
                    self._fail_with(None)
                    raise failure
                self.held = self._build_batch(limit) if kind == BATCH else self._build_context()
            except AMQPDecoderError as ex:
                self._begin(ex.offset)
                raise
        return self.held is not None

    cdef int _fail_with(self, object error) except -1:
        self.failure = error
        self.direct = error is None and not self.looked_at
        return 0

    cdef object _take(self, int kind):
        cdef MessageCtx ctx
        cdef LastMessage last
        held = self.held
        if held is None:
            if kind != BODY or not self.direct or self.chunk is None or not self.chunk.left:
                raise SubscriptionError('no message is ready; one task at a time can iterate')
            return self._take_body()
        if (type(held) is MessageBatch) != (kind == BATCH):
            raise SubscriptionError('what is ready was asked for by another iteration')
        last = self._last()
        self.held = None
        if kind == BATCH:
            self._note_made(last, held, (<MessageBatch> held).offset_at(0))
            return held
        ctx = held
        self._note_made(last, ctx, ctx._offset)
        return ctx if kind == CONTEXT else ctx.take_body()

    cdef object _take_body(self):
        cdef Chunk chunk = self.chunk
        cdef const uint8_t *p = NULL
        cdef Py_ssize_t n = 0
        cdef Py_ssize_t head
        cdef PyObject *found
        cdef LastMessage last = self._last()
        cdef object _owner
        chunk._next_message(&p, &n)
        self._note(last, chunk, p, n)
        head = data_head(p, n) if self.amqp else 0
        if head or not self.amqp:
            found = rbfly_bytes(p + head, n - head)
        else:
            _owner = <object> chunk._owner()    # keep it: a finalizer may read on meanwhile
            found = read_body(True, p, n)
        if found is NULL:
            return self._undecodable_body(chunk, p, n)
        return rbfly_steal(found)

    cdef object _undecodable_body(self, Chunk chunk, const uint8_t *p, Py_ssize_t n):
        cdef uint64_t offset = chunk.next_offset - 1
        try:
            return self._undecodable(p, n, offset)
        finally:
            self.last.made = read_message(False, None, p, n, offset, chunk.timestamp)

    cdef object _undecodable(self, const uint8_t *p, Py_ssize_t n, uint64_t offset):
        try:
            keep_error()
        except AMQPDecoderError as ex:
            if self.policy == RAW:
                return p[:n]
            ex.offset = offset
            ex.data = p[:n]
            raise

    cdef MessageCtx _build_context(self):
        cdef MessageCtx ctx
        while self._open():
            ctx = self._wanted()
            if ctx is not None:
                return ctx
            if self.turn._is_over():
                break
        return None

    cdef MessageCtx _wanted(self):
        """The next message of the chunk at hand that is wanted; None where it or the turn ends."""
        cdef Chunk chunk = self.chunk
        cdef const uint8_t *p = NULL
        cdef Py_ssize_t n = 0
        cdef uint64_t offset
        cdef MessageCtx ctx
        cdef object owner
        while chunk.left:
            chunk._next_message(&p, &n)
            owner = <object> chunk._owner()     # kept, whatever the filter does
            offset = chunk.next_offset - 1
            try:
                ctx = read_message(self.amqp, owner, p, n, offset, chunk.timestamp)
                # A data section was checked; any other body may hold something undecodable.
                if self.amqp and ctx._p[ctx._body_at + 2] != DATA:
                    ctx.take_body()
                if self.filter is None or self.filter.matches(ctx):
                    return ctx
            except AMQPDecoderError as ex:
                if self.policy == RAW:
                    return read_message(False, None, p, n, offset, chunk.timestamp)
                if self.policy == RAISE:
                    ex.offset = offset
                    ex.data = p[:n]
                    raise
            if self.turn._is_over():
                break
        return None

    # -- batches

    cdef MessageBatch _build_batch(self, Py_ssize_t limit):
        cdef MessageBatch batch
        cdef Chunk chunk
        while self._open():
            chunk = self.chunk
            batch = new_batch(
                self.amqp, self.filter is not None, chunk.next_offset, chunk.timestamp,
                min(<Py_ssize_t> chunk.left, limit),
            )
            try:
                if self.filter is not None:
                    self._fill_wanted(batch, limit)
                else:
                    self._fill(batch, limit)
            except Exception as ex:
                if not batch.bodies:
                    raise
                self._fail_with(ex)
            if batch.bodies:
                return batch
            if self.turn._is_over():
                break
        return None

    cdef int _fill_wanted(self, MessageBatch batch, Py_ssize_t limit) except -1:
        cdef MessageCtx ctx
        cdef Chunk chunk = self.chunk
        cdef uint64_t most = chunk.unpacked + BATCH_UNPACKED
        while len(batch.bodies) < limit and (chunk.unpacked < most or chunk.batch_left):
            ctx = self._wanted()
            if ctx is None:
                break
            batch.add_context(ctx)
        return 0

    cdef int _fill(self, MessageBatch batch, Py_ssize_t limit) except -1:
        cdef Chunk chunk = self.chunk
        cdef const uint8_t *p = NULL
        cdef Py_ssize_t n = 0
        cdef PyObject *found
        cdef object owner
        cdef uint64_t most = chunk.unpacked + BATCH_UNPACKED
        while (
            chunk.left and len(batch.bodies) < limit
            and (chunk.unpacked < most or chunk.batch_left)
        ):
            if self._fill_run(batch, limit):
                continue
            chunk._next(&p, &n)
            owner = <object> chunk._owner()     # kept, whatever a finalizer does meanwhile
            found = read_body(self.amqp, p, n)
            if found is not NULL:
                body = rbfly_steal(found)
            elif self.policy != SKIP:
                body = self._undecodable(p, n, chunk.next_offset - 1)
            else:
                try:
                    keep_error()
                except AMQPDecoderError:
                    pass
                # The offsets of a batch are without gaps.
                if batch.bodies:
                    break
                batch.start = chunk.next_offset
                continue
            batch.place(p - 4, <PyObject *> owner)
            batch.bodies.append(body)
            batch.behind = p + n
        return 0

    cdef Py_ssize_t _fill_run(self, MessageBatch batch, Py_ssize_t limit) except -1:
        """As many as lie one behind the other and need no more than to be copied; their number."""
        cdef Chunk chunk = self.chunk
        cdef const uint8_t *p = NULL
        cdef const uint8_t *end = NULL
        cdef Py_ssize_t most = min(<Py_ssize_t> chunk._run(&p, &end), limit - len(batch.bodies))
        cdef Py_ssize_t n, head = 0, i = 0
        cdef bint amqp = self.amqp
        cdef bint failed = False
        cdef list bodies = batch.bodies
        cdef PyObject *body
        while i < most and end - p >= 4:
            n = load_u32(p)
            if n > end - p - 4:
                break
            if amqp:
                head = data_head(p + 4, n)
                if not head:
                    break
            if not i:
                batch.place(p, chunk._owner())
            body = rbfly_bytes(p + 4 + head, n - head)
            failed = body is NULL or rbfly_list_give(bodies, body) < 0
            if failed:
                break
            p += 4 + n
            i += 1
        if i:
            batch.behind = p
            chunk._leave_run(p, <uint32_t> i)
        return keep_error() if failed else i

    # -- the message that a task got last

    cdef int _note(
        self, LastMessage last, Chunk chunk, const uint8_t *p, Py_ssize_t n
    ) except -1:
        """The message of a chunk that was read last is given."""
        cdef PyObject *owner = chunk._owner()
        if <PyObject *> last.owner != owner:
            last.owner = <object> owner
        if last.made is not None:
            last.made = None
        last.message = p
        last.size = n
        last.offset = chunk.next_offset - 1
        last.timestamp = chunk.timestamp
        return self._begin(last.offset)

    cdef int _note_made(self, LastMessage last, object made, uint64_t offset) except -1:
        """A context is given, or a batch whose first message has that offset."""
        last.owner = None
        last.message = NULL
        last.made = made
        return self._begin(offset)

    cdef int _check_loop(self) except -1:
        if self.current_task is not None:
            self.session.check_loop()
            rbfly_mark_step(&self.checked)
        return 0

    cdef LastMessage _note_task(self):
        cdef LastMessage last = self.last
        cdef object task
        if self.current_task is None:
            return last
        if not rbfly_same_step(&self.checked):
            self._check_loop()
        task = running_task(self.current_task)
        if task is None or last.task is None or last.task() is not task:
            # The one that iterated before keeps its own last message.
            self.last = last = new_last_message(self.amqp, self.stream)
            last.task = None if task is None else ref(task)
            last.current_task = self.current_task
        set_message_ctx(last)
        rbfly_mark_step(&self.noted)
        return last

    # -- iteration

    def advance(self, int kind=BODY, Py_ssize_t limit=NO_LIMIT):
        """Make something of a kind ready to be taken; false if none has arrived or the turn ends.

        :raises ChunkError: a chunk is damaged; it is left behind.
        :raises AMQPDecoderError: a message is not AMQP 1.0; the next call goes on behind it.
        """
        return self._advance(kind, limit)

    def take(self, int kind=BODY):
        """What `advance` made ready.

        :raises AMQPDecoderError: it is not AMQP 1.0; the next call goes on behind it.
        """
        return self._take(kind)


KINDS = {'body': BODY, 'context': CONTEXT, 'batch': BATCH}
