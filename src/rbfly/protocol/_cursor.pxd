# Declarations for the iteration.  No ABI promise between releases.

from libc.stdint cimport int64_t, uint8_t, uint64_t

from rbfly._cpython cimport rbfly_same_step, rbfly_step
from rbfly._turn cimport Turn
from rbfly.amqp._message cimport LAST_SET, MessageCtx
from rbfly.protocol._batch cimport MessageBatch
from rbfly.protocol._chunk cimport Chunk, ChunkQueue
from rbfly.protocol._identity cimport LastChunk


# What is asked for.
cdef enum:
    BODY = 0
    CONTEXT = 1
    BATCH = 2

cdef enum:
    NO_LIMIT = 0x7fffffff


cdef class LastMessage:
    cdef object owner
    cdef const uint8_t *message
    cdef Py_ssize_t size
    cdef uint64_t offset
    cdef int64_t timestamp
    cdef object made                # its context, if it was built; or the batch that it ends
    cdef bint amqp
    cdef readonly str stream
    cdef object task                # weak reference
    cdef object current_task


cdef class MessageCursor:
    cdef readonly ChunkQueue queue
    cdef readonly bint amqp
    cdef readonly str stream
    cdef readonly LastMessage last
    cdef readonly LastChunk last_chunk
    cdef readonly uint64_t skip_before
    cdef readonly int64_t skip_through_chunk
    cdef readonly object session
    cdef object probe               # called with the first chunk, which is not read
    cdef object current_task
    cdef rbfly_step checked         # in which the event loop was checked last
    cdef rbfly_step noted           # in which the task was noted last
    cdef Chunk chunk
    cdef object filter
    cdef int policy
    cdef bint looked_at             # messages are looked at before one is given
    cdef bint direct                # they are not, and no error is to be raised before
    cdef object held                # context or batch that is ready to be given
    cdef object failure             # to be raised behind what was given before it
    cdef bint chunk_done            # a chunk was left
    cdef uint64_t next_offset       # offset behind the last one that was
    cdef bint has_delivered         # a message was given
    cdef uint64_t first             # its offset
    cdef uint64_t current_offset    # messages below are done with
    cdef uint64_t notify_offset
    cdef readonly Turn turn
    cdef int chunks_since_yield     # chunks left in this turn
    cdef int yield_after

    cdef int _notify(self) except -1
    cdef bint _open(self) except -1
    cdef int _refuse(self) except -1
    cdef int _report(self, Chunk chunk) except -1
    cdef int _skip(self, Chunk chunk) except -1
    cdef int _leave(self, Chunk chunk, bint sound) except -1
    cdef bint _advance(self, int kind, Py_ssize_t limit) except -1
    cdef int _fail_with(self, object error) except -1
    cdef object _take(self, int kind)
    cdef object _take_body(self)
    cdef object _undecodable_body(self, Chunk chunk, const uint8_t *p, Py_ssize_t n)
    cdef object _undecodable(self, const uint8_t *p, Py_ssize_t n, uint64_t offset)
    cdef MessageCtx _build_context(self)
    cdef MessageCtx _wanted(self)
    cdef MessageBatch _build_batch(self, Py_ssize_t limit)
    cdef int _fill_wanted(self, MessageBatch batch, Py_ssize_t limit) except -1
    cdef int _fill(self, MessageBatch batch, Py_ssize_t limit) except -1
    cdef Py_ssize_t _fill_run(self, MessageBatch batch, Py_ssize_t limit) except -1
    cdef int _note(
        self, LastMessage last, Chunk chunk, const uint8_t *p, Py_ssize_t n
    ) except -1
    cdef int _note_made(self, LastMessage last, object made, uint64_t offset) except -1
    cdef int _check_loop(self) except -1
    cdef LastMessage _note_task(self)

    # The program was given the message with that offset.
    cdef inline int _begin(self, uint64_t offset) except -1:
        if not self.has_delivered:
            self.has_delivered = True
            self.first = offset
        return self._work(offset)

    # It works with that one: those before are done with.
    cdef inline int _work(self, uint64_t offset) except -1:
        self.current_offset = offset
        return self._notify() if offset >= self.notify_offset else 0

    # Where the running task's message is noted; before anything is taken for it.
    cdef inline LastMessage _last(self):
        if LAST_SET is self.last and rbfly_same_step(&self.noted):
            return self.last
        return self._note_task()

    # True if something of a kind is ready, or can be made so at once; see `Turn`, too.
    cdef inline bint _has(self, int kind, Py_ssize_t limit) except -1:
        if kind == BODY and self.direct and self.chunk is not None and self.chunk.left:
            return True
        return self.held is not None or (
            self.chunks_since_yield < self.yield_after and self._advance(kind, limit)
        )
