# CHUNK room: declarations for the cursor.  No ABI promise between releases.

from cpython.object cimport PyObject
from libc.stdint cimport int64_t, uint8_t, uint64_t

from rbfly.amqp._message cimport MessageCtx


# Where a message lies; the owner of its bytes is in the batch's list of owners.
ctypedef struct Slice:
    const uint8_t *p
    Py_ssize_t n
    PyObject *owner


cdef class MessageBatch:
    cdef list bodies
    cdef list ready                 # contexts, if they had to be made for the filter; or None
    cdef list owners                # what keeps the messages alive
    cdef PyObject *owner            # the last one of them
    cdef Slice *slices
    cdef Py_ssize_t room
    cdef bint amqp
    cdef uint64_t start             # offset of the first message
    cdef int64_t chunk_timestamp

    # Room for the slice of the message behind the last one.
    cdef Slice *next_slice(self) except NULL
    # The slice that was filled belongs to a message with this body.
    cdef int add(self, object body, PyObject *owner) except -1
    cdef int add_context(self, MessageCtx ctx) except -1
    cdef MessageCtx build(self, Py_ssize_t index)
    cdef uint64_t offset_at(self, Py_ssize_t index) except? 0


cdef MessageBatch new_batch(bint amqp, bint filtered, uint64_t start, int64_t timestamp)
