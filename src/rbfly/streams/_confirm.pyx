"""What a task awaits until the broker has confirmed its messages.

It has of asyncio's future protocol what a task needs: `_asyncio_future_blocking`, `_loop`, and a
callback in a context.
"""

cimport cython
from cpython.contextvars cimport PyContext_Enter, PyContext_Exit

from libc.stdint cimport uint64_t

from rbfly.protocol._pending cimport Miss, PendingConfirms

from asyncio import CancelledError


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
    :ivar missed: numbers of the messages that are not confirmed, three lists of int: messages that
        the broker refused, that were never sent, and that were sent and abandoned; None for none.
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

    cdef int _miss(self, uint64_t index, Py_ssize_t count, Miss why) except -1:
        if self.missed is None:
            self.missed = ([], [], [])
        (<list> self.missed[why]).extend(range(index, index + count))
        return 0

    def skip(self):
        """Count a message that was taken and cannot be sent."""
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
