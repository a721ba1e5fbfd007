from cpython.object cimport PyObject
from libc.stdint cimport int64_t, uint8_t, uint64_t

from rbfly.amqp._message cimport Message
from rbfly.protocol._chunk cimport Chunk
from rbfly.protocol._decoder cimport Decoder


# The bytes of a message.  The batch's list of owners keeps the owner alive.
ctypedef struct Slice:
    const uint8_t *p
    Py_ssize_t n
    PyObject *owner

# Adjacent messages, each after its length.
ctypedef struct Run:
    const uint8_t *p                # length of the first message
    Py_ssize_t first                # index of that message in the batch
    PyObject *owner


cdef class MessageBatch:
    cdef Decoder decoder
    cdef list bodies
    cdef readonly str stream
    cdef list filtered              # contexts that the filter has seen; None without a filter
    cdef bint joined                # from several batches, which `filtered` contains
    cdef Py_ssize_t first           # index of the first message in the batch that it has joined
    cdef uint64_t size              # bytes that the batch keeps alive; 0 if nobody has asked
    cdef double since               # time at which it began, if somebody has
    cdef uint64_t copied            # bytes of the messages; more if a body is not bytes
    cdef list owners                # keep the messages alive
    cdef PyObject *owner            # the last of them
    cdef const uint8_t *end         # of the last message
    cdef Run *runs
    cdef Py_ssize_t run_count, run_capacity
    cdef Slice *slices              # computed from the runs for the first context
    cdef uint64_t start             # offset of the first message
    cdef int64_t chunk_timestamp
    cdef readonly object committed_chunk_id
    cdef uint64_t unpacked          # of the chunk, when the batch began
    cdef uint64_t unpacked_max      # of the chunk, above which a new sub-entry ends the batch

    # True if another message of the chunk may be added.
    cdef inline bint has_capacity(self, Chunk chunk, Py_ssize_t limit) except -1:
        return len(self.bodies) < limit and (
            chunk.unpacked < self.unpacked_max or (chunk.rest is not NULL and chunk.run_left)
        )

    # Note that the next message's length is at p.
    cdef inline int place(self, const uint8_t *p, PyObject *owner) except -1:
        return 0 if p == self.end and owner == self.owner else self.begin_run(p, owner)

    cdef int begin_run(self, const uint8_t *p, PyObject *owner) except -1
    cdef int locate(self) except -1
    cdef int fill(self, Chunk chunk, Py_ssize_t limit) except -1
    cdef object undecodable(self, const uint8_t *p, Py_ssize_t n, uint64_t offset)
    cdef Py_ssize_t fill_run(self, Chunk chunk, Py_ssize_t limit) except -1
    cdef int measure(self, Chunk chunk, double now) except -1
    cdef MessageBatch join(self, MessageBatch other)
    cdef bint is_full(self, Py_ssize_t limit) noexcept
    cdef MessageBatch part_of(self, Py_ssize_t index)
    cdef Message build(self, Py_ssize_t index)
    cdef uint64_t offset_at(self, Py_ssize_t index) except? 0


cpdef MessageBatch empty_batch()

cdef MessageBatch new_batch(
    Decoder decoder, bint filtered, Chunk chunk, Py_ssize_t limit, str stream
)
