# What publishers do for each message.  No ABI promise between releases.

from rbfly.protocol._frames cimport PendingConfirms
from rbfly.protocol._publish cimport PublishWindow


cdef class ConfirmFuture(PendingConfirms):
    cdef readonly object _loop
    cdef object callback            # of the task that awaits this
    cdef object context
    cdef object error
    cdef object traceback
    cdef bint settled
    cdef public bint _asyncio_future_blocking

    cdef int _wake(self, object confirmed) except -1
    cdef int _finish(self, object error) except -1
    cdef int _call_soon(self) except -1


cdef class ConfirmGroup(PendingConfirms):
    cdef object loop
    cdef list waits                 # of the tasks that await it
    cdef readonly bint settled
    cdef readonly object error


cdef class SemaphoreState:
    cdef public Py_ssize_t reserved
    cdef public object waiting


cdef class PublisherCore:
    cdef public PublishWindow _window
    cdef public object _error
    cdef public bint _closed
    cdef public bint _scheduled
    cdef public object _loop
    cdef public object _connection
    cdef public SemaphoreState _room
    cdef public object _confirmed   # a future that is done
    cdef unsigned long _thread      # that the loop runs in
    cdef list _woken                # who is woken in this turn of the loop

    cdef int _check_loop(self) except -1
    cdef ConfirmFuture _put(self, object message)
    cdef int _confirm(self, ConfirmFuture wait) except -1


cdef class BatchCore(PublisherCore):
    cdef public ConfirmGroup _waiter       # of the batch that is being filled
