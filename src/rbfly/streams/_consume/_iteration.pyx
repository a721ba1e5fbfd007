"""The awaitables of `async for` over a subscription, and the last message of each task.

A message that has arrived is returned by an awaitable that is done at once.  Only if there is none
does a coroutine wait.
"""

cimport cython
from cpython.object cimport PyObject

from rbfly._cpython cimport (
    PySendResult, rbfly_inherit_anext, rbfly_keep_next, rbfly_kept_next, rbfly_mark_step,
    rbfly_same_step, rbfly_set_next, rbfly_step, rbfly_watch_forks,
)
from rbfly.amqp._decode cimport keep_error
from rbfly.amqp._message cimport LAST_SET
from rbfly.protocol._cursor cimport BODY, LastMessage, MessageCursor
from rbfly.protocol._decoder cimport rbfly_steal

from asyncio import current_task
from collections import deque
from types import GenericAlias
from weakref import ref

from rbfly.amqp._message import set_message_ctx
from rbfly.error import SubscriptionError, no_message
from rbfly.protocol._decoder import Decoder

cdef extern from *:
    """
    /* `take` returns a message, or its argument if a coroutine has to wait: that of `start`. */
    static PyObject *(*rbfly_take)(PyObject *);
    static PyObject *(*rbfly_start)(PyObject *);

    Py_NO_INLINE static PySendResult rbfly_start_send(PyObject *item, PyObject **result) {
        PyObject *waiting = rbfly_start(item);
        PySendResult sent;
        Py_DECREF(*result);
        *result = NULL;
        if (waiting == NULL) return PYGEN_ERROR;
        sent = PyIter_Send(waiting, Py_None, result);
        Py_DECREF(waiting);
        return sent;
    }
    static PySendResult rbfly_next_send(PyObject *item, PyObject *arg, PyObject **result) {
        PyObject *value = *result = rbfly_take(item);
        (void)arg;  /* asyncio sends None */
        if (value == item) return rbfly_start_send(item, result);
        return value == NULL ? PYGEN_ERROR : PYGEN_RETURN;
    }
    static PyObject *rbfly_next_next(PyObject *item) {
        PyObject *value;
        PySendResult sent = rbfly_next_send(item, Py_None, &value);
        if (sent != PYGEN_RETURN) return value;
        rbfly_return(value);
        return NULL;
    }
    static void rbfly_set_functions(PyObject *(*take)(PyObject *), PyObject *(*start)(PyObject *)) {
        rbfly_take = take;
        rbfly_start = start;
    }
    """
    PySendResult rbfly_next_send(PyObject *item, PyObject *arg, PyObject **result) noexcept
    PyObject *rbfly_next_next(PyObject *item) noexcept
    object next_of "rbfly_next_next"(object item)
    void rbfly_set_functions(object (*take)(object), object (*start)(object))

# The state of a NextMessage, if it is not the kind of what it returns.
cdef enum:
    SPENT = 3               # it has returned
    WAITING = 4             # a coroutine waits
    FAILED = 5              # looking for a message raised an error

# `has` with its exception left set: cheaper than try and except.
ctypedef int (*raw_has)(NextMessage item) noexcept

rbfly_watch_forks()


cdef object running_task():
    try:
        return current_task()
    except RuntimeError:
        return None                 # no event loop runs in this thread


@cython.final
cdef class TaskMessage(LastMessage):
    """The message that a task received last; :func:`get_message_ctx` asks it for the context.

    A new task inherits it with the context (:mod:`contextvars`) of the task that starts it.  In the
    new task it raises MessageContextError, instead of returning a message of the other task.
    """

    cdef object task                # weak reference; None for no task

    def _current_message_ctx(self):
        if self.task is None or self.task() is not running_task():
            raise no_message()
        return self.context()


@cython.final
cdef class RoundRobin:
    """Cursors that are read in turn: each of them for one chunk, or for one batch of several.

    :param current: a cursor that never has messages.
    :ivar current: the cursor whose turn it is.
    :ivar ready: the cursors to look at, in order (deque).
    :ivar drained: cursors without messages, which were looked at (set).
    """

    cdef readonly MessageCursor current
    cdef readonly object ready
    cdef readonly set drained
    cdef bint begun                 # the current cursor has returned something in its turn

    def __init__(self, MessageCursor current not None):
        self.current = current
        self.ready = deque()
        self.drained = set()

    def add(self, MessageCursor cursor not None):
        """Look at a cursor: a message or an error has arrived."""
        if not cursor.is_ready:
            cursor.is_ready = True
            self.ready.append(cursor)

    def remove(self, MessageCursor cursor not None):
        """Forget a cursor that is closed."""
        self.drained.discard(cursor)
        if cursor.is_ready:
            cursor.is_ready = False
            self.ready.remove(cursor)

    def sort(self):
        """End the turn, and take cursors without messages out of `ready`."""
        self.leave(self.current)
        for cursor in list(self.ready):
            self.remove(cursor)
            self.leave(cursor)

    # The program has finished all messages that this cursor has returned.
    cdef int leave(self, MessageCursor cursor) except -1:
        try:
            if cursor.chunk is not None and cursor.chunk.left == 0:
                cursor._end_chunk()
            if cursor.held is None:
                cursor._finish_all()
        finally:
            if cursor.queue.chunks or cursor._is_within():
                self.add(cursor)
            else:
                self.drained.add(cursor)
        return 0

    cdef bint next(self) except -1:
        self.leave(self.current)
        if not self.ready:
            return False
        self.choose(self.ready[0])
        self.begun = False
        return True

    cdef int choose(self, MessageCursor cursor) except -1:
        if cursor is not self.current:
            self.leave(self.current)
        self.remove(cursor)
        self.current = cursor
        self.begun = True
        return 0

    cdef bint advance(self, int kind, Py_ssize_t limit) except -1:
        """Make a body, context or batch of the next cursor ready; false if there is none."""
        if self.begun and not self.current._is_within() and not self.next():
            return False
        while self.current._may_advance():
            if self.current._advance(kind, limit):
                self.begun = True
                return True
            if self.current.queue.chunks or self.current._is_within():
                return False            # the turn of the event loop is over
            if not self.next():
                return False
        return False


# That of a subscription of which only `__new__` was called.
cdef MessageCursor NO_MESSAGES = MessageCursor(None, Decoder())


cdef class FastSubscription:
    """What a subscription does for each message: iterates over the bodies of its messages.

    :param cursor: returns the messages that have arrived.
    :param turns: if there are several cursors.
    :param waiter: has `check_loop`, called in each step of a task before a message is taken, which
        raises in another event loop; and the coroutine `wait(kind, limit, subscription)`, which
        waits for messages and takes them.
    """

    cdef MessageCursor cursor
    cdef RoundRobin turns           # None for one stream
    cdef object waiter
    cdef rbfly_step checked         # in which the event loop was checked last
    cdef rbfly_step noted           # in which the task was noted last

    __class_getitem__ = classmethod(GenericAlias)

    def __cinit__(self):
        self.cursor = NO_MESSAGES

    def __init__(self, MessageCursor cursor not None, waiter, RoundRobin turns=None):
        self.cursor = cursor
        self.turns = turns
        self.waiter = waiter
        if type(self).__anext__ is FastSubscription.__anext__:
            rbfly_inherit_anext(type(self), FastSubscription)

    def __aiter__(self):
        return self

    def __anext__(self):
        return next_message(self, BODY, 0)

    def _advance(self, MessageCursor cursor not None, int kind, Py_ssize_t limit):
        """Make a body, context or batch of the cursor ready; false if there is none for now."""
        if self.turns is not None:
            return self.advance_turns(kind, limit)
        if not rbfly_same_step(&self.checked):
            self.check_loop()
        return cursor._advance(kind, limit)

    def _take(self, MessageCursor cursor not None, int kind):
        """Return what `_advance` made ready, as the running task's last message."""
        if self.turns is not None:
            self.turns.choose(cursor)
        self.cursor = cursor
        if not self.is_noted():
            self.note_task()
        return cursor._take(kind)

    def _reader(self):
        """The task that has received the last message; None if there is none."""
        cdef object last = self.cursor.last
        if type(last) is TaskMessage and (<TaskMessage> last).task is not None:
            return (<TaskMessage> last).task()
        return None

    cdef bint advance_turns(self, int kind, Py_ssize_t limit) except -1:
        cdef bint found
        if not rbfly_same_step(&self.checked):
            self.check_loop()
        found = self.turns.advance(kind, limit)
        self.cursor = self.turns.current
        return found

    # True if the cursor notes its messages for the running task.
    cdef inline bint is_noted(self) noexcept:
        return LAST_SET is self.cursor.last and rbfly_same_step(&self.noted)

    cdef int check_loop(self) except -1:
        if self.waiter is None:         # only `__new__` was called
            raise SubscriptionError('the subscription is not open: use client.subscribe(...)')
        self.waiter.check_loop()
        rbfly_mark_step(&self.checked)
        return 0

    cdef int note_task(self) except -1:
        cdef MessageCursor cursor = self.cursor
        cdef TaskMessage last
        cdef object task
        if not rbfly_same_step(&self.checked):
            self.check_loop()
        task = running_task()
        last = cursor.last if type(cursor.last) is TaskMessage else None
        if task is None or last is None or last.task is None or last.task() is not task:
            last = TaskMessage(cursor)      # another task keeps its own
            last.task = None if task is None else ref(task)
            cursor.last = last
        set_message_ctx(last)
        rbfly_mark_step(&self.noted)
        return 0


@cython.final
cdef class MessageIterator:
    """Iterates over the contexts or the batches of a subscription, and keeps it alive."""

    cdef FastSubscription subscription
    cdef int kind
    cdef Py_ssize_t limit

    def __init__(self, FastSubscription subscription not None, int kind, Py_ssize_t limit=0):
        self.subscription = subscription
        self.kind = kind
        self.limit = limit

    def __aiter__(self):
        return self

    def __anext__(self):
        return next_message(self.subscription, self.kind, self.limit)


@cython.final
@cython.freelist(8)
@cython.no_gc
cdef class NextMessage:
    # The awaitable that `__anext__` returns; also accepted where a coroutine is, to create a task.
    # `await` passes it on to the coroutine that waits, if any, so that it is in no cycle.
    cdef object source              # the subscription, the coroutine that waits, or the error
    cdef int kind
    cdef Py_ssize_t limit

    def __await__(self):
        if self.kind == BODY and (<FastSubscription> self.source).cursor._has_body():
            return self
        return await_any(self)

    def __iter__(self):
        return self

    def __next__(self):
        return next_of(self)

    def send(self, value):
        return next_of(self)

    def throw(self, *args):
        return start(self).throw(*args)

    def close(self):
        if self.kind == FAILED:
            self.kind = SPENT
        if self.kind != SPENT:
            start(self).close()


cdef object await_any(NextMessage item):
    cdef int found = item.kind == FAILED
    if item.kind < SPENT:
        found = (<raw_has> has)(item)
        if found < 0:
            fail(item)              # `async for` would replace an error raised here by a TypeError
    return item if found else start(item).__await__()


cdef NextMessage next_message(FastSubscription subscription, int kind, Py_ssize_t limit):
    cdef NextMessage item
    cdef PyObject *kept = rbfly_kept_next()
    if kept is NULL:
        item = NextMessage.__new__(NextMessage)
    else:
        item = <NextMessage> rbfly_steal(kept)
    item.source = subscription
    item.kind = kind
    item.limit = limit
    return item


# True if a message can be taken now.
cdef inline bint can_take(NextMessage item, int kind) except -1:
    if kind == BODY and (<FastSubscription> item.source).cursor._has_body():
        return True
    if (<FastSubscription> item.source).turns is not None:
        return (<FastSubscription> item.source).advance_turns(kind, item.limit)
    if (<FastSubscription> item.source).cursor.held is not None:
        return True
    if not (<FastSubscription> item.source).cursor._may_advance():
        return False
    if not rbfly_same_step(&(<FastSubscription> item.source).checked):
        (<FastSubscription> item.source).check_loop()
    return (<FastSubscription> item.source).cursor._advance(kind, item.limit)


cdef int has(NextMessage item) except -1:
    return can_take(item, item.kind)


cdef int fail(NextMessage item) except -1:
    # keep the current exception, to raise it from `send`
    try:
        keep_error()
    except BaseException as ex:
        item.source = ex
        item.kind = FAILED
    return 0


# Notes the running task for the message that can be taken.  False if there is none any more: in the
# next event loop, a member of a group drops its messages.
cdef bint note(NextMessage item, int kind) except -1:
    cdef FastSubscription source = item.source
    source.note_task()
    if not can_take(item, kind):
        return False
    if source.cursor.last is not LAST_SET:
        source.note_task()          # the message is that of another cursor
    return True


cdef object take(object item):
    # The message; the item itself if none has arrived or other tasks should run.
    cdef int kind = (<NextMessage> item).kind
    cdef PyObject *body
    if (
        kind == BODY
        and (<FastSubscription> (<NextMessage> item).source).cursor._has_body()
        and (<FastSubscription> (<NextMessage> item).source).is_noted()
        and not (<FastSubscription> (<NextMessage> item).source).cursor.turn._is_over()
    ):
        body = (<FastSubscription> (<NextMessage> item).source).cursor._copy_body(
            (<FastSubscription> (<NextMessage> item).source).cursor.chunk,
            (<FastSubscription> (<NextMessage> item).source).cursor.last,
        )
        if body is not NULL:
            (<NextMessage> item).kind = SPENT
            return rbfly_steal(body)
    return take_any(item, kind)


cdef object take_any(object item, int kind):
    if (
        kind < SPENT
        and not (<FastSubscription> (<NextMessage> item).source).cursor.turn._is_over()
        and can_take(<NextMessage> item, kind)
        and (
            (<FastSubscription> (<NextMessage> item).source).is_noted()
            or note(<NextMessage> item, kind)
        )
    ):
        (<NextMessage> item).kind = SPENT
        if kind == BODY and (<FastSubscription> (<NextMessage> item).source).cursor.direct:
            return (<FastSubscription> (<NextMessage> item).source).cursor._take_body()
        return (<FastSubscription> (<NextMessage> item).source).cursor._take(kind)
    return item


cdef object start(object obj):
    """The coroutine that waits."""
    cdef NextMessage item = <NextMessage> obj
    if item.kind == SPENT:
        raise RuntimeError('cannot reuse already awaited __anext__()')
    if item.kind == FAILED:
        error, item.source = item.source, None
        item.kind = SPENT
        raise error
    if item.kind != WAITING:
        # the coroutine keeps the subscription alive
        item.source = (<FastSubscription> item.source).waiter.wait(
            item.kind, item.limit, item.source
        )
        item.kind = WAITING
    return item.source


cdef int keep_next() except -1:
    cdef NextMessage item = NextMessage.__new__(NextMessage)
    item.source = NextMessage
    return rbfly_keep_next(item, item.source)


keep_next()
rbfly_set_functions(take, start)
rbfly_set_next(NextMessage, rbfly_next_send, rbfly_next_next)
