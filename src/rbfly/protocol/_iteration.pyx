"""What `async for` over a subscription awaits.

A message that has arrived is given by an awaitable that is finished at once; only where none has
does a coroutine of the cursor's session wait for one.
"""

cimport cython
from cpython.object cimport PyObject

from rbfly._cpython cimport PySendResult, rbfly_inherit_anext, rbfly_set_next
from rbfly.amqp._decode cimport keep_error
from rbfly.protocol._cursor cimport BODY, MessageCursor

cdef extern from *:
    """
    /* Where nothing has arrived, `give` gives what it was given, and a coroutine is asked. */
    static PyObject *(*rbfly_give)(PyObject *);
    static PyObject *(*rbfly_begun)(PyObject *);

    Py_NO_INLINE static PySendResult rbfly_begun_send(PyObject *ready, PyObject **result) {
        PyObject *waiting = rbfly_begun(ready);
        PySendResult sent;
        Py_DECREF(*result);
        *result = NULL;
        if (waiting == NULL) return PYGEN_ERROR;
        sent = PyIter_Send(waiting, Py_None, result);
        Py_DECREF(waiting);
        return sent;
    }
    static PySendResult rbfly_ready_send(PyObject *ready, PyObject *arg, PyObject **result) {
        PyObject *value = *result = rbfly_give(ready);
        (void)arg;  /* asyncio sends None */
        if (value == ready) return rbfly_begun_send(ready, result);
        return value == NULL ? PYGEN_ERROR : PYGEN_RETURN;
    }
    static PyObject *rbfly_ready_next(PyObject *ready) {
        PyObject *stop, *value;
        PySendResult sent = rbfly_ready_send(ready, Py_None, &value);
        if (sent != PYGEN_RETURN) return value;
        stop = PyObject_CallOneArg(PyExc_StopIteration, value);
        Py_DECREF(value);
        if (stop != NULL) {
            PyErr_SetObject(PyExc_StopIteration, stop);
            Py_DECREF(stop);
        }
        return NULL;
    }
    static void rbfly_answer(PyObject *(*give)(PyObject *), PyObject *(*begun)(PyObject *)) {
        rbfly_give = give;
        rbfly_begun = begun;
    }
    """
    PySendResult rbfly_ready_send(PyObject *ready, PyObject *arg, PyObject **result) noexcept
    PyObject *rbfly_ready_next(PyObject *ready) noexcept
    object next_of "rbfly_ready_next"(object ready)
    void rbfly_answer(object (*give)(object), object (*begun)(object))

# What becomes of an awaitable, beside the kinds of what it gives.
cdef enum:
    SPENT = 3               # it was given
    WAITING = 4             # a coroutine waits for it
    FAILED = 5              # what was looked for is damaged, or not to be had

# The same function with its error left set, which costs less than try and except.
ctypedef int (*raw_has)(NextMessage ready) noexcept


cdef class SubscriptionBase:
    """Base of a subscription: gives the bodies of its messages."""

    cdef MessageCursor cursor

    def __init__(self, MessageCursor cursor not None):
        self.cursor = cursor
        if type(self).__anext__ is SubscriptionBase.__anext__:
            rbfly_inherit_anext(type(self), SubscriptionBase)

    def __aiter__(self):
        return self

    def __anext__(self):
        return new_ready(self, BODY, 0)


@cython.final
cdef class MessageIterator:
    """Iterates over the contexts or the batches of a subscription, and keeps it."""

    cdef SubscriptionBase subscription
    cdef int kind
    cdef Py_ssize_t limit

    def __init__(self, SubscriptionBase subscription not None, int kind, Py_ssize_t limit=0):
        self.subscription = subscription
        self.kind = kind
        self.limit = limit

    def __aiter__(self):
        return self

    def __anext__(self):
        return new_ready(self.subscription, self.kind, self.limit)


@cython.final
@cython.freelist(8)
@cython.no_gc
cdef class NextMessage:
    # What `__anext__` gives, to be awaited or to become a task: finished at once if something has
    # arrived, else a coroutine waits.  Being awaited it hands that over, and is in no cycle.
    cdef object source              # the subscription; the coroutine that waits; why it failed
    cdef int kind
    cdef Py_ssize_t limit

    def __await__(self):
        cdef int found = self.kind == FAILED
        if self.kind < SPENT:
            found = (<raw_has> has)(self)
            if found < 0:
                fail(self)          # `async for` makes a TypeError of what is raised here
        if found:
            return self
        return begun(self).__await__()

    def __iter__(self):
        return self

    def __next__(self):
        return next_of(self)

    def send(self, value):
        return next_of(self)

    def throw(self, *args):
        return begun(self).throw(*args)

    def close(self):
        if self.kind == FAILED:
            self.kind = SPENT
        if self.kind != SPENT:
            begun(self).close()


cdef NextMessage new_ready(SubscriptionBase subscription, int kind, Py_ssize_t limit):
    cdef NextMessage ready = NextMessage.__new__(NextMessage)
    ready.source = subscription
    ready.kind = kind
    ready.limit = limit
    return ready


cdef int has(NextMessage ready) except -1:
    return (<SubscriptionBase> ready.source).cursor._has(ready.kind, ready.limit)


cdef int fail(NextMessage ready) except -1:
    # the error that is set is raised when it is asked for
    try:
        keep_error()
    except BaseException as ex:
        ready.source = ex
        ready.kind = FAILED
    return 0


cdef object give(object ready):
    # what it gives for the first time, itself if nothing has arrived or it is the turn of others
    cdef int kind = (<NextMessage> ready).kind
    if (
        kind < SPENT
        and not (<SubscriptionBase> (<NextMessage> ready).source).cursor.turn._is_over()
        and (<SubscriptionBase> (<NextMessage> ready).source).cursor._has(
            kind, (<NextMessage> ready).limit
        )
    ):
        (<NextMessage> ready).kind = SPENT
        if kind == BODY and (<SubscriptionBase> (<NextMessage> ready).source).cursor.direct:
            return (<SubscriptionBase> (<NextMessage> ready).source).cursor._take_body()
        return (<SubscriptionBase> (<NextMessage> ready).source).cursor._take(kind)
    return ready


cdef object begun(object item):
    """The coroutine that waits."""
    cdef NextMessage ready = <NextMessage> item
    if ready.kind == SPENT:
        raise RuntimeError('cannot reuse already awaited __anext__()')
    if ready.kind == FAILED:
        error, ready.source = ready.source, None
        ready.kind = SPENT
        raise error
    if ready.kind != WAITING:
        # it keeps the subscription while it waits
        ready.source = (<SubscriptionBase> ready.source).cursor.session.wait(
            ready.kind, ready.limit, ready.source
        )
        ready.kind = WAITING
    return ready.source


rbfly_answer(give, begun)
rbfly_set_next(NextMessage, rbfly_ready_send, rbfly_ready_next)
