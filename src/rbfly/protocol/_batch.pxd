# Declarations for the cursor.  No ABI promise between releases.

from cpython.object cimport PyObject
from libc.stdint cimport int64_t, uint8_t, uint64_t

from rbfly.amqp._message cimport MessageCtx


# Where a message lies; the owner of its bytes is in the batch's list of owners.
ctypedef struct Slice:
    const uint8_t *p
    Py_ssize_t n
    PyObject *owner

# Messages that lie one behind the other, each behind its length.
ctypedef struct Run:
    const uint8_t *p                # length of the first
    Py_ssize_t first                # its index in the batch
    PyObject *owner


cdef class MessageBatch:
    cdef list bodies
    cdef list ready                 # contexts, if they had to be made for the filter; or None
    cdef list owners                # what keeps the messages alive
    cdef PyObject *owner            # the last one of them
    cdef const uint8_t *behind      # end of the last message
    cdef Run *runs
    cdef Py_ssize_t run_count
    cdef Py_ssize_t run_room
    cdef Slice *slices              # made of the runs when a context is asked for
    cdef bint amqp
    cdef uint64_t start             # offset of the first message
    cdef int64_t chunk_timestamp

    # The next message lies behind its length at p.
    cdef inline int place(self, const uint8_t *p, PyObject *owner) except -1:
        return 0 if p == self.behind and owner == self.owner else self.begin_run(p, owner)

    cdef int begin_run(self, const uint8_t *p, PyObject *owner) except -1
    cdef int locate(self) except -1
    cdef int add_context(self, MessageCtx ctx) except -1
    cdef MessageCtx build(self, Py_ssize_t index)
    cdef uint64_t offset_at(self, Py_ssize_t index) except? 0


cdef MessageBatch new_batch(
    bint amqp, bint filtered, uint64_t start, int64_t timestamp, Py_ssize_t room
)
