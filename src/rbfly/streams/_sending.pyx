"""What publishers do for each message and for each confirm, compiled.

A task that awaits confirms awaits a `ConfirmFuture`, which has of a future what it needs.  All
whose confirms came at once are woken by one callback of the loop, in their order.
"""

cimport cython
from cpython.contextvars cimport PyContext_Enter, PyContext_Exit

from rbfly.protocol._frames cimport PendingConfirms
from rbfly.protocol._publish cimport PublishWindow

from asyncio import CancelledError, _get_running_loop

cdef extern from 'Python.h':
    unsigned long PyThread_get_thread_ident()


@cython.final
cdef class ConfirmFuture(PendingConfirms):
    """What one task awaits: the confirm of its message, or of a group.

    To asyncio this is a future that nobody else can see.

    :param loop: the event loop of the task.
    """

    def __init__(self, loop):
        self._loop = loop

    def __await__(self):
        return self

    def __next__(self):
        if not self.settled:
            self._asyncio_future_blocking = True
            return self
        if self.error is not None:
            self.result()
        raise StopIteration

    # -- what a task calls

    @cython.binding(False)
    def add_done_callback(self, callback, *, context):
        self.callback = callback
        self.context = context
        if self.settled:    # since it was awaited
            self._call_soon()

    @cython.binding(False)
    def result(self):
        # Asked once.  The error is not kept: its traceback leads to the frame that holds this.
        cdef object error = self.error
        cdef object traceback = self.traceback
        self.error = self.traceback = None
        if error is not None:
            raise error.with_traceback(traceback)

    def cancel(self, msg=None):
        if self.settled:
            return False
        self._finish(CancelledError() if msg is None else CancelledError(msg))
        return True

    # -- what settles it

    def done(self):
        return self.settled

    def set_result(self, result):
        self._finish(None)

    def set_exception(self, error):
        self._finish(error)

    cdef int _finish(self, object error) except -1:
        self.settled = True
        if error is not None:
            self.error = error
            self.traceback = error.__traceback__
        if self.callback is not None:
            self._call_soon()
        return 0

    cdef int _call_soon(self) except -1:
        self._loop.call_soon(self.callback, self, context=self.context)
        self.callback = self.context = None
        return 0

    cdef int _wake(self, object confirmed) except -1:
        # In a callback of the loop, as that does it.  The task asks what it is called with for the
        # result; a plain future that has one answers faster.
        cdef object callback = self.callback
        cdef object context = self.context
        if callback is None:
            return 0
        self.callback = self.context = None
        PyContext_Enter(context)
        try:
            callback(confirmed)
        finally:
            PyContext_Exit(context)
        return 0


@cython.final
cdef class ConfirmGroup(PendingConfirms):
    """Messages that are waited for together: their outcome, and who waits for it.

    :param loop: the event loop of those who wait.
    :ivar settled: all of them are confirmed, refused or given up.
    :ivar error: what went wrong; None if they were confirmed.
    """

    def __init__(self, loop):
        self.loop = loop
        self.waits = []

    def wait(self):
        """What a task awaits until all are settled; `error` is None if they were confirmed."""
        cdef ConfirmFuture wait = ConfirmFuture.__new__(ConfirmFuture)
        wait._loop = self.loop
        wait.settled = self.settled
        while self.waits and (<ConfirmFuture> self.waits[len(self.waits) - 1]).settled:
            self.waits.pop()        # given up
        self.waits.append(wait)
        return wait

    def done(self):
        return self.settled

    def set_result(self, result):
        self.settled = True
        for wait in self.waits:
            if not (<ConfirmFuture> wait).settled:
                (<ConfirmFuture> wait)._finish(None)

    def set_exception(self, error):
        self.error = error
        self.set_result(None)


cdef class SemaphoreState:
    """Of room that tasks wait for: what is looked at for every message.

    :ivar reserved: room that was given to tasks and that they have not used yet.
    :ivar waiting: who waits, in order.
    """


@cython.final
cdef class PublisherCore:
    """What a publisher does for each message and for each confirm: its window, and who waits.

    :param driver: has `check`, which raises unless messages are taken; `settle`, which tells a
        waiter other than a confirm; and `after_settled`.
    :param loop: the event loop that it belongs to.
    :param window: messages that are not settled.
    :param semaphore: class of who waits for room in it, given `has_room`.
    :ivar connection: where frames are written; None while there is none.
    :ivar closed: no message is taken any more.
    :ivar error: why none is taken now.
    """

    def __init__(self, driver, loop, PublishWindow window not None, semaphore):
        self.driver = driver
        self.loop = loop
        self.window = window
        self.room = semaphore(self.has_room)
        self.confirmed = loop.create_future()
        self.confirmed.set_result(None)
        self.woken = []
        self.thread = PyThread_get_thread_ident()
        window.on_settled = self.on_settled

    def has_room(self, Py_ssize_t count):
        """True if so many messages fit into the window, and the connection takes more."""
        cdef Py_ssize_t used = self.window.in_flight + self.window.queued + self.room.reserved
        return used + count <= self.window.max_unconfirmed and not self.is_paused()

    def is_paused(self):
        """True if the connection takes no more for now."""
        # without a connection the window is all that there is to fill
        return self.connection is not None and self.connection.paused

    cdef ConfirmFuture _begin(self, object message):
        # What to await; None if there is no room.
        cdef PublishWindow window = self.window
        cdef SemaphoreState room = self.room
        if self.closed or self.error is not None:
            self.driver.check()
        # Once in a turn of the loop is enough: in its thread there is no other until it ends.
        if not self.scheduled or PyThread_get_thread_ident() != self.thread:
            self._check_loop()
        if (
            window.in_flight + window.queued >= window.max_unconfirmed
            or room.reserved
            or room.waiting
            or self.connection is not None and self.connection.paused
        ):
            return None
        return self._put(message)

    cdef int _check_loop(self) except -1:
        if _get_running_loop() is not self.loop:
            self.driver.check()
        self.thread = PyThread_get_thread_ident()
        return 0

    cdef ConfirmFuture _put(self, object message):
        cdef ConfirmFuture wait = ConfirmFuture.__new__(ConfirmFuture)
        wait._loop = self.loop
        wait.sealed = True
        self.window._append(message, wait)
        if not self.scheduled:
            self._schedule()
        return wait

    def schedule(self):
        """Write soon.  Idle: at once; else what is sent in this turn leaves together."""
        self._schedule()

    cdef int _schedule(self) except -1:
        cdef PublishWindow window = self.window
        if window.in_flight == 0 or window.queued >= window.frame_entries:
            self._write()
        elif not self.scheduled:
            self.scheduled = True
            self.loop.call_soon(self.write)
        return 0

    @cython.binding(False)
    def write(self):
        """Write what the window lets out."""
        self._write()

    cdef int _write(self) except -1:
        cdef PublishWindow window = self.window
        cdef object connection = self.connection
        cdef object data
        self.scheduled = False
        while connection is not None and not connection.paused:
            data = window.take()
            if data is None:
                break
            connection.write(data)
        if self.room.waiting:
            self.room.grant()
        return 0

    @cython.binding(False)
    def on_settled(self, list done not None):
        """Wake those who wait for nothing more."""
        cdef list woken = self.woken
        cdef bint begun = bool(woken)
        cdef Py_ssize_t n = 0
        try:
            for waiter in done:
                n += 1
                if (<PendingConfirms> waiter).errors is not None:
                    self.driver.settle(waiter)
                elif type(waiter) is ConfirmFuture:
                    self._confirm(<ConfirmFuture> waiter)
                elif type(waiter) is ConfirmGroup:
                    (<ConfirmGroup> waiter).settled = True
                    for wait in (<ConfirmGroup> waiter).waits:
                        self._confirm(<ConfirmFuture> wait)
                else:
                    self.driver.settle(waiter)
        finally:
            if n < len(done):       # e.g. KeyboardInterrupt
                self.loop.call_soon(self.on_settled, done[n:])
            if woken and not begun:
                self.loop.call_soon(self._wake)
        if not self.scheduled:
            if len(woken) > 1:
                # They run next, in this turn: what they send leaves together.
                self.scheduled = True
            elif len(done) > 1:
                self.scheduled = True
                self.loop.call_soon(self.write)
            elif self.window.queued:
                self._write()
        self.driver.after_settled()

    cdef int _confirm(self, ConfirmFuture wait) except -1:
        if not wait.settled:
            wait.settled = True
            self.woken.append(wait)
        return 0

    @cython.binding(False)
    def _wake(self):
        cdef list woken = self.woken
        cdef Py_ssize_t n = 0
        self.woken = []
        if len(woken) > 1:
            self.scheduled = True
        try:
            for wait in woken:
                n += 1
                (<ConfirmFuture> wait)._wake(self.confirmed)
        finally:
            if n < len(woken):
                self.woken = woken[n:] + self.woken
                self.loop.call_soon(self._wake)
            if len(woken) > 1:
                self._write()


cdef class PublisherBase:
    """A publisher's methods that run for each message."""

    @cython.binding(False)
    def _begin(self, message):
        """Put a message into the window if there is room; gives what to await, or None."""
        return self._core._begin(message)

    @cython.binding(False)
    def _put(self, message):
        """Put a message into the window, in room that was waited for; gives what to await."""
        return self._core._put(message)


@cython.final
cdef class Batches:
    """What a batch publisher has queued, and what it has sent without having told the outcome.

    :param semaphore: class of who waits for room in the batch, given `fits`; None if nobody does.
    :ivar filling: the batch that messages come into (ConfirmGroup).
    :ivar sent: those that no flush has told of yet (list).
    :ivar room: who waits for room.
    """

    def __init__(self, PublisherCore core not None, semaphore=None):
        self.core = core
        self.room = None if semaphore is None else semaphore(self.fits)
        self.filling = ConfirmGroup(core.loop)
        self.sent = []

    def fits(self, Py_ssize_t max_len):
        """True if fewer messages are queued, or about to be."""
        return self.filling.remaining + self.room.reserved < max_len

    cdef int _next(self) except -1:
        """Begin another batch; the next flush tells what became of this one."""
        self.sent.append(self.filling)
        self.filling = ConfirmGroup(self.core.loop)
        return 0

    @cython.binding(False)
    def release(self):
        """Send what is queued."""
        cdef PublisherCore core = self.core
        cdef ConfirmGroup batch = self.filling
        if batch.count:
            self._next()
            core.window.release()
            if batch.seal():            # none fits a frame of a new connection
                core.driver.settle(batch)
        core._write()
        if self.room is not None:
            self.room.grant()


cdef class BatchBase(PublisherBase):
    """The same of publishers that send later."""

    @cython.binding(False)
    def batch(self, message):
        """batch($self, message)\n--\n
        Encode a message and queue it; nothing leaves before `flush` or `close`.

        Never blocks.  Explicit publish ids may come in any order; `flush` sorts them.

        :param message: body, or context with a body; bytes if the publisher is not `amqp`.
        :raises AMQPEncoderError: the message has no AMQP 1.0 form; the batch is untouched.
        :raises ValueError: its explicit publish id is in the batch, or not above the last sent.
        :raises PublisherError: the publisher is closed.
        :raises MessageTooLarge: the message fits no frame.
        """
        cdef PublisherCore core = self._core
        cdef Batches batches = self._batches
        if core.closed or core.error is not None:
            core.driver.check()
        if batches.filling.settled:     # given up: what is batched from now on is not lost
            batches._next()
        core.window._append(message, batches.filling)
