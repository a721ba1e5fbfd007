from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t

from rbfly._turn cimport Sampler
from rbfly._wire cimport load_u32


# The CRC of those entries of a chunk that have arrived.
cdef struct RunningSum:
    Py_ssize_t at               # the position in the frame up to which the CRC is computed
    Py_ssize_t end              # where the entries end; 0 until the header of the chunk arrives
    uint32_t crc

# Continue the CRC over new data.  The frame has `size` bytes, of which the first `filled` have
# arrived; its chunk begins at `start`.
cdef void sum_up(
    RunningSum *sum, const uint8_t *frame, Py_ssize_t start, Py_ssize_t filled, Py_ssize_t size
) noexcept


cdef class Chunk:
    cdef object owner               # keeps its bytes alive: bytes, or a memoryview of a block
    cdef const uint8_t *owner_end   # of the received bytes
    cdef const uint8_t *data        # entries of the chunk
    cdef const uint8_t *data_end
    cdef uint32_t crc               # as the header states it
    cdef uint32_t found             # as computed from the entries, if `is_summed`
    cdef bint is_summed
    cdef object source              # keeps [p, end) alive: owner, or a decompressed sub-entry
    cdef const uint8_t *p           # what to read next: the chunk, or a sub-entry
    cdef const uint8_t *end
    cdef const uint8_t *rest        # where the chunk continues after the sub-entry; NULL in none
    cdef uint32_t run_left          # messages left until `end`
    cdef uint32_t left              # messages left in the chunk
    cdef uint64_t unpacked          # bytes of compressed sub-entries so far, when decompressed
    cdef uint64_t unpacked_before   # those before the sub-entry that is being read
    cdef readonly uint8_t type
    cdef readonly uint16_t entries
    cdef readonly uint32_t records
    cdef readonly int64_t timestamp
    cdef readonly uint64_t epoch, offset
    cdef readonly object committed_chunk_id
    cdef uint64_t next_offset
    cdef bint shortened             # some of its messages are not delivered

    cdef void _shorten(self, uint64_t offset) noexcept
    cdef int _next(self, const uint8_t **p, Py_ssize_t *n) except -1
    cdef int _open_batch(self, uint64_t below) except -1
    cdef bytes _unpack(
        self,
        uint8_t compression,
        const uint8_t *data,
        uint32_t stored,
        uint32_t plain,
        uint16_t records,
    )
    cdef void _enter_batch(self, const uint8_t *rest, uint16_t records) noexcept
    cdef void _leave_batch(self) noexcept
    cdef int _fail_batch(self, str problem) except -1
    cdef int _fail(self, str problem) except -1
    cdef int _skip_below(self, uint64_t offset) except -1

    # Set p and n to the next message; return 0 if something else is next.
    cdef inline int _next_of_run(self, const uint8_t **p, Py_ssize_t *n) noexcept:
        cdef Py_ssize_t available = self.end - self.p - 4
        cdef uint32_t size
        if available >= 0 and self.run_left:
            size = load_u32(self.p)         # BATCH_BIT makes it larger than any chunk
            if size <= available:
                p[0] = self.p + 4
                n[0] = size
                self.p += 4 + size
                self.run_left -= 1
                self.left -= 1
                self.next_offset += 1
                return 1
        return 0

    # `_next`, inlined unless a sub-entry begins or ends, or the chunk is damaged.
    cdef inline int _next_message(self, const uint8_t **p, Py_ssize_t *n) except -1:
        return 1 if self._next_of_run(p, n) else self._next(p, n)

# A chunk of `n` received bytes at `p`.
cdef Chunk parse_chunk(object owner, const uint8_t *p, Py_ssize_t n, object committed_chunk_id)


cdef class ChunkQueue:
    cdef readonly object chunks     # deque
    cdef object wake
    cdef Py_ssize_t limit
    cdef readonly uint64_t received
    cdef int64_t received_at        # milliseconds since the epoch; 0 for never
    cdef Sampler sizes              # None if no size is recorded

    cpdef int push(self, Chunk chunk) except -1
    cdef void _record_size(self, Chunk chunk) noexcept
