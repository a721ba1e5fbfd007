# What tasks await.  The ABI may change in any release.

from libc.stdint cimport uint64_t

from rbfly.protocol._pending cimport ConfirmWaiter, Unconfirmed


cdef class ConfirmFuture(ConfirmWaiter):
    cdef readonly object _loop
    cdef object callback            # wakes the task that awaits this
    cdef object context
    cdef object error, traceback
    cdef uint64_t id                # publishing id of the message
    cdef bint settled
    cdef public bint _asyncio_future_blocking

    cdef int _wake(self, object confirmed) except -1
    cdef int _finish(self, object error) except -1
    cdef int _call_soon(self) except -1


cdef class ConfirmGroup(ConfirmWaiter):
    cdef list waits                 # ConfirmFuture of each task that awaits it
    cdef readonly bint settled
    cdef readonly object error
    cdef readonly tuple unconfirmed

    cdef int _add_unconfirmed(self, uint64_t index, Py_ssize_t count, Unconfirmed why) except -1
