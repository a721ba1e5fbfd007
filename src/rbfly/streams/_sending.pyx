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


cdef class PublisherCore:
    """State of a publisher that is looked at for every message."""

    def __cinit__(self, *args, **kwargs):
        self._woken = []
        self._thread = PyThread_get_thread_ident()

    @cython.binding(False)
    def _begin(self, message):
        """Put a message into the window if there is room; gives what to await, or None."""
        cdef PublishWindow window = self._window
        cdef SemaphoreState room = self._room
        if self._closed or self._error is not None:
            self._check()
        # Once in a turn of the loop is enough: in its thread there is no other until it ends.
        if not self._scheduled or PyThread_get_thread_ident() != self._thread:
            self._check_loop()
        if (
            window.in_flight + window.queued >= window.max_unconfirmed
            or room.reserved
            or room.waiting
            or self._connection is not None and self._connection.paused
        ):
            return None
        return self._put(message)

    @cython.final
    cdef int _check_loop(self) except -1:
        if _get_running_loop() is not self._loop:
            self._check()
        self._thread = PyThread_get_thread_ident()
        return 0

    @cython.binding(False)
    def _put_wait(self, message):
        """Put a message into the window; gives what to await."""
        return self._put(message)

    @cython.final
    cdef ConfirmFuture _put(self, object message):
        cdef ConfirmFuture wait = ConfirmFuture.__new__(ConfirmFuture)
        wait._loop = self._loop
        wait.sealed = True
        self._window._append(message, wait)
        if not self._scheduled:
            self._schedule()
        return wait

    @cython.binding(False)
    def _schedule(self):
        # Idle: at once.  Otherwise what is sent in this turn of the loop leaves together.
        cdef PublishWindow window = self._window
        if window.in_flight == 0 or window.queued >= window.frame_entries:
            self._write()
        elif not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._write)

    @cython.binding(False)
    def _write(self):
        cdef PublishWindow window = self._window
        cdef object connection = self._connection
        cdef object data
        self._scheduled = False
        while connection is not None and not connection.paused:
            data = window.take()
            if data is None:
                break
            connection.write(data)
        if self._room.waiting:
            self._room.grant()

    @cython.binding(False)
    def _on_settled(self, list done not None):
        cdef list woken = self._woken
        cdef bint begun = bool(woken)
        cdef Py_ssize_t n = 0
        try:
            for waiter in done:
                n += 1
                if (<PendingConfirms> waiter).errors is not None:
                    self._settle(waiter, None)
                elif type(waiter) is ConfirmFuture:
                    self._confirm(<ConfirmFuture> waiter)
                elif type(waiter) is ConfirmGroup:
                    (<ConfirmGroup> waiter).settled = True
                    for wait in (<ConfirmGroup> waiter).waits:
                        self._confirm(<ConfirmFuture> wait)
                else:
                    self._settle(waiter, None)
        finally:
            if n < len(done):       # e.g. KeyboardInterrupt
                self._loop.call_soon(self._on_settled, done[n:])
            if woken and not begun:
                self._loop.call_soon(self._wake)
        if not self._scheduled:
            if len(woken) > 1:
                # They run next, in this turn: what they send leaves together.
                self._scheduled = True
            elif len(done) > 1:
                self._scheduled = True
                self._loop.call_soon(self._write)
            elif self._window.queued:
                self._write()
        self._after_settled()

    @cython.final
    cdef int _confirm(self, ConfirmFuture wait) except -1:
        if not wait.settled:
            wait.settled = True
            self._woken.append(wait)
        return 0

    @cython.binding(False)
    def _wake(self):
        cdef list woken = self._woken
        cdef Py_ssize_t n = 0
        self._woken = []
        if len(woken) > 1:
            self._scheduled = True
        try:
            for wait in woken:
                n += 1
                (<ConfirmFuture> wait)._wake(self._confirmed)
        finally:
            if n < len(woken):
                self._woken = woken[n:] + self._woken
                self._loop.call_soon(self._wake)
            if len(woken) > 1:
                self._write()


cdef class BatchCore(PublisherCore):
    """What a batch publisher does for each message."""

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
        if self._closed or self._error is not None:
            self._check()
        self._window._append(message, self._waiter)
