# Per-message work of publishers.  The ABI may change in any release.

from rbfly._cpython cimport rbfly_step
from rbfly.protocol._publish cimport PublishWindow
from rbfly.streams._confirm cimport ConfirmFuture, ConfirmGroup


cdef class SemaphoreState:
    cdef public Py_ssize_t reserved
    cdef public object waiting


cdef class PublisherCore:
    cdef readonly PublishWindow window
    cdef readonly object loop
    cdef readonly SemaphoreState capacity
    cdef readonly object session
    cdef readonly object connection
    cdef readonly object error
    cdef readonly bint closed
    cdef readonly bint scheduled
    cdef object confirmed           # a future that is done, to wake tasks with
    cdef unsigned long place        # thread of the loop
    cdef unsigned long forks        # number of forks before the process of the loop
    cdef rbfly_step step            # task step in which the loop was last checked
    cdef bint waking                # `_wake` is running tasks
    cdef list woken                 # futures whose tasks `_wake` runs next

    cdef ConfirmFuture _begin(self, object message)
    cdef int _check(self) except -1
    cdef int _settle(self, waiter) except -1
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
    cdef readonly SemaphoreState capacity
    cdef readonly list sent

    cdef int _next(self) except -1


cdef class BatchBase(PublisherBase):
    cdef public Batches _batches
