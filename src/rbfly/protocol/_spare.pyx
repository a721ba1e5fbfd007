"""Memory of large frames that were written, which later frames use again.

Otherwise the kernel would map and clear fresh pages for each frame, which takes longer than
encoding its messages.  The memory of a frame is free when nothing refers to its `bytes`, as when
Python frees them: a transport keeps a reference to what it has not written.
"""

from cpython.bytes cimport PyBytes_AS_STRING
from cpython.object cimport PyObject
from cpython.ref cimport Py_INCREF
from libc.stdint cimport uint8_t

from rbfly._cpython cimport rbfly_set_size
from rbfly._wire cimport OutBuffer, out_finish, out_open, out_size

cdef extern from *:
    """
    /* Take over a reference. */
    #define rbfly_finished(bytes) (bytes)
    """
    Py_ssize_t Py_REFCNT(PyObject *o) noexcept
    bytes rbfly_finished(PyObject *data)

cdef enum:
    SPARES = 16

cdef PyObject *SPARE[SPARES]
cdef int spare_count = 0


cdef int open_spare(OutBuffer *out) except -1:
    global spare_count
    if not spare_count:
        return out_open(out, SPARE_SIZE)
    spare_count -= 1
    out.owner = SPARE[spare_count]
    out.start = out.p = <uint8_t *> PyBytes_AS_STRING(<object> out.owner)
    out.end = out.start + SPARE_SIZE
    return 0


cdef bytes finish_spare(OutBuffer *out):
    cdef PyObject *data = out.owner
    if not rbfly_set_size(data, out_size(out)):
        return out_finish(out)
    out.owner = NULL
    out.start = out.p = out.end = NULL
    return rbfly_finished(data)


cdef bint keep_spare(PyObject *data) noexcept:
    global spare_count
    if Py_REFCNT(data) != 1 or spare_count == SPARES or not rbfly_set_size(data, SPARE_SIZE):
        return False
    Py_INCREF(<object> data)
    SPARE[spare_count] = data
    spare_count += 1
    return True
