from cpython.exc cimport PyErr_Clear
from cpython.object cimport PyObject
from libc.stdint cimport int64_t, uint8_t, uint64_t

from rbfly._cpython cimport rbfly_next_bytes
from rbfly._turn cimport Turn
from rbfly._wire cimport load_u32
from rbfly.amqp._layout cimport data_head
from rbfly.amqp._message cimport Message
from rbfly.protocol._batch cimport MessageBatch
from rbfly.protocol._chunk cimport Chunk, ChunkQueue
from rbfly.protocol._decoder cimport Decoder
from rbfly.protocol._identity cimport LastChunk


# What to return.
cdef enum:
    BODY, CONTEXT, BATCH

cdef enum:
    NO_LIMIT = 0x7fffffff


cdef class LastMessage:
    cdef readonly str stream, super_stream
    cdef Decoder decoder
    cdef object owner               # keeps the bytes alive
    cdef const uint8_t *message
    cdef Py_ssize_t size
    cdef uint64_t offset
    cdef int64_t timestamp
    cdef object built               # its context, or the batch that ends with it; None for neither


cdef class MessageCursor:
    cdef readonly ChunkQueue queue
    cdef readonly Decoder decoder
    cdef readonly str stream, super_stream
    cdef readonly LastMessage last
    cdef readonly Chunk chunk
    cdef readonly LastChunk last_chunk
    cdef readonly uint64_t skip_before
    cdef readonly int64_t skip_through_chunk
    cdef readonly Turn turn
    cdef object session             # None once closed
    cdef object until
    cdef uint64_t read_from         # offset of the first message to return from it
    cdef uint64_t delivered_before  # messages of the chunks before it
    cdef object filter
    cdef bint prefetches            # a message is decoded before it is known whether to return it
    cdef bint direct                # it is not, and no error is pending
    cdef object held                # context or batch to return next
    cdef object failure             # to raise after `held`
    cdef bint suspended             # chunks are dropped until `resume`
    cdef bint chunk_done            # a chunk was finished
    cdef uint64_t next_offset       # offset after the last chunk that was
    cdef bint has_delivered         # a message was returned
    cdef uint64_t first_offset      # of the first message that was
    cdef uint64_t current_offset    # of the first message that is not finished
    cdef uint64_t notify_offset
    cdef uint64_t taken             # number of messages returned, if there is a filter
    cdef uint64_t counted           # number of those that are finished
    cdef int chunks_since_yield
    cdef unsigned int counted_in    # the turn in which they were counted
    cdef bint is_ready              # waits for its turn, see RoundRobin
    cdef int yield_after

    cdef int _notify(self) except -1
    cdef bint _open(self) except -1
    cdef bint _shorten(self, Chunk chunk) except -1
    cdef int _skip(self, Chunk chunk) except -1
    cdef int _count_chunk(self, Chunk chunk) except -1
    cdef int _leave(self, Chunk chunk, bint sound) except -1
    cdef int _end_chunk(self) except -1
    cdef int _finish_all(self) except -1
    cdef Py_ssize_t _drop_chunks(self, object position) except -1
    cdef bint _advance(self, int kind, Py_ssize_t limit) except -1
    cdef int _fail_with(self, object error) except -1
    cdef object _take(self, int kind)
    cdef int _count(self, object held) except -1
    cdef object _take_body(self)
    cdef object _undecodable_body(self, Chunk chunk, const uint8_t *p, Py_ssize_t n)
    cdef object _next(self, int kind, Py_ssize_t limit)
    cdef Message _next_selected(self)
    cdef MessageBatch _batch(self, Py_ssize_t limit)
    cdef int _fill_filtered(self, MessageBatch batch, Py_ssize_t limit) except -1

    # Note the message of a chunk that was read last.
    cdef inline int _note(self, Chunk chunk, const uint8_t *p, Py_ssize_t n) except -1:
        cdef object dropped = self.last.built   # its finalizer may read on: freed at the end
        if self.last.owner is not chunk.source:
            self.last.owner = chunk.source
        if dropped is not None:
            self.last.built = None
        self.last.message = p
        self.last.size = n
        self.last.offset = chunk.next_offset - 1
        self.last.timestamp = chunk.timestamp
        return self._begin(self.last.offset)

    # Return the next body if it only has to be copied, and noting the message runs no other code;
    # else NULL, without an exception.  Does what `_take_body` does, for the cursor's chunk and last
    # message; the caller has checked `direct`.
    cdef inline PyObject *_copy_body(self, Chunk chunk, LastMessage last) noexcept:
        cdef const uint8_t *p = chunk.p + 4
        cdef Py_ssize_t n, head
        cdef PyObject *body
        if (
            not chunk.run_left or chunk.end - p < 0 or not self.decoder.plain
            or last.built is not None or last.owner is not chunk.source
            or not self.has_delivered or chunk.next_offset >= self.notify_offset
        ):
            return NULL
        n = load_u32(p - 4)
        if n > chunk.end - p:
            return NULL
        head = data_head(p, n)
        if not head:
            return NULL
        body = rbfly_next_bytes(p + head, n - head)
        if body is NULL:
            PyErr_Clear()           # `_take_body` tries again
            return NULL
        last.message = p
        last.size = n
        last.offset = self.current_offset = chunk.next_offset
        chunk.p = p + n
        chunk.run_left -= 1
        chunk.left -= 1
        chunk.next_offset += 1
        return body

    # Note a context, or a batch whose first message has that offset.
    cdef inline int _note_built(self, object built, uint64_t offset) except -1:
        self.last.owner = None
        self.last.message = NULL
        self.last.built = built
        return self._begin(offset)

    # The message with that offset is returned; those before it are finished.
    cdef inline int _begin(self, uint64_t offset) except -1:
        if not self.has_delivered:
            self.has_delivered = True
            self.first_offset = offset
        return self._finish_below(offset)

    cdef inline int _finish_below(self, uint64_t offset) except -1:
        self.current_offset = offset
        return self._notify() if offset >= self.notify_offset else 0

    # True if a body can be taken without `_advance`.
    cdef inline bint _has_body(self) noexcept:
        return self.direct and self.chunk is not None and self.chunk.left != 0

    # True if `_advance` may be called: other tasks need not run before.
    cdef inline bint _may_advance(self) noexcept:
        return self.chunks_since_yield < self.yield_after or self.counted_in != self.turn.number

    # True if the cursor has messages, or an error, of its current chunk to return.
    cdef inline bint _is_within(self) noexcept:
        return (
            (self.chunk is not None and self.chunk.left != 0)
            or self.held is not None
            or self.failure is not None
        )
