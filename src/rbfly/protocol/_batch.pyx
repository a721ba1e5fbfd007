"""Many messages given at once.

The bodies are decoded in one loop; where runs of messages lie is kept beside them, and a context is
built when it is asked for.
"""

cimport cython
from cpython.mem cimport PyMem_Free, PyMem_Malloc, PyMem_Realloc
from cpython.object cimport PyObject
from libc.stdint cimport int64_t, uint8_t, uint64_t

from rbfly._cpython cimport rbfly_list
from rbfly._wire cimport load_u32
from rbfly.amqp._codec cimport decode_context
from rbfly.amqp._message cimport MessageCtx

from collections.abc import Sequence


cdef enum:
    RUNS_FIRST = 4
    ROOM_MAX = 1 << 16              # bodies; more is made when they are there


cdef MessageBatch new_batch(
    bint amqp, bint filtered, uint64_t start, int64_t timestamp, Py_ssize_t room
):
    cdef MessageBatch batch = MessageBatch.__new__(MessageBatch)
    batch.amqp = amqp
    batch.bodies = rbfly_list(min(room, ROOM_MAX))
    batch.owners = []
    batch.ready = [] if filtered else None
    batch.start = start
    batch.chunk_timestamp = timestamp
    return batch


@cython.final
cdef class MessageBatch:
    """Messages of one chunk: a sequence of their bodies, in the order of the stream.

    It can be kept; messages that it holds stay as they are.

    :ivar timestamp: when the broker wrote them, seconds since the epoch (float).
    :ivar offsets: offset of each message (sequence of int).
    """

    def __dealloc__(self):
        PyMem_Free(self.runs)
        PyMem_Free(self.slices)

    cdef int begin_run(self, const uint8_t *p, PyObject *owner) except -1:
        cdef Py_ssize_t room = self.run_room
        cdef void *runs
        if self.run_count == room:
            room = 2 * room if room else RUNS_FIRST
            runs = PyMem_Realloc(self.runs, room * sizeof(Run))
            if runs is NULL:
                raise MemoryError()
            self.runs = <Run *> runs
            self.run_room = room
        if owner != self.owner:
            self.owners.append(<object> owner)
            self.owner = owner
        self.runs[self.run_count] = Run(p, len(self.bodies), owner)
        self.run_count += 1
        return 0

    cdef int locate(self) except -1:
        """Find where each message lies."""
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

    cdef int add_context(self, MessageCtx ctx) except -1:
        self.ready.append(ctx)
        self.bodies.append(ctx.take_body())
        return 0

    cdef uint64_t offset_at(self, Py_ssize_t index) except? 0:
        if self.ready is not None:
            return (<MessageCtx> self.ready[index])._offset
        return self.start + <uint64_t> index

    cdef MessageCtx build(self, Py_ssize_t index):
        cdef MessageCtx ctx
        cdef Slice *at
        cdef uint64_t offset = self.offset_at(index)
        if self.ready is not None:
            return self.ready[index]
        if self.slices is NULL:
            self.locate()
        at = &self.slices[index]
        body = self.bodies[index]
        # One as long as its message was given as it is.
        if self.amqp and not (type(body) is bytes and len(<bytes> body) == at.n):
            ctx = decode_context(
                <object> at.owner, at.p, at.n, offset, self.chunk_timestamp / 1000.0
            )
            ctx._body = body
            ctx._body_ready = True
            return ctx
        return MessageCtx(
            body, stream_offset=offset, stream_timestamp=self.chunk_timestamp / 1000.0
        )

    @property
    def timestamp(self):
        return self.chunk_timestamp / 1000.0

    @property
    def offsets(self):
        if self.ready is not None:
            return [ctx.stream_offset for ctx in self.ready]
        first: object = self.start
        return range(first, first + len(self.bodies))

    def context(self, Py_ssize_t index):
        """Context of a message: offset, time, header, properties and annotations.

        :param index: which message of the batch; negative from its end.
        :raises IndexError: there is none.
        """
        if index < 0:
            index += len(self.bodies)
        if not 0 <= index < len(self.bodies):
            raise IndexError('the batch has no such message')
        return self.build(index)

    def contexts(self):
        """Iterate over the contexts of all messages; each is built when its turn comes."""
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
        """Index of the first body that equals a value.

        :raises ValueError: there is none.
        """
        return self.bodies.index(value, *bounds)

    def count(self, value):
        """How many bodies equal a value."""
        return self.bodies.count(value)

    def __repr__(self):
        n = len(self.bodies)
        return f'<MessageBatch of {n} from offset {self.offset_at(0) if n else self.start}>'


Sequence.register(MessageBatch)
