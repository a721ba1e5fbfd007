"""The awaitables of publishing: a task awaits them until its messages are confirmed.

Implements the part of asyncio's future protocol that tasks use: `_asyncio_future_blocking`, `_loop`
and a callback with its context.
"""

cimport cython
from cpython.contextvars cimport PyContext_Enter, PyContext_Exit

from libc.stdint cimport uint64_t

from rbfly.protocol._pending cimport ConfirmWaiter, Unconfirmed

from asyncio import CancelledError


@cython.final
cdef class ConfirmFuture(ConfirmWaiter):
    """The confirm of a message or a group, awaited by one task.

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
        if self.settled:    # after the task began to await it
            self._call_soon()

    @cython.binding(False)
    def result(self):
        # The task calls this once.  Drop the error: its traceback refers to a frame that refers to
        # this.
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

    # -- what the publisher calls

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
        # Call the callback as the loop does.  The task reads its result from the argument, and
        # `confirmed`, a plain future, is the fastest to read.
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
cdef class ConfirmGroup(ConfirmWaiter):
    """Messages whose confirms are awaited together.

    :ivar settled: all messages are confirmed or refused, or the publisher gave up on them.
    :ivar error: why they are not all confirmed; None if they are.
    :ivar unconfirmed: indexes of the messages that are not confirmed, as three lists of int:
        refused, never sent, and those that may be stored; None for none.
    """

    def __cinit__(self):
        self.waits = []

    def wait(self, loop):
        """Return what a task awaits until all messages are settled; it does not raise `error`.

        :param loop: event loop of the task.
        """
        cdef ConfirmFuture wait = ConfirmFuture.__new__(ConfirmFuture)
        wait._loop = loop
        wait.settled = self.settled
        while self.waits and (<ConfirmFuture> self.waits[len(self.waits) - 1]).settled:
            self.waits.pop()        # its task was cancelled or timed out
        self.waits.append(wait)
        return wait

    cdef int _add_unconfirmed(self, uint64_t index, Py_ssize_t count, Unconfirmed why) except -1:
        if self.unconfirmed is None:
            self.unconfirmed = ([], [], [])
        (<list> self.unconfirmed[why]).extend(range(index, index + count))
        return 0

    def skip(self):
        """Count a message that was taken but cannot be sent."""
        self._skip()

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
