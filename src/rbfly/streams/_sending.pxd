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
    cdef readonly PublishWindow window
    cdef readonly object loop
    cdef readonly SemaphoreState room
    cdef public object driver
    cdef public object connection
    cdef public object error
    cdef public bint closed
    cdef readonly bint scheduled
    cdef object confirmed           # a future that is done
    cdef unsigned long thread       # that the loop runs in
    cdef list woken                 # who is woken in this turn of the loop

    cdef ConfirmFuture _begin(self, object message)
    cdef int _check_loop(self) except -1
    cdef ConfirmFuture _put(self, object message)
    cdef int _schedule(self) except -1
    cdef int _write(self) except -1
    cdef int _confirm(self, ConfirmFuture wait) except -1


cdef class PublisherBase:
    cdef public PublisherCore _core


cdef class Batches:
    cdef PublisherCore core
    cdef readonly ConfirmGroup filling
    cdef readonly SemaphoreState room
    cdef public list sent

    cdef int _next(self) except -1


cdef class BatchBase(PublisherBase):
    cdef public Batches _batches
