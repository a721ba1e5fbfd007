# What publishers do for each message.  No ABI promise between releases.

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
    cdef object confirmed           # a future that is done
    cdef unsigned long place        # thread that the loop runs in
    cdef unsigned long forks        # process that the loop runs in
    cdef rbfly_step step            # in which the loop was checked last
    cdef bint waking                # the tasks in `woken` run now
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
    cdef readonly SemaphoreState capacity
    cdef readonly list sent

    cdef int _next(self) except -1


cdef class BatchBase(PublisherBase):
    cdef public Batches _batches
