# The publish window.  The ABI may change in any release.

from libc.stdint cimport uint8_t, uint64_t

from rbfly.protocol._frames cimport Entry, Frame, FrameBuilder


cdef class PublishWindow(FrameBuilder):
    cdef readonly Py_ssize_t in_flight, resent
    cdef readonly bint needs_redeclare
    cdef object on_settled
    cdef uint64_t released          # if batched: number of the first frame that is held back
    cdef uint64_t next_frame        # number of the next frame to send
    cdef uint64_t sent              # positions: [head, sent) in flight, [sent, tail) queued
    cdef uint64_t cursor            # position of the entry whose confirm is expected next
    cdef list too_large             # waiters settled by a replay that has not returned them
    cdef bint any_written
    cdef uint64_t written           # highest id sent, when last noted; if any_written

    cdef list _unsettled(self)
    cdef int _note_written(self) noexcept
    cdef int _refuse_too_large(self) except -1
    cdef int _repack(self, uint64_t first) except -1
    cdef int _mark_released(self) except -1
    cdef Entry *_find(self, uint64_t id) noexcept
    cdef Py_ssize_t _settle_entry(
        self, Frame frame, Entry *entry, int code, list done
    ) except -1
    cdef int _release(self) except -1
    cdef list confirm(self, const uint8_t *p, Py_ssize_t count)
    cdef list refuse(self, const uint8_t *p, Py_ssize_t count)
