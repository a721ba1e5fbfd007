"""Large bodies of a Publish frame: sent from the objects of the program instead of being copied.

The frame contains only what precedes each of them.  They are `bytes`, which never change, and stay
alive until the frame is settled.
"""

cimport cython
from cpython.bytes cimport PyBytes_GET_SIZE
from libc.stdint cimport uint32_t

from rbfly._wire cimport OutBuffer, out_reserve, put_u32
from rbfly.amqp._layout cimport DATA32

cdef enum:
    ENTRY_HEAD = 12         # bytes: publishing id, length
    DATA_HEAD = 8           # bytes before a large body in its data section


cdef int put_head(OutBuffer *out, bytes body, bint amqp) except -1:
    cdef uint32_t size = <uint32_t> PyBytes_GET_SIZE(body)
    out_reserve(out, 4 + DATA_HEAD)
    if amqp:
        put_u32(out, size + DATA_HEAD)
        put_u32(out, DATA32)
    put_u32(out, size)
    return 0


@cython.final
cdef class LargeBodies:
    """The large bodies of one frame."""

    def __cinit__(self):
        self.bodies = {}

    cdef int add(self, Py_ssize_t start, bytes body) except -1:
        self.bodies[start] = body
        self.size += PyBytes_GET_SIZE(body)
        return 0

    cdef bytes get(self, Py_ssize_t start):
        """Return the body of the entry with that start; None if the frame contains it."""
        return self.bodies.get(start)

    cdef list parts(self, bytes data, bint amqp):
        """Return what to send, one after the other (list of bytes).

        :param data: the frame without these bodies.
        """
        cdef list found = []
        cdef Py_ssize_t at = 0, end
        for start, body in self.bodies.items():
            end = <Py_ssize_t> start + ENTRY_HEAD + (DATA_HEAD if amqp else 0)
            found.append(data[at:end])
            found.append(body)
            at = end
        if at < PyBytes_GET_SIZE(data):
            found.append(data[at:])
        return found
