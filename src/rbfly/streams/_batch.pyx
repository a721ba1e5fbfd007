"""CHUNK room, below the sans-IO line: many messages given at once.

The bodies are decoded in one loop; where each message lies is kept beside them, and its context is
built when it is asked for.
"""

cimport cython
from cpython.mem cimport PyMem_Free, PyMem_Realloc
from cpython.object cimport PyObject
from libc.stdint cimport int64_t, uint64_t

from rbfly.amqp._codec cimport decode_context
from rbfly.amqp._message cimport MessageCtx

from collections.abc import Sequence


cdef enum:
    ROOM_FIRST = 64


cdef MessageBatch new_batch(bint amqp, bint filtered, uint64_t start, int64_t timestamp):
    cdef MessageBatch batch = MessageBatch.__new__(MessageBatch)
    batch.amqp = amqp
    batch.bodies = []
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
        PyMem_Free(self.slices)

    cdef Slice *next_slice(self) except NULL:
        cdef Py_ssize_t room = self.room
        cdef void *slices
        if len(self.bodies) == room:
            room = 2 * room if room else ROOM_FIRST
            slices = PyMem_Realloc(self.slices, room * sizeof(Slice))
            if slices is NULL:
                raise MemoryError()
            self.slices = <Slice *> slices
            self.room = room
        return &self.slices[len(self.bodies)]

    cdef int add(self, object body, PyObject *owner) except -1:
        if owner != self.owner:
            self.owners.append(<object> owner)
            self.owner = owner
        self.slices[len(self.bodies)].owner = owner
        self.bodies.append(body)
        return 0

    cdef int add_context(self, MessageCtx ctx) except -1:
        self.ready.append(ctx)
        self.bodies.append(ctx.take_body())
        return 0

    cdef uint64_t offset_at(self, Py_ssize_t index) except? 0:
        if self.ready is not None:
            return (<MessageCtx> self.ready[index]).stream_offset
        return self.start + <uint64_t> index

    cdef MessageCtx build(self, Py_ssize_t index):
        cdef MessageCtx ctx
        cdef Slice *at
        cdef uint64_t offset = self.offset_at(index)
        if self.ready is not None:
            return self.ready[index]
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
