"""Many messages at once, of a chunk or of several.

One loop decodes the bodies.  The batch notes where runs of messages are, and builds a context on
demand.
"""

cimport cython
from cpython.mem cimport PyMem_Free, PyMem_Malloc, PyMem_Realloc
from cpython.object cimport PyObject
from libc.stdint cimport uint8_t, uint32_t, uint64_t

from rbfly._cpython cimport (
    rbfly_bytes, rbfly_give_spare, rbfly_keep_bodies, rbfly_list, rbfly_list_give, rbfly_reuse,
    rbfly_take_spare,
)
from rbfly._wire cimport load_u32
from rbfly.amqp._codec cimport decode_context
from rbfly.amqp._decode cimport keep_error
from rbfly.amqp._layout cimport data_head
from rbfly.amqp._message cimport Message
from rbfly.protocol._chunk cimport Chunk
from rbfly.protocol._decoder cimport Decoder, raw_context, rbfly_steal

from collections.abc import Sequence
from types import GenericAlias


cdef enum:
    RUNS_FIRST = 4
    CAPACITY_MAX = 1 << 16          # bodies to allocate memory for in advance
    BATCH_UNPACKED = 1 << 24        # decompressed bytes of a chunk: a batch ends at each multiple
    BATCH_JOINED = 1 << 24          # bytes of a batch that no further chunk joins
    SPARE_MAX = 1 << 20             # bytes of a batch whose bodies the next one uses again
    NOT_SPARE = SPARE_MAX + 1
    MISSES_MAX = 4                  # a run stops after this many misses, plus one per two messages


cdef MessageBatch new_batch(
    Decoder decoder, bint filtered, Chunk chunk, Py_ssize_t limit, str stream
):
    cdef MessageBatch batch = MessageBatch.__new__(MessageBatch)
    # Batches of a chunk end at the same messages, wherever reading started.
    cdef bint within = chunk.rest is not NULL and chunk.run_left
    cdef uint64_t before = chunk.unpacked_before if within else chunk.unpacked
    batch.decoder = decoder
    batch.bodies = rbfly_list(min(min(<Py_ssize_t> chunk.left, limit), CAPACITY_MAX))
    batch.owners = []
    batch.filtered = [] if filtered else None
    batch.start = chunk.next_offset
    batch.chunk_timestamp = chunk.timestamp
    batch.committed_chunk_id = chunk.committed_chunk_id
    batch.unpacked = chunk.unpacked
    batch.unpacked_max = before - before % BATCH_UNPACKED + BATCH_UNPACKED
    batch.stream = stream
    return batch


cpdef MessageBatch empty_batch():
    """Return a batch without messages."""
    cdef MessageBatch batch = MessageBatch.__new__(MessageBatch)
    batch.bodies = []
    return batch


@cython.final
cdef class MessageBatch:
    """Messages of a chunk, or of several: a sequence of their bodies, in the order of the stream.

    A batch can be kept: its messages never change.

    :ivar stream: name of the stream, or of the partition; None if the batch is empty.
    :ivar timestamp: time when the broker stored the first message, and all others of its chunk,
        seconds since the epoch (float); 0.0 if the batch is empty.
    :ivar offsets: offset of each message (sequence of int).
    :ivar next_offset: offset after the last message (int): a program that keeps offsets stores it,
        and starts there.  An empty batch raises IndexError.
    :ivar committed_chunk_id: offset of the first message of the last chunk that was committed when
        the broker sent the batch (int): the end of the stream is at least there.  None if the
        broker does not report it.
    """

    __class_getitem__ = classmethod(GenericAlias)

    def __dealloc__(self):
        PyMem_Free(self.runs)
        PyMem_Free(self.slices)
        if 0 < self.copied <= SPARE_MAX:
            rbfly_keep_bodies(<PyObject *> self.bodies)

    cdef int begin_run(self, const uint8_t *p, PyObject *owner) except -1:
        cdef Py_ssize_t capacity = self.run_capacity
        cdef void *runs
        if self.run_count == capacity:
            capacity = 2 * capacity if capacity else RUNS_FIRST
            runs = PyMem_Realloc(self.runs, capacity * sizeof(Run))
            if runs is NULL:
                raise MemoryError()
            self.runs = <Run *> runs
            self.run_capacity = capacity
        if owner != self.owner:
            self.owners.append(<object> owner)
            self.owner = owner
        self.runs[self.run_count] = Run(p, len(self.bodies), owner)
        self.run_count += 1
        return 0

    cdef int locate(self) except -1:
        """Compute the slice of each message."""
        cdef Py_ssize_t count = len(self.bodies)
        cdef Py_ssize_t i = 0, r = 0, end
        cdef const uint8_t *p
        cdef Slice *slices = <Slice *> PyMem_Malloc(count * sizeof(Slice))
        if slices is NULL:
            raise MemoryError()
        for r in range(self.run_count):
            p = self.runs[r].p
            end = self.runs[r + 1].first if r + 1 < self.run_count else count
            while i < end:
                slices[i] = Slice(p + 4, load_u32(p), self.runs[r].owner)
                p += 4 + slices[i].n
                i += 1
        self.slices = slices
        return 0

    cdef int fill(self, Chunk chunk, Py_ssize_t limit) except -1:
        """Add messages of a chunk, but none after a skipped one: the offsets have no gaps."""
        cdef Decoder decoder = self.decoder
        cdef const uint8_t *p = NULL
        cdef Py_ssize_t n = 0
        cdef PyObject *found
        cdef object owner
        while chunk.left and self.has_capacity(chunk, limit):
            if self.fill_run(chunk, limit):
                continue
            chunk._next(&p, &n)
            owner = chunk.source        # a finalizer may read on while this decodes
            found = decoder._decode(p, n, owner)
            if found is not NULL:
                body = rbfly_steal(found)
            else:
                body = self.undecodable(p, n, chunk.next_offset - 1)
                if body is None:
                    if self.bodies:
                        break
                    self.start = chunk.next_offset
                    continue
            self.place(p - 4, <PyObject *> owner)
            self.copied += n if type(body) is bytes else NOT_SPARE
            self.bodies.append(body)
            self.end = p + n
        return 0

    cdef object undecodable(self, const uint8_t *p, Py_ssize_t n, uint64_t offset):
        return self.decoder._undecodable(p, n, offset, self.stream)

    cdef Py_ssize_t fill_run(self, Chunk chunk, Py_ssize_t limit) except -1:
        """Add adjacent messages that only have to be copied; return their number."""
        cdef const uint8_t *p = chunk.p
        cdef const uint8_t *end = chunk.end
        cdef Py_ssize_t count = min(<Py_ssize_t> chunk.run_left, limit - len(self.bodies))
        cdef Py_ssize_t n, again, head = 0, misses = 0, i = 0
        cdef bint amqp = self.decoder.amqp
        cdef bint failed = False
        cdef list bodies = self.bodies
        cdef PyObject *body
        cdef PyObject *spare = NULL
        cdef PyObject *found = NULL         # the spare bodies, unless too few of them fit
        if self.decoder.plan is not None or not self.decoder.copies:
            return 0
        while i < count and end - p >= 4:
            n = load_u32(p)
            if n > end - p - 4:
                break
            if amqp:
                head = data_head(p + 4, n)
                if not head:
                    break
            if not i:
                self.place(p, <PyObject *> chunk.source)
                found = spare = rbfly_take_spare()
            if found is not NULL:
                again = rbfly_reuse(bodies, found, p, end, 4 + head, n - head, count - i)
                if again:
                    p += again * (4 + n)
                    i += again
                    continue
                misses += 1
                if misses > MISSES_MAX + i // 2:
                    found = NULL
            body = rbfly_bytes(p + 4 + head, n - head)
            if body is NULL or rbfly_list_give(bodies, body) < 0:
                failed = True
                break
            p += 4 + n
            i += 1
        if i:
            self.copied += p - chunk.p
            self.end = chunk.p = p
            chunk.run_left -= <uint32_t> i
            chunk.left -= <uint32_t> i
            chunk.next_offset += <uint32_t> i
        if spare is not NULL:
            rbfly_give_spare(spare)
        return keep_error() if failed else i

    cdef int measure(self, Chunk chunk, double now) except -1:
        """Note the size of a new batch, and when it began.

        :param chunk: the chunk of its messages; None if it was left.
        """
        self.since = now
        self.size = 1
        if chunk is not None:
            self.size = chunk.data_end - chunk.data + chunk.unpacked - self.unpacked
        return 0

    cdef MessageBatch join(self, MessageBatch other):
        """Add the messages of another batch; return the joined one."""
        cdef MessageBatch whole = self
        if not self.joined:
            whole = empty_batch()
            whole.joined = True
            whole.stream = self.stream
            whole.bodies += self.bodies
            whole.filtered = [self]
            whole.chunk_timestamp = self.chunk_timestamp
            whole.size = self.size
            whole.since = self.since
        other.first = len(whole.bodies)
        whole.bodies += other.bodies
        whole.filtered.append(other)
        whole.size += other.size
        whole.committed_chunk_id = other.committed_chunk_id
        return whole

    cdef bint is_full(self, Py_ssize_t limit) noexcept:
        return len(self.bodies) >= limit or self.size >= BATCH_JOINED

    cdef MessageBatch part_of(self, Py_ssize_t index):
        """Return the batch that has contributed a message."""
        cdef Py_ssize_t low = 0, high = len(self.filtered), middle
        while high - low > 1:
            middle = (low + high) // 2
            if (<MessageBatch> self.filtered[middle]).first <= index:
                low = middle
            else:
                high = middle
        return self.filtered[low]

    cdef uint64_t offset_at(self, Py_ssize_t index) except? 0:
        cdef MessageBatch part
        if self.filtered is not None:
            if self.joined:
                part = self.part_of(index)
                return part.offset_at(index - part.first)
            return (<Message> self.filtered[index])._offset
        return self.start + <uint64_t> index

    cdef Message build(self, Py_ssize_t index):
        cdef MessageBatch part
        cdef Message ctx
        cdef Slice *at
        cdef uint64_t offset = self.offset_at(index)
        if self.filtered is not None:
            if self.joined:
                part = self.part_of(index)
                return part.build(index - part.first)
            return self.filtered[index]
        if self.slices is NULL:
            self.locate()
        at = &self.slices[index]
        body = self.bodies[index]
        # A body as long as its message was not AMQP 1.0 and is returned as bytes.
        if self.decoder.amqp and not (
            type(body) is bytes and len(<bytes> body) == at.n
            and (self.decoder.plan is None or self.decoder._type_error(at.p, at.n) is not None)
        ):
            owner = <object> at.owner
            ctx = decode_context(owner, at.p, at.n, offset, self.chunk_timestamp / 1000.0)
            ctx._body = body
            ctx._body_ready = True
            ctx._plan = self.decoder.plan
        elif self.decoder.amqp:
            ctx = self.decoder._undecodable_context(at.p, at.n, offset, self.chunk_timestamp)
        else:
            ctx = raw_context(body, offset, self.chunk_timestamp)
        ctx._stream = self.stream
        return ctx

    @property
    def undecoded(self):
        """Indices of the messages that are not AMQP 1.0 (list of int), see `on_decode_error`."""
        return [
            i for i in range(len(self.bodies))
            if type(self.bodies[i]) is bytes and self.build(i).decode_error is not None
        ]

    @property
    def timestamp(self):
        return self.chunk_timestamp / 1000.0

    @property
    def offsets(self):
        if self.joined:
            return [offset for part in self.filtered for offset in part.offsets]
        if self.filtered is not None:
            return [ctx.stream_offset for ctx in self.filtered]
        first: object = self.start
        return range(first, first + len(self.bodies))

    @property
    def next_offset(self):
        cdef Py_ssize_t count = len(self.bodies)
        if not count:
            raise IndexError('the batch is empty')
        last: object = self.offset_at(count - 1)
        return last + 1

    def context(self, Py_ssize_t index):
        """Return the context of a message: offset, time, header, properties and annotations.

        :param index: index of the message in the batch; negative indices count from the end.
        :raises IndexError: the batch has no such message.
        """
        if index < 0:
            index += len(self.bodies)
        if not 0 <= index < len(self.bodies):
            raise IndexError('batch index out of range')
        return self.build(index)

    def contexts(self):
        """Iterate over the contexts of all messages; each is built when it is reached."""
        cdef Py_ssize_t i
        for i in range(len(self.bodies)):
            yield self.build(i)

    def __len__(self):
        return len(self.bodies)

    def __getitem__(self, index):
        return self.bodies[index]

    def __iter__(self):
        return iter(self.bodies)

    def __reversed__(self):
        return reversed(self.bodies)

    def __contains__(self, value):
        return value in self.bodies

    def index(self, value, *bounds):
        """Return the index of the first body that equals a value.

        :raises ValueError: there is no such body.
        """
        return self.bodies.index(value, *bounds)

    def count(self, value):
        """Return the number of bodies that equal a value."""
        return self.bodies.count(value)

    def __repr__(self):
        n = len(self.bodies)
        start = f' from offset {self.offset_at(0)}' if n else ''
        return f'<MessageBatch of {n}{start}>'


Sequence.register(MessageBatch)
