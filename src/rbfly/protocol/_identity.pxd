from libc.stdint cimport int64_t, uint32_t, uint64_t

from rbfly.protocol._chunk cimport Chunk


cdef class LastChunk:
    cdef readonly int64_t id
    cdef readonly bint unverified
    cdef uint64_t end               # offset after its last message
    cdef int64_t timestamp
    cdef uint64_t epoch             # UNKNOWN if it has not arrived
    cdef uint32_t crc
    cdef int64_t max_timestamp      # of all chunks read
    cdef bint removed               # retention may have removed it since

    cdef bint _is_replaced(self, Chunk chunk) noexcept
    cdef bint _has_read(self, Chunk chunk) noexcept
    cdef bint _move(self, Chunk chunk, bint sound) noexcept
