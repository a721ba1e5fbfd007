# The publish window.  The ABI may change in any release.

from libc.stdint cimport uint8_t, uint64_t

from rbfly.protocol._frames cimport Entry, Frame
from rbfly.protocol._queue cimport FrameQueue


cdef class PublishWindow(FrameQueue):
    cdef readonly Py_ssize_t resent
    cdef readonly bint needs_redeclare
    cdef bint any_replayed
    cdef uint64_t replayed          # highest id sent on an earlier connection, if any_replayed
    cdef object on_settled
    cdef list too_large             # waiters settled by a replay that has not returned them

    cpdef bytes take(self)
    cdef list _unsettled(self)
    cdef int _refuse_too_large(self) except -1
    cdef Entry *_find(self, uint64_t id) noexcept
    cdef Py_ssize_t _follow(self, Entry *entry, const uint8_t *p, Py_ssize_t count) noexcept
    cdef Py_ssize_t _settle_entries(
        self, Frame frame, Entry *entry, Py_ssize_t run, int code, list done
    ) except -1
    cdef int _release(self) except -1
    cdef list confirm(self, const uint8_t *p, Py_ssize_t count)
    cdef list refuse(self, const uint8_t *p, Py_ssize_t count)
