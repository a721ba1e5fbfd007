# A chunk and the queue of chunks.  No ABI promise between releases.

from cpython.object cimport PyObject
from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t

from rbfly._wire cimport load_u32


cdef class Chunk:
    cdef bytes owner                # keeps the bytes below alive
    cdef const uint8_t *p           # next entry
    cdef const uint8_t *end         # end of the entries
    cdef const uint8_t *data        # first entry
    cdef uint32_t crc
    cdef object batch               # bytes of the sub-entry that is being read, or None
    cdef const uint8_t *batch_p
    cdef const uint8_t *batch_end
    cdef uint32_t batch_left        # messages left in it
    cdef uint64_t unpacked          # bytes of decompressed sub-entries so far
    cdef uint32_t left              # messages left in the chunk
    cdef readonly uint8_t type
    cdef readonly uint16_t entries
    cdef readonly uint32_t records
    cdef readonly int64_t timestamp
    cdef readonly uint64_t epoch, offset
    cdef readonly object committed_chunk_id
    cdef uint64_t next_offset

    cdef int _next(self, const uint8_t **p, Py_ssize_t *n) except -1
    cdef uint32_t _run(self, const uint8_t **p, const uint8_t **end) noexcept
    cdef void _leave_run(self, const uint8_t *p, uint32_t count) noexcept
    cdef int _open_batch(self, uint64_t below) except -1
    cdef int _unpack(
        self, uint8_t compression, const uint8_t *data, uint32_t stored, uint32_t plain
    ) except -1
    cdef void _leave_batch(self) noexcept
    cdef int _fail_batch(self, str problem) except -1
    cdef int _fail(self, str problem) except -1
    cdef int _skip_below(self, uint64_t offset) except -1

    # `_next`, inlined unless a sub-entry begins or ends, or the chunk is damaged.
    cdef inline int _next_message(self, const uint8_t **p, Py_ssize_t *n) except -1:
        cdef bint in_batch = self.batch is not None
        cdef const uint8_t *start = self.batch_p if in_batch else self.p
        cdef Py_ssize_t available = (self.batch_end if in_batch else self.end) - start - 4
        cdef uint32_t size
        if available >= 0 and (self.batch_left if in_batch else self.left):
            size = load_u32(start)          # BATCH_BIT makes it larger than any chunk
            if size <= available:
                p[0] = start + 4
                n[0] = size
                if in_batch:
                    self.batch_p = start + 4 + size
                    self.batch_left -= 1
                else:
                    self.p = start + 4 + size
                self.left -= 1
                self.next_offset += 1
                return 1
        return self._next(p, n)

    # The object that keeps the last message of `_next` alive; a borrowed reference.
    cdef inline PyObject *_owner(self) noexcept:
        return <PyObject *> (self.owner if self.batch is None else self.batch)

cdef Chunk parse_chunk(bytes owner, Py_ssize_t start, object committed_chunk_id)


cdef class ChunkQueue:
    cdef readonly object chunks     # deque
    cdef object wake
    cdef public Py_ssize_t limit

    cpdef int push(self, Chunk chunk) except -1
