# The publish window.  The ABI may change in any release.

from libc.stdint cimport int64_t, uint8_t, uint64_t

from rbfly._turn cimport Sampler
from rbfly.protocol._frames cimport Frame, FrameBuilder
from rbfly.protocol._pending cimport ConfirmWaiter
from rbfly.protocol._ring cimport Entry, Ids


cdef class PublishWindow(FrameBuilder):
    cdef readonly Py_ssize_t in_flight
    cdef readonly Py_ssize_t given_up
    cdef readonly bint named
    cdef Py_ssize_t withdrawn       # settled entries that are still in queued frames
    cdef uint64_t next_frame        # number of the next frame to send
    cdef Ids written                # up to the highest one that was ever sent
    cdef readonly Py_ssize_t resent
    cdef readonly bint needs_redeclare
    cdef Ids replayed               # up to the highest one sent on an earlier connection
    cdef object on_settled
    cdef readonly uint64_t published, confirmed, refused, repeated
    cdef int64_t confirmed_at       # milliseconds since the epoch; 0 for never
    cdef Sampler latency            # None if no confirm is timed
    cdef list timed                 # when the timed frames were sent that are confirmed now
    cdef list too_large             # waiters settled by a replay that has not returned them

    cdef bint _last_is_withdrawn(self) noexcept
    cdef Frame _frame_of(self, Entry *entry)
    cdef Entry *_find_unsettled(self, uint64_t id, uint64_t *position) noexcept
    cdef int _retire(self, Entry *entry, uint64_t position, Py_ssize_t count) except -1
    cdef bint _withdraw(self, uint64_t id, object waiter) except -1
    cdef bint _join(self, object message, uint64_t id, ConfirmWaiter waiter) except -1
    cdef int _drop_given_up(self) except -1
    cdef int _roll_back(self) noexcept
    cdef int _repack(self, uint64_t first) except -1
    cdef object _take(self)
    cdef Py_ssize_t _count_repeated(self, Frame frame) except -1
    cdef list _unsettled(self)
    cdef int _refuse_too_large(self) except -1
    cdef Py_ssize_t _settle_entries(
        self, Frame frame, Entry *entry, Py_ssize_t run, int code, list done
    ) except -1
    cdef int _release(self) except -1
    cdef void _note_timed(self, uint64_t sent_at) noexcept
    cdef void _record_latency(self) noexcept
    cdef list confirm(self, const uint8_t *p, Py_ssize_t count)
    cdef list refuse(self, const uint8_t *p, Py_ssize_t count)
