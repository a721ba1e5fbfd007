"""CHUNK room, below the sans-IO line: the messages of a Deliver frame.

    chunk header, 48 bytes
      0 magic and version (0x50)   1 type   2 entries u16   4 records u32   8 timestamp i64 ms
     16 epoch u64   24 chunk id u64 (offset of the first record)   32 CRC u32
     36 data length u32   40 trailer length u32   44 Bloom filter size u8   45 reserved
    entries (data length bytes)
      message          u32 length, bit 31 = 0 | bytes
      sub-entry batch  u8 1ccc0000 (c: compression) | u16 records | u32 uncompressed length
                       | u32 stored length | stored bytes

The bytes of a chunk are kept once; messages are decoded in place, when they are asked for.
"""

cimport cython
from cpython.buffer cimport PyBUF_READ
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from cpython.memoryview cimport PyMemoryView_FromMemory
from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t

from rbfly._wire cimport load_u16, load_u32, load_u64
from rbfly.amqp._codec cimport decode_body, decode_context
from rbfly.amqp._message cimport MessageCtx

from collections import deque
from weakref import ref
from zlib import crc32

from rbfly.amqp._message import set_message_ctx
from rbfly.error import AMQPDecoderError
from rbfly.streams.error import ChunkError, SubscriptionError


cdef enum:
    HEADER = 48
    MAGIC = 0x50
    BATCH_BIT = 0x80
    BATCH_HEADER = 11


cdef Chunk parse_chunk(bytes owner, Py_ssize_t start, object committed_chunk_id):
    cdef Chunk chunk = Chunk.__new__(Chunk)
    cdef const uint8_t *p = <const uint8_t *> PyBytes_AS_STRING(owner) + start
    cdef Py_ssize_t n = PyBytes_GET_SIZE(owner) - start
    cdef uint32_t length
    if n < HEADER:
        raise ChunkError(f'chunk of {n} bytes is shorter than its header')
    if p[0] != MAGIC:
        raise ChunkError(f'chunk starts with byte 0x{p[0]:02x}, not 0x50')
    length = load_u32(p + 36)
    if length > n - HEADER:
        raise ChunkError(f'chunk says {length} bytes of data and holds {n - HEADER}')
    chunk.owner = owner
    chunk.type = p[1]
    chunk.entries = load_u16(p + 2)
    chunk.records = load_u32(p + 4)
    chunk.timestamp = <int64_t> load_u64(p + 8)
    chunk.epoch = load_u64(p + 16)
    chunk.offset = load_u64(p + 24)
    chunk.crc = load_u32(p + 32)
    chunk.committed_chunk_id = committed_chunk_id
    chunk.data = chunk.p = p + HEADER
    chunk.end = chunk.data + length
    chunk.left = chunk.records
    chunk.next_offset = chunk.offset
    return chunk


@cython.final
@cython.freelist(16)
cdef class Chunk:
    """One chunk of a stream: a cursor over its messages.

    :ivar offset: offset of its first message (int).
    :ivar records: how many messages it holds, those of sub-entry batches included (int).
    :ivar timestamp: when the broker wrote it, milliseconds since the epoch (int).
    :ivar committed_chunk_id: last committed chunk when it was sent (int), None from old brokers.
    """

    @staticmethod
    def parse(bytes data not None, committed_chunk_id=None):
        """A chunk from the bytes of a Deliver frame behind the subscription id.

        :raises ChunkError: the header is not one of a chunk, or lies about the size.
        """
        return parse_chunk(data, 0, committed_chunk_id)

    def verify(self):
        """Compare the CRC-32 (zlib) of the entries with that of the header.

        :raises ChunkError: they differ.
        """
        cdef uint32_t found = crc32(
            PyMemoryView_FromMemory(<char *> self.data, self.end - self.data, PyBUF_READ)
        )
        if found != self.crc:
            raise ChunkError(
                f'CRC of the chunk at offset {self.offset} is 0x{found:08x}, not 0x{self.crc:08x}'
            )

    cdef int _next(self, const uint8_t **p, Py_ssize_t *n) except -1:
        # The slice of the next message; 0 at the end of the chunk.
        cdef uint32_t size
        while True:
            if self.batch is not None:
                if self.batch_left:
                    if self.batch_end - self.batch_p < 4:
                        raise ChunkError('sub-entry batch ends within a message length')
                    size = load_u32(self.batch_p)
                    if size > self.batch_end - self.batch_p - 4:
                        raise ChunkError('message is longer than its sub-entry batch')
                    p[0] = self.batch_p + 4
                    n[0] = size
                    self.batch_p += 4 + size
                    self.batch_left -= 1
                    break
                if self.batch_p != self.batch_end:
                    raise ChunkError('sub-entry batch holds more than its messages')
                self.batch = None
            if self.p == self.end and self.left == 0:
                return 0
            if self.p != self.end and self.p[0] & BATCH_BIT:
                self._open_batch()
                continue
            if self.left == 0:
                raise ChunkError('chunk holds more than its messages')
            if self.end - self.p < 4:
                raise ChunkError('chunk ends before its last message')
            size = load_u32(self.p)
            if size > self.end - self.p - 4:
                raise ChunkError('message is longer than its chunk')
            p[0] = self.p + 4
            n[0] = size
            self.p += 4 + size
            break
        self.left -= 1
        self.next_offset += 1
        return 1

    cdef int _open_batch(self) except -1:
        cdef uint32_t plain, stored
        cdef uint16_t records
        cdef uint8_t compression
        if self.end - self.p < BATCH_HEADER:
            raise ChunkError('chunk ends within the header of a sub-entry batch')
        compression = (self.p[0] >> 4) & 7
        records = load_u16(self.p + 1)
        plain = load_u32(self.p + 3)
        stored = load_u32(self.p + 7)
        if stored > self.end - self.p - BATCH_HEADER:
            raise ChunkError('sub-entry batch is longer than its chunk')
        if records > self.left:
            raise ChunkError('sub-entry batch has more messages than its chunk')
        if compression and records:
            raise ChunkError(f'sub-entry batch with compression {compression} cannot be read')
        if compression:
            self.p += BATCH_HEADER + <Py_ssize_t> stored
            return 0
        if plain != stored:
            raise ChunkError('sizes of an uncompressed sub-entry batch differ')
        self.batch = self.owner
        self.batch_p = self.p + BATCH_HEADER
        self.batch_end = self.batch_p + stored
        self.batch_left = records
        self.p = self.batch_end
        return 0

    cdef void _drop(self) noexcept:
        # Leave what is left of a damaged chunk.
        self.p = self.end
        self.left = 0
        self.batch = None

    cdef int _skip_below(self, uint64_t offset) except -1:
        cdef const uint8_t *p = NULL
        cdef Py_ssize_t n = 0
        while self.next_offset < offset:
            if not self._next(&p, &n):
                break
        return 0

    def messages(self):
        """The messages left, as they are stored (list of bytes)."""
        cdef list result = []
        cdef const uint8_t *p = NULL
        cdef Py_ssize_t n = 0
        while self._next(&p, &n):
            result.append(p[:n])
        return result


@cython.final
cdef class ChunkQueue:
    """What the engine has received for one subscription.

    :ivar chunks: chunks not yet read (deque).
    :ivar wake: called without arguments when the first chunk comes into an empty queue.
    """

    def __init__(self, wake=None):
        self.chunks = deque()
        self.wake = wake

    def push(self, Chunk chunk not None):
        """Add a chunk, as the engine does."""
        self._push(chunk)

    cdef int _push(self, Chunk chunk) except -1:
        self.chunks.append(chunk)
        if self.wake is not None and len(self.chunks) == 1:
            self.wake()
        return 0


# The one whose message a task got last, of all tasks.
cdef object CURRENT = None


@cython.final
cdef class LastMessage:
    """Where the message that a task got last lies; its context is built when it is asked for.

    It is what `get_message_ctx` finds in the task's context (:mod:`contextvars`).  A task that has
    inherited it gets a LookupError, never a later message than the one it was started for.
    """

    cdef object owner
    cdef const uint8_t *message
    cdef Py_ssize_t size
    cdef uint64_t offset
    cdef double timestamp
    cdef bint amqp
    cdef object task                # weak reference
    cdef object identify

    def _current_message_ctx(self):
        cdef object task = None
        try:
            task = self.identify()
        except RuntimeError:
            pass                    # no event loop runs in this thread
        if task is None or task is not self.task():
            raise LookupError('this task has received no message')
        return self.context()

    def context(self):
        """Context of the message; its body is the bytes of the message if it is not AMQP 1.0.

        :raises LookupError: no message was given yet.
        """
        if self.message is NULL:
            raise LookupError('no message was received yet')
        if not self.amqp:
            return MessageCtx(
                self.message[:self.size],
                stream_offset=self.offset,
                stream_timestamp=self.timestamp,
            )
        return decode_context(self.owner, self.message, self.size, self.offset, self.timestamp)


cdef LastMessage new_last_message(bint amqp):
    cdef LastMessage last = LastMessage.__new__(LastMessage)
    last.amqp = amqp
    return last


cdef class MessageCursor:
    """Base of a subscription: takes messages from a :class:`ChunkQueue`, one after the other.

    A message that has arrived is given by an awaitable that is finished at once (the cursor
    itself); only where none has does a subclass's coroutine `wait_message` wait for one.
    """

    cdef readonly ChunkQueue queue
    cdef readonly bint amqp
    cdef readonly LastMessage last
    cdef public object identify     # gives the running task
    cdef public bint direct         # messages may be given without `wait_message`
    cdef object task
    cdef Chunk chunk
    cdef uint64_t start             # messages below are dropped

    def __init__(self, bint amqp=True):
        self.queue = ChunkQueue()
        self.amqp = amqp
        self.last = new_last_message(amqp)
        self.direct = True

    def rewind(self, uint64_t start):
        """Forget the chunks at hand; messages below offset `start` will be dropped."""
        self.queue.chunks.clear()
        self.chunk = None
        self.start = start

    def on_chunk_consumed(self, Chunk chunk):
        """Called when the last message of a chunk was given; a subclass grants credit."""

    def advance(self):
        """Make a message ready: true if there is one, false if none has arrived.

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
                self.chunk = None
                self.on_chunk_consumed(chunk)
                chunk._next(&p, &n)     # raises if bytes are left behind the last message
            if not self.queue.chunks:
                return False
            chunk = self.queue.chunks.popleft()
            try:
                chunk.verify()
                chunk._skip_below(self.start)
            except BaseException:
                self.on_chunk_consumed(chunk)
                raise
            self.chunk = chunk

    def take(self):
        """The message that `advance` made ready: its body, or its bytes if not `amqp`.

        :raises AMQPDecoderError: it is not AMQP 1.0; the next call goes on behind it.
        """
        cdef Chunk chunk = self.chunk
        cdef LastMessage last
        cdef const uint8_t *p = NULL
        cdef Py_ssize_t n = 0
        if chunk is None or not chunk.left:
            raise SubscriptionError('no message is ready; one task at a time can iterate')
        try:
            chunk._next(&p, &n)
        except BaseException:
            chunk._drop()
            raise
        last = self._last_of_task()
        last.message = p
        last.size = n
        last.owner = chunk.owner if chunk.batch is None else chunk.batch
        last.offset = chunk.next_offset - 1
        last.timestamp = chunk.timestamp / 1000.0
        if not self.amqp:
            return p[:n]
        try:
            return decode_body(p, n)
        except AMQPDecoderError as ex:
            ex.offset = last.offset
            ex.data = p[:n]
            raise

    cdef LastMessage _last_of_task(self):
        cdef LastMessage last = self.last
        cdef object task
        global CURRENT
        if self.identify is not None:
            task = self.identify()
            if self.task is not task:
                # The one that iterated before keeps its own last message.
                self.task = task
                self.last = last = new_last_message(self.amqp)
                last.task = ref(task)
                last.identify = self.identify
            if CURRENT is not last:
                CURRENT = last
                set_message_ctx(last)
        return last

    def __aiter__(self):
        return self

    def __anext__(self):
        return self if self.direct and self.advance() else self.wait_message()

    def __await__(self):
        return self

    def __iter__(self):
        return self

    def __next__(self):
        raise StopIteration(self.take())
