# PUBLISH room: declarations for the engine.  No ABI promise between releases.

from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t

from rbfly._wire cimport OutBuffer


cdef class Waiter:
    cdef public object future
    cdef readonly Py_ssize_t remaining
    cdef readonly bint sealed
    cdef readonly uint64_t count
    cdef readonly uint64_t first_refused
    cdef readonly list errors
    cdef bint _settle(self, Py_ssize_t count) noexcept
    cdef int _refuse(self, uint64_t id, int code, uint32_t order) except -1


cdef class Frame:
    cdef bytes data
    cdef list waiters
    cdef Waiter last                # of the waiters
    cdef Py_ssize_t count
    cdef Py_ssize_t unsettled


cdef struct Entry:
    uint64_t id
    uint32_t frame      # number of the frame that holds it, modulo 2**32
    uint32_t start      # where it begins in the frame
    uint32_t size       # from its publishing id to the end of its message
    uint32_t waiter     # index into the frame's waiters
    uint32_t order      # which of its waiter's messages it is, modulo 2**32
    uint8_t settled


cdef class PublishWindow:
    cdef readonly uint8_t publisher_id
    cdef readonly uint64_t next_id
    cdef readonly Py_ssize_t in_flight
    cdef readonly Py_ssize_t frame_max
    cdef readonly Py_ssize_t max_unconfirmed
    cdef readonly bint gone
    cdef public object on_settled
    cdef object filter_extract
    cdef bint amqp
    cdef bint busy
    cdef bint unsorted              # queued ids are not ascending
    cdef set batch_ids              # ids not released, once one came out of order; else None
    cdef bint has_last
    cdef uint64_t last_id           # highest id given so far, if has_last
    cdef bint batched
    cdef bint has_released
    cdef uint64_t last_released     # highest id released, if has_released
    cdef uint64_t released          # if batched: number of the first frame not released
    cdef uint64_t released_end      # and the position behind the last entry released
    cdef readonly Py_ssize_t frame_entries
    cdef Py_ssize_t capacity_hint
    cdef OutBuffer out              # the open frame
    cdef Frame open
    cdef list frames                # finished and not all settled, in order; not the open one
    cdef uint64_t frames_base       # number of frames[0]
    cdef uint64_t next_frame        # number of the first finished frame that was not sent
    cdef Entry *ring
    cdef uint64_t mask
    cdef uint64_t head              # positions: [head, sent) in flight, [sent, tail) queued
    cdef uint64_t sent
    cdef uint64_t tail
    cdef uint64_t bytes_pushed      # into frames, ever
    cdef uint64_t cursor            # where the next confirm is expected

    cdef int _check_idle(self) except -1
    cdef int _grow_ring(self) except -1
    cdef int _open_frame(self) except -1
    cdef int _finish_frame(self) except -1
    cdef uint64_t _append(self, object message, Waiter waiter) except? 0xdead
    cdef bint _check_explicit(self, uint64_t id) except -1
    cdef object _filter_value(self, object message)
    cdef int _move_entry(self, Py_ssize_t start) except -1
    cdef int _push(self, uint64_t id, Py_ssize_t start, Waiter waiter, uint32_t order) except -1
    cdef int _put_entry(self, uint64_t id, object message, object value) except -1
    cdef int _repack(self, uint64_t first, list done) except -1
    cdef int _mark_released(self) except -1
    cdef Entry *_find(self, uint64_t id) noexcept
    cdef int _settle(self, uint64_t id, int code, list done) except -1
    cdef int _release(self) except -1
    cdef list confirm(self, const uint8_t *p, Py_ssize_t count)
    cdef list refuse(self, const uint8_t *p, Py_ssize_t count)


cdef class BatchInput:
    cdef public PublishWindow _window
    cdef public Waiter _waiter
    cdef public object _error
    cdef public bint _closed
