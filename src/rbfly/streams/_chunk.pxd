# CHUNK room: declarations for the engine.  No ABI promise between releases.

from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t


cdef class Chunk:
    cdef bytes owner                # keeps the bytes below alive
    cdef const uint8_t *p           # next entry
    cdef const uint8_t *end         # end of the entries
    cdef const uint8_t *data        # first entry
    cdef uint32_t crc
    cdef object batch               # bytes of the sub-entry batch being read, or None
    cdef const uint8_t *batch_p
    cdef const uint8_t *batch_end
    cdef uint32_t batch_left        # messages left in it
    cdef uint32_t left              # messages left in the chunk
    cdef readonly uint8_t type
    cdef readonly uint16_t entries
    cdef readonly uint32_t records
    cdef readonly int64_t timestamp
    cdef readonly uint64_t epoch
    cdef readonly uint64_t offset
    cdef readonly object committed_chunk_id
    cdef uint64_t next_offset

    cdef int _next(self, const uint8_t **p, Py_ssize_t *n) except -1
    cdef int _open_batch(self) except -1
    cdef int _fail(self, str problem) except -1
    cdef int _skip_below(self, uint64_t offset) except -1
    cdef object _owner(self)

cdef Chunk parse_chunk(bytes owner, Py_ssize_t start, object committed_chunk_id)


cdef class ChunkQueue:
    cdef readonly object chunks     # deque
    cdef public object wake
    cdef readonly uint64_t start
    cdef readonly int64_t after
    cdef int _push(self, Chunk chunk) except -1
