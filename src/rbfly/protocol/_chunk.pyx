"""The messages of a Deliver frame.

    chunk header, 48 bytes
      0 magic and version (0x50)   1 type   2 entries u16   4 records u32   8 timestamp i64 ms
     16 epoch u64   24 chunk id u64 (offset of the first record)   32 CRC u32
     36 data length u32   40 trailer length u32   44 Bloom filter size u8   45 reserved
    entries (data length bytes)
      message          u32 length, bit 31 = 0 | bytes
      sub-entry batch  u8 1ccc0000 (c: compression) | u16 records | u32 uncompressed length
                       | u32 stored length | stored bytes

The bytes of a chunk are stored once; messages are decoded in place, on demand.
"""

cimport cython
from cpython.buffer cimport PyBUF_READ
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from cpython.memoryview cimport PyMemoryView_FromMemory
from cpython.pyport cimport PY_SSIZE_T_MAX
from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t

from rbfly._crc cimport CRC_IS_CHECKED, crc_level, crc_of
from rbfly._turn cimport Sampler, rbfly_wall_time
from rbfly._wire cimport load_u16, load_u32, load_u64
from binascii import crc32  # loaded with ssl, unlike zlib
from collections import deque

from rbfly.protocol.compression import BATCH_MAX as _BATCH_MAX
from rbfly.protocol.compression import CHUNK_MAX as _CHUNK_MAX
from rbfly.protocol.compression import decompress
from rbfly.error import ChunkError, FrameError, counted


cdef enum:
    HEADER = 48
    MAGIC = 0x50
    BATCH_BIT = 0x80        # set in the first byte of a sub-entry batch
    BATCH_HEADER = 11

cdef uint32_t BATCH_MAX = _BATCH_MAX
cdef uint64_t CHUNK_MAX = _CHUNK_MAX
cdef int CRC_LEVEL = crc_level()


cdef Chunk parse_chunk(object owner, const uint8_t *p, Py_ssize_t n, object committed_chunk_id):
    cdef Chunk chunk = Chunk.__new__(Chunk)
    cdef uint32_t length
    if n < HEADER:
        raise ChunkError(f'chunk of {counted(n, "byte")} is shorter than its header')
    if p[0] != MAGIC:
        raise ChunkError(f'chunk starts with byte 0x{p[0]:02x}, not 0x50')
    length = load_u32(p + 36)
    if length > n - HEADER:
        raise ChunkError(
            f'chunk header states {counted(length, "byte")} of data, but {n - HEADER} follow'
        )
    chunk.owner = owner
    chunk.owner_end = p + n
    chunk.type = p[1]
    chunk.entries = load_u16(p + 2)
    chunk.records = load_u32(p + 4)
    chunk.timestamp = <int64_t> load_u64(p + 8)
    chunk.epoch = load_u64(p + 16)
    chunk.offset = load_u64(p + 24)
    chunk.crc = load_u32(p + 32)
    chunk.committed_chunk_id = committed_chunk_id
    chunk.source = owner
    chunk.data = chunk.p = p + HEADER
    chunk.data_end = chunk.end = chunk.data + length
    chunk.left = chunk.run_left = chunk.records
    chunk.next_offset = chunk.offset
    return chunk


cdef void sum_up(
    RunningSum *sum, const uint8_t *frame, Py_ssize_t start, Py_ssize_t filled, Py_ssize_t size
) noexcept:
    cdef Py_ssize_t end
    if not CRC_LEVEL or filled < start + HEADER:
        return
    if not sum.end:
        sum.at = start + HEADER
        sum.end = min(sum.at + <Py_ssize_t> load_u32(frame + start + 36), size)
    end = min(filled, sum.end)
    sum.crc = crc_of(CRC_LEVEL, sum.crc, frame + sum.at, end - sum.at)
    sum.at = end


@cython.final
@cython.freelist(16)
cdef class Chunk:
    """A chunk of a stream; iterates over its messages.

    :ivar offset: offset of the first message (int).
    :ivar records: number of messages, including those in sub-entry batches (int).
    :ivar timestamp: time when the broker stored it, milliseconds since the epoch (int).
    :ivar committed_chunk_id: id of the last committed chunk when the broker sent it (int); None if
        an old broker does not report it.
    """

    @staticmethod
    def parse(bytes data not None, committed_chunk_id=None):
        """Create a chunk from the bytes of a Deliver frame after the subscription id.

        :raises ChunkError: the header is not that of a chunk, or states a wrong size.
        """
        cdef const uint8_t *p = <const uint8_t *> PyBytes_AS_STRING(data)
        return parse_chunk(data, p, PyBytes_GET_SIZE(data), committed_chunk_id)

    def verify(self):
        """Compare the CRC-32 of the entries with the one in the header.

        :raises ChunkError: they differ.
        """
        cdef uint32_t found = self.found
        if CRC_LEVEL and not self.is_summed:
            found = crc_of(CRC_LEVEL, 0, self.data, self.data_end - self.data)
        if not CRC_LEVEL or CRC_IS_CHECKED:
            again = crc32(
                PyMemoryView_FromMemory(<char *> self.data, self.data_end - self.data, PyBUF_READ)
            )
            assert not CRC_LEVEL or found == again
            assert not CRC_LEVEL or again == crc_of(1, 0, self.data, self.data_end - self.data)
            found = again
        if found != self.crc:
            raise ChunkError(
                f'CRC of the chunk at offset {self.offset} is 0x{found:08x}, not 0x{self.crc:08x}'
            )

    @property
    def trailer(self):
        """What the broker has stored with the messages (bytes): publishing ids and offsets.

        Empty unless the subscription receives all chunks.
        """
        cdef uint32_t length = load_u32(self.data - HEADER + 40)
        return self.data_end[:length] if length <= self.owner_end - self.data_end else b''

    cdef int _next(self, const uint8_t **p, Py_ssize_t *n) except -1:
        # Set p and n to the next message; return 0 at the end of the chunk.
        while not self._next_of_run(p, n):
            if self.rest is not NULL:
                if self.run_left:
                    self._fail_batch('message is missing, or longer than its sub-entry batch')
                if self.p != self.end:
                    self._fail_batch('sub-entry batch has bytes after its last message')
                self._leave_batch()
            elif self.p != self.end and self.p[0] & BATCH_BIT:
                self._open_batch(0)
            elif self.left:
                self._fail('message is missing, or longer than its chunk')
            elif self.p != self.end:
                self._fail('chunk has bytes after its last message')
            else:
                return 0
        return 1

    cdef void _shorten(self, uint64_t offset) noexcept:
        # Drop the messages from an offset on; none was read.
        if offset < self.offset + self.records:
            self.left = self.run_left = <uint32_t> (offset - self.offset)
            self.shortened = True

    cdef int _open_batch(self, uint64_t below) except -1:
        # Start to read the sub-entry batch, or skip it if it ends below that offset.
        cdef const uint8_t *header = self.p
        cdef const uint8_t *data
        cdef uint32_t plain, stored
        cdef uint16_t records
        cdef uint8_t compression
        cdef bint skipped
        cdef bytes unpacked = None
        if self.end - self.p < BATCH_HEADER:
            self._fail('chunk ends within the header of a sub-entry batch')
        compression = (self.p[0] >> 4) & 7
        records = load_u16(self.p + 1)
        plain = load_u32(self.p + 3)
        stored = load_u32(self.p + 7)
        if stored > self.end - self.p - BATCH_HEADER:
            self._fail('sub-entry batch is longer than its chunk')
        if records > self.left and not self.shortened:
            self._fail('sub-entry batch has more messages than its chunk')
        data = self.p + BATCH_HEADER
        skipped = (below and self.next_offset + records <= below) or (compression and not records)
        self.unpacked_before = self.unpacked
        if compression and records:
            self.unpacked += plain
        if compression and not skipped:
            try:
                unpacked = self._unpack(compression, data, stored, plain, records)
            except BaseException:
                if self.p == header:
                    self._enter_batch(data + stored, records)
                    self._leave_batch()
                raise
            if self.p != header:            # a finalizer has read on meanwhile
                return 0
        self._enter_batch(data + stored, records)
        if skipped:
            self._leave_batch()
        elif compression:
            self.source = unpacked
            self.p = <const uint8_t *> PyBytes_AS_STRING(unpacked)
            self.end = self.p + PyBytes_GET_SIZE(unpacked)
        elif plain != stored:
            self._fail_batch('sizes of an uncompressed sub-entry batch differ')
        else:
            self.p = data
        return 0

    cdef bytes _unpack(
        self,
        uint8_t compression,
        const uint8_t *data,
        uint32_t stored,
        uint32_t plain,
        uint16_t records,
    ):
        cdef str at = f' (at offset {self.next_offset})'
        if plain < 4 * records:
            raise ChunkError(
                f'sub-entry batch of {counted(records, "message")} has {counted(plain, "byte")}{at}'
            )
        if plain > BATCH_MAX:
            raise ChunkError(f'sub-entry batch of {plain} bytes is larger than {BATCH_MAX}{at}')
        if self.unpacked > CHUNK_MAX:
            raise ChunkError(f'sub-entry batches of a chunk are larger than {CHUNK_MAX} bytes{at}')
        try:
            return decompress(
                compression, PyMemoryView_FromMemory(<char *> data, stored, PyBUF_READ), plain
            )
        except ChunkError as ex:
            raise ChunkError(f'{ex}{at}') from None

    cdef void _enter_batch(self, const uint8_t *rest, uint16_t records) noexcept:
        self.p = self.end = self.rest = rest
        self.run_left = min(records, self.left)

    cdef void _leave_batch(self) noexcept:
        self.left -= self.run_left
        self.next_offset += self.run_left
        self.run_left = self.left
        self.source = self.owner
        self.p = self.rest
        self.end = self.data_end
        self.rest = NULL

    cdef int _fail_batch(self, str problem) except -1:
        # Continue after the batch.
        offset = self.next_offset
        self._leave_batch()
        raise ChunkError(f'{problem} (at offset {offset})')

    cdef int _fail(self, str problem) except -1:
        # The rest of the chunk is unreadable.
        self.p = self.end
        self.left = self.run_left = 0
        raise ChunkError(f'{problem} (at offset {self.next_offset})')

    cdef int _skip_below(self, uint64_t offset) except -1:
        # Can be called again after an error.
        cdef const uint8_t *p = NULL
        cdef Py_ssize_t n = 0
        while self.left and self.next_offset < offset:
            if self.rest is NULL and self.p != self.end and self.p[0] & BATCH_BIT:
                self._open_batch(offset)
            elif not self._next(&p, &n):
                break
        return 0

    def messages(self):
        """Return the remaining messages as stored (list of bytes)."""
        cdef list result = []
        cdef const uint8_t *p = NULL
        cdef Py_ssize_t n = 0
        while self._next(&p, &n):
            result.append(p[:n])
        return result


@cython.final
cdef class ChunkQueue:
    """Chunks that the engine has received for one subscription.

    :param wake: called without arguments when a chunk enters the empty queue.
    :param limit: maximum number of chunks; with more, the broker ignores the credit.
    :ivar chunks: chunks not yet read (deque).
    :ivar received: number of chunks received (int).
    """

    def __init__(self, wake=None, Py_ssize_t limit=PY_SSIZE_T_MAX):
        self.chunks = deque()
        self.wake = wake
        self.limit = limit

    cpdef int push(self, Chunk chunk) except -1:
        """Add a chunk.

        :raises FrameError: the queue is full.
        """
        if len(self.chunks) >= self.limit:
            raise FrameError(f'more than {self.limit} chunks exceed the credit of a subscription')
        self.chunks.append(chunk)
        self.received += 1
        self.received_at = rbfly_wall_time()
        if self.sizes is not None:
            self._record_size(chunk)
        if self.wake is not None and len(self.chunks) == 1:
            self.wake()
        return 0

    def measure(self, Sampler sizes not None):
        """Record how many entries chunks have."""
        self.sizes = sizes

    cdef void _record_size(self, Chunk chunk) noexcept:
        # An error of `record` concerns no chunk: Python reports it.
        if self.sizes._now():
            self.sizes.record(chunk.entries)

    @property
    def last_chunk(self):
        """Seconds since the epoch at the last chunk (float); None before the first one."""
        return self.received_at / 1e3 if self.received_at else None
