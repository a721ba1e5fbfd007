"""Per-message and per-confirm work of publishers, compiled.

One callback of the event loop wakes all tasks whose confirms arrived together, in order; what they
send leaves when all of them have run.
"""

cimport cython
from cpython.object cimport PyObject

from rbfly._cpython cimport (
    rbfly_forks, rbfly_mark_step, rbfly_place, rbfly_same_step, rbfly_step, rbfly_watch_forks,
)
from rbfly.protocol._atomic cimport AtomicBatch, put_atomic
from rbfly.protocol._frames cimport append_next, is_short
from rbfly.protocol._pending cimport ConfirmWaiter
from rbfly.protocol._publish cimport PublishWindow
from rbfly.streams._publish._confirm cimport ConfirmFuture, ConfirmGroup

import asyncio

from rbfly.error import PublisherError, copy_error, wrong_loop

NOT_OPEN = 'the publisher is not open: use `await client.publisher(...)` to open one'

rbfly_watch_forks()


cdef class SemaphoreState:
    """The fields of a semaphore that are read for every message.

    :ivar reserved: capacity granted to tasks that have not used it yet.
    :ivar waiting: the tasks that wait, in order.
    """

    cdef public Py_ssize_t reserved
    cdef public object waiting


@cython.final
cdef class Wakeups:
    """Wakes the tasks whose confirms arrived together, then writes what they have sent.

    The partitions of a super stream share one: its tasks send to any partition.

    :param loop: event loop of the publisher.
    """

    cdef object confirmed   # a future that is done, to wake tasks with
    cdef list woken         # futures whose tasks `_run` runs next
    cdef list held          # cores that `_run` writes at its end
    cdef bint running
    cdef bint gathering     # `_run` is running several tasks

    def __init__(self, loop):
        self.confirmed = loop.create_future()
        self.confirmed.set_result(None)
        self.woken = []
        self.held = []

    cdef int add(self, ConfirmFuture wait) except -1:
        if not self.woken:
            wait._loop.call_soon(self._run)
        self.woken.append(wait)
        return 0

    cdef int hold(self, PublisherCore core) except -1:
        # Write a core at the end of `_run`.
        self.held.append(core)
        core.scheduled = True
        return 0

    @cython.binding(False)
    def _run(self):
        cdef list woken = self.woken
        cdef Py_ssize_t n = 0
        self.woken = []
        self.running = True
        self.gathering = len(woken) > 1
        try:
            for wait in woken:
                n += 1
                (<ConfirmFuture> wait)._wake(self.confirmed)
        finally:
            self.running = self.gathering = False
            if n < len(woken):      # e.g. KeyboardInterrupt
                self.woken = woken[n:] + self.woken
                self.confirmed.get_loop().call_soon(self._run)
            self._write()

    @cython.binding(False)
    def _write(self):
        cdef list held = self.held
        cdef Py_ssize_t n = 0
        self.held = []
        try:
            for core in held:
                n += 1
                (<PublisherCore> core).write()
        finally:
            if n < len(held):
                self.held = held[n:] + self.held
                self.confirmed.get_loop().call_soon(self._write)


@cython.final
cdef class PublisherCore:
    """Puts messages into the window, writes frames, and wakes the tasks that await confirms.

    :param loop: event loop of the publisher.
    :param window: messages that are not settled.
    :param semaphore: class of the semaphore for the window's capacity, called with `has_capacity`.
    :param bounded: `batch` queues no more messages than the window has capacity for.
    :param undeclared: the broker must declare the publisher before it takes messages.
    :ivar session: has `check`, which raises if the publisher takes no messages; `batch_full`, which
        returns the error of a message without capacity; `settle`, which passes the outcome to a
        waiter; `closing`, whose `left` is None unless a close gave up; and `after_settled`, called
        after a frame of confirms if `watch` was called, the publisher must be redeclared, or that
        `left` is not None.  None before `bind` and after `end`.
    :ivar connection: where to write frames; None while there is none.
    :ivar accepts: the publisher takes messages.
    :ivar undeclared: it has never taken messages: its next publishing id is unknown.
    :ivar error: why the publisher takes no messages; None if it does, or is undeclared.
    :ivar filling: the batch that takes messages.
    :ivar flushed: batches that were sent, and whose outcome no flush has reported.
    :ivar poll: keeps the event loop awake while confirms are awaited; None if it may sleep.
    """

    cdef readonly PublishWindow window
    cdef readonly object loop
    cdef readonly SemaphoreState capacity
    cdef readonly object session, connection, error
    cdef readonly object poll
    cdef bint watched, asleep
    cdef readonly bint accepts, undeclared, scheduled
    cdef readonly ConfirmGroup filling
    cdef readonly list flushed
    cdef bint bounded
    cdef Wakeups wakeups
    cdef unsigned long place        # thread of the loop
    cdef unsigned long forks        # number of forks before the process of the loop
    cdef rbfly_step step            # task step in which the loop was last checked

    def __init__(
        self, loop, PublishWindow window not None, semaphore, bint bounded=True,
        bint undeclared=False,
    ):
        self.loop = loop
        self.window = window
        self.capacity = semaphore(self.has_capacity)
        self.filling = ConfirmGroup()
        self.flushed = []
        self.bounded = bounded
        self.undeclared = undeclared
        self.accepts = not undeclared
        self.wakeups = Wakeups(loop)
        self.place = rbfly_place()
        self.forks = rbfly_forks
        window.listen(self.on_settled)

    def bind(self, session, poll=None):
        """Call a session from now on, and keep the event loop awake with `poll`."""
        self.session = session
        self.poll = poll

    def watch(self):
        """Call the session's `after_settled` after the next frame of confirms."""
        self.watched = True

    def sleep(self):
        """Call the session's `on_sent` after the next frame of messages."""
        self.asleep = True

    def enter(self, bint accepts, error=None):
        """Take messages from now on, or none because of an error."""
        self.accepts = accepts
        self.error = error
        if accepts:
            self.undeclared = False

    def wake_with(self, PublisherCore other not None):
        """Wake tasks together with those of another publisher in the same event loop."""
        self.wakeups = other.wakeups

    def resume(self, connection, publisher_id):
        """Write to a connection, beginning with all unsettled messages."""
        done = self.window.replay(publisher_id, connection.frame_max)
        self.connection = connection
        self.watched = True         # the first confirm ends the outage
        for waiter in done:         # their messages are too large for this connection
            self.session.settle(waiter)
        self.write()

    def suspend(self):
        """Stop writing: the connection is gone."""
        self.connection = None
        if self.poll is not None:
            self.poll.stop()

    def end(self):
        """Drop the reference to the session."""
        self.window.listen(None)
        self.session = None

    cpdef Py_ssize_t free(self) except -1:
        """Number of messages that the window has capacity for; 0 if the connection is paused."""
        return 0 if self.is_paused() else max(0, self.room())

    cpdef Py_ssize_t room(self) noexcept:
        """Number of messages that `batch` may queue; not positive for none."""
        cdef Py_ssize_t used = self.window.in_flight + self.window.queued + self.capacity.reserved
        return 0 if self.undeclared else self.window.max_unconfirmed - used

    def has_capacity(self, Py_ssize_t count):
        """True if the window has capacity for `count` messages and the connection is not paused."""
        return count <= self.free()

    def is_paused(self):
        """True if the write buffer of the connection is full."""
        # Without a connection, messages fill the window.
        return self.connection is not None and self.connection.paused

    cpdef int check_loop(self) except -1:
        """Check that the caller runs in the publisher's event loop, or in its thread while no loop
        runs.

        :raises EventLoopError: the caller runs in another event loop, thread or process.
        :raises RbFlyError: the publisher was closed, or its client disconnected, in a loop that has
            ended.
        """
        cdef object running = asyncio._get_running_loop()
        if running is self.loop and rbfly_forks == self.forks:
            self.place = rbfly_place()
            rbfly_mark_step(&self.step)
        elif running is not None or rbfly_place() != self.place or self.loop.is_running():
            if (
                self.error is not None and self.loop.is_closed()
                and (self.session is None or self.session.is_closed)
            ):
                raise self.ended()
            raise wrong_loop('the publisher')
        return 0

    cdef bint _is_ready(self) except -1:
        # False if the next message has to wait for capacity.
        cdef PublishWindow window = self.window
        cdef SemaphoreState capacity = self.capacity
        # `_run` runs tasks in the loop.
        if not self.wakeups.running or rbfly_place() != self.place:
            self.check_loop()
        if not self.accepts:
            self._check()
        return not (
            self.undeclared
            or window.in_flight + window.queued >= window.max_unconfirmed
            or capacity.reserved
            or capacity.waiting
            or self.connection is not None and self.connection.paused
        )

    cdef object ended(self):
        # The error of a publisher that was closed, or whose client was disconnected.
        error = copy_error(self.error)
        return error if self.session is None else self.session.not_sent(error)

    cdef int _check(self) except -1:
        if self.session is None:
            raise self.ended()
        self.session.check()
        return 0

    cdef int _batch(self, object message) except -1:
        cdef PublishWindow window = self.window
        cdef Py_ssize_t left
        cdef object error = self.error
        if not rbfly_same_step(&self.step):
            self.check_loop()
        if not self.accepts:
            self._check()
        left = self.room()
        if left <= 0 and (self.bounded or self.undeclared):
            raise self.session.batch_full(error)
        if self.filling.settled:        # the publisher gave it up: later messages need another one
            self._next()
        append_next(window, message, self.filling)
        if self.bounded:
            # `_append_ready` does not look at `left`.
            window.room = min(window.room, left - 1)
            window.sub_entry_room = min(window.sub_entry_room, left - 1)
        return 0

    cdef int _next(self) except -1:
        # Begin a new batch; the next flush reports the outcome of this one.
        self.flushed.append(self.filling)
        self.filling = ConfirmGroup()
        return 0

    cpdef int release(self) except -1:
        """Send the batch that is being filled."""
        cdef ConfirmGroup batch = self.filling
        if batch.count:
            self._next()
            if batch.seal():    # they were sent before, or are too large for a new connection
                self._settle(batch)
        return self.write()

    @cython.binding(False)
    def flush(self):
        """Send the batch that is being filled; return all batches that `report` does not know of.

        :raises RbFlyError: the publisher takes no messages.
        """
        self.check_loop()
        if not self.accepts:
            self._check()
        self.release()
        return self.flushed.copy()

    @cython.binding(False)
    def report(self, list batches not None):
        """Forget batches that are settled; return their errors (list)."""
        cdef ConfirmGroup batch
        if self.filling in batches:
            self._next()
        self.flushed = [batch for batch in self.flushed if batch not in batches]
        return [batch.error for batch in batches if batch.error is not None]

    cdef int _settle(self, waiter) except -1:
        if self.session is not None:
            self.session.settle(waiter)
        return 0

    cdef ConfirmFuture _put(self, object message):
        cdef ConfirmFuture wait = ConfirmFuture.__new__(ConfirmFuture)
        wait._loop = self.loop
        wait.sealed = True
        wait.id = self.window._append(message, wait)
        if not self.scheduled:
            self.schedule()
        return wait

    @cython.binding(False)
    def put_atomic(self, AtomicBatch batch not None, publish_id=None):
        """Put a batch into the window; return what to await.

        :param publish_id: publishing id of the batch; None for the next one.
        """
        cdef ConfirmFuture wait = ConfirmFuture.__new__(ConfirmFuture)
        wait._loop = self.loop
        wait.sealed = True
        wait.id = put_atomic(self.window, batch, wait, publish_id)
        if not self.scheduled:
            self.schedule()
        return wait

    def join(self, message):
        """Return what to await for a message in the window that another call of `send` has put.

        Both messages have the same explicit publishing id and the same content; None if there is
        no such message.
        """
        cdef ConfirmFuture wait = ConfirmFuture(self.loop)
        cdef object id = self.window.join(message, wait)
        if id is None:
            return None
        wait.id = id
        return wait

    def give_up(self, wait not None):
        """Note that the caller that awaited a message has given up.

        Returns True if the message was never sent and is now withdrawn.

        :param wait: ConfirmFuture, or a future with a `publish_id`.
        """
        cdef object id = wait.publish_id if type(wait) is not ConfirmFuture else (
            (<ConfirmFuture> wait).id)
        cdef bint withdrawn = self.window.give_up(id, wait)
        if self.capacity.waiting:
            self.capacity.grant()
        return withdrawn

    cpdef int schedule(self) except -1:
        """Write at once if nothing is in flight; else as `defer`."""
        if self.window.in_flight == 0 and not self.wakeups.gathering:
            return self.write()
        return self.defer()

    cpdef int defer(self) except -1:
        """Write at the end of this turn of the loop, or at once if there is a full frame.

        Until then, this task and others whose confirms arrived together may send more messages.
        """
        cdef PublishWindow window = self.window
        if window.queued >= window.frame_entries:
            self.write()
        elif self.scheduled:
            pass
        elif self.wakeups.gathering:
            self.wakeups.hold(self)
        else:
            self.scheduled = True
            self.loop.call_soon(self.write)
        return 0

    cpdef int write(self) except -1:
        """Write the frames that the window has capacity for."""
        cdef PublishWindow window = self.window
        cdef object connection = self.connection
        cdef object data
        self.scheduled = False
        while connection is not None and not connection.paused:
            data = window._take()
            if data is None:
                break
            connection.write(data)
            if self.asleep:
                self.asleep = False
                self.session.on_sent()
            if self.poll is not None:
                self.poll.on_sent()
            if window.queued == 0:
                break
        if self.capacity.waiting:
            self.capacity.grant()
        return 0

    @cython.binding(False)
    def on_settled(self, list done not None):
        """Wake the tasks of waiters whose messages are all settled."""
        cdef Py_ssize_t n = 0
        try:
            for waiter in done:
                n += 1
                if (<ConfirmWaiter> waiter).errors is not None:
                    self._settle(waiter)
                elif type(waiter) is ConfirmFuture:
                    self._confirm(<ConfirmFuture> waiter)
                elif type(waiter) is ConfirmGroup:
                    (<ConfirmGroup> waiter).settled = True
                    for wait in (<ConfirmGroup> waiter).waits:
                        self._confirm(<ConfirmFuture> wait)
                else:
                    future = (<ConfirmWaiter> waiter).future
                    if type(future) is list or future is None:
                        self._settle(waiter)
                    elif not future.done():
                        future.set_result(None)
        finally:
            if n < len(done):       # e.g. KeyboardInterrupt
                self.loop.call_soon(self.on_settled, done[n:])
        if self.poll is not None:
            self.poll.on_confirmed(self.window.in_flight == 0)
        if not self.scheduled:
            if len(self.wakeups.woken) > 1:
                self.wakeups.hold(self)
            elif len(done) > 1:
                self.scheduled = True
                self.loop.call_soon(self.write)
            elif self.window.queued:
                self.write()
        if self.capacity.waiting:
            self.capacity.grant()
        if self.session is not None and (
            self.watched or self.window.needs_redeclare or self.session.closing.left is not None
        ):
            self.watched = False
            self.session.after_settled()

    cdef int _confirm(self, ConfirmFuture wait) except -1:
        if not wait.settled:
            wait.settled = True
            self.wakeups.add(wait)
        return 0


cdef int fail_not_open() except -1:
    # Only `__new__` of a publisher was called.
    raise PublisherError(NOT_OPEN)


cdef class FastPublisher:
    """Methods of publishers that run for each message."""

    cdef public PublisherCore _core

    @cython.binding(False)
    def batch(self, message):
        """Encode a message and queue it; `flush` sends it.

        Never waits.  The next `send`, `submit`, `send_many` or `close` also sends the queued
        messages, so that messages of a task leave in the order of its calls; a publisher that
        awaits confirms may send them earlier.

        :param message: body, or context with a body; bytes if the publisher is not `amqp`.
        :raises AMQPEncoderError: the message cannot be encoded as AMQP 1.0; the batch is unchanged.
        :raises ValueError: its explicit publishing id is not above the last one used.
        :raises PublisherError: the publisher is closed; or, with `wait=False` and a name, not
            declared for the first time.
        :raises MessageTooLarge: the message does not fit into a frame.
        :raises WindowTimeout: `max_unconfirmed` messages are queued or in flight; the message was
            not queued: `await flush()`.
        :raises EventLoopError: the publisher belongs to another event loop, thread or process.
        """
        if self._core is None:
            fail_not_open()
        # A condition that holds runs no other code, so objects are borrowed.
        if not (
            is_short(message)
            and rbfly_same_step(&self._core.step)
            and self._core.accepts
            and (<PublishWindow> <PyObject *> self._core.window)._append_ready(
                message, <PyObject *> self._core.filling
            )
        ):
            self._core._batch(message)

    @cython.binding(False)
    def _begin(self, message):
        """Put a message into the window; return what to await, or None for lack of capacity."""
        if self._core is None:
            fail_not_open()
        return self._core._put(message) if self._core._is_ready() else None

    @cython.binding(False)
    def _is_ready(self):
        """True if the window has capacity for a message, and no other message waits for it.

        :raises RbFlyError: the publisher takes no messages.
        """
        if self._core is None:
            fail_not_open()
        return self._core._is_ready()

    @cython.binding(False)
    def _put(self, message):
        """Put a message into the window, after waiting for capacity; return what to await."""
        return self._core._put(message)
