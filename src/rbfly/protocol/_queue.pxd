# Frames that are queued or in flight.  The ABI may change in any release.

from libc.stdint cimport uint64_t

from rbfly.protocol._frames cimport Entry, Frame, FrameBuilder
from rbfly.protocol._pending cimport PendingConfirms


# States of an entry (Entry.settled); 0 if it is queued or in flight.
cdef enum:
    SETTLED = 1         # confirmed, refused or withdrawn
    GIVEN_UP = 2        # queued or in flight, but its caller has given up


cdef Py_ssize_t messages_of(Frame frame, Entry *entry) except -1


cdef class FrameQueue(FrameBuilder):
    cdef readonly Py_ssize_t in_flight
    cdef readonly Py_ssize_t given_up
    cdef public bint named
    cdef Py_ssize_t withdrawn       # settled entries that are still in queued frames
    cdef uint64_t next_frame        # number of the next frame to send
    cdef uint64_t sent              # positions: [head, sent) in flight, [sent, tail) queued
    cdef uint64_t cursor            # position of the entry whose confirm is expected next
    cdef bint any_written
    cdef uint64_t written           # highest id that was ever sent, if any_written

    cdef bint _has_used(self, uint64_t id) except -1
    cdef int _free_ids(self) except -1
    cdef bint _last_is_withdrawn(self) noexcept
    cdef bint _was_written(self, uint64_t id) noexcept
    cdef Frame _frame_of(self, Entry *entry)
    cdef uint64_t _search(self, uint64_t id, uint64_t end) noexcept
    cdef Entry *_find_unsettled(self, uint64_t id, uint64_t *position) noexcept
    cdef int _retire(self, Entry *entry, uint64_t position, Py_ssize_t count) except -1
    cdef bint _withdraw(self, uint64_t id, PendingConfirms waiter) except -1
    cdef bint _join(self, object message, uint64_t id, PendingConfirms waiter) except -1
    cdef int _drop_given_up(self) except -1
    cdef int _roll_back(self) noexcept
    cdef int _repack(self, uint64_t first) except -1
