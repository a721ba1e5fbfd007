"""The thread in which the event loop of a client runs, and calls from other threads."""

from __future__ import annotations

import asyncio
import atexit
import contextvars
import os
import threading
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from typing import Any, Generic, ParamSpec, TypeVar, cast
from weakref import WeakSet

from ..error import EventLoopError, RbFlyError, StreamConnectionError

P = ParamSpec('P')
T = TypeVar('T')

WAKE = 0.5  # seconds; Python does not handle a signal that arrives just before a wait until it ends
EXIT = 10.0  # seconds for each client that the program has not closed when it exits


class ClientThread:
    """Runs the calls of one client in a thread of its own, which starts with the first call.

    :param close: closes the asynchronous client.
    :param loop_factory: creates the event loop.
    """

    def __init__(
        self,
        close: Callable[[], Awaitable[None]],
        loop_factory: Callable[[], asyncio.AbstractEventLoop],
    ) -> None:
        self._close = close
        self._loop_factory = loop_factory
        # Reentrant: a signal handler may call while its thread holds them.
        self._lock = threading.RLock()
        self._closing = threading.RLock()
        self._running: RunningLoop | None = None

    def call(self, function: Callable[P, Awaitable[T]], *args: P.args, **options: P.kwargs) -> T:
        """Call an async function in the thread, and wait for its result.

        An interrupt, such as KeyboardInterrupt, cancels the call, and is raised when it has ended.

        :raises EventLoopError: the thread cannot run the call, see `start`.
        :raises StreamConnectionError: the client was closed meanwhile.
        """

        async def run() -> T:
            return await function(*args, **options)

        return self._wait(run)

    def ask(self, function: Callable[P, T], *args: P.args, **options: P.kwargs) -> T:
        """Call a function that is not async in the thread, and return its result."""

        async def run() -> T:
            return function(*args, **options)

        return self._wait(run)

    def start(
        self, function: Callable[P, Awaitable[T]], *args: P.args, **options: P.kwargs
    ) -> Call[T]:
        """Call an async function in the thread without waiting.

        :raises EventLoopError: the thread belongs to the process that has forked this one, or it
            makes this call itself, and would wait for itself.
        """

        async def run() -> T:
            return await function(*args, **options)

        call = Call(run)
        self._start(call)
        return call

    def _wait(self, run: Callable[[], Coroutine[Any, Any, T]]) -> T:
        call = Call(run)
        try:  # an interrupt may come at any moment after the start
            self._start(call)
            return call.wait()
        except BaseException:
            call.cancel()
            raise
        finally:
            del call, run, self  # the traceback of an error refers to this frame

    def check(self) -> None:
        """Check that this process and thread can call: a forked child must not wait for a lock."""
        running = self._running  # which `close` in another thread removes
        if running is not None:
            running.check()

    def _start(self, call: Call[Any]) -> None:
        self.check()
        with self._lock:
            if self._running is None:
                self._running = RunningLoop(self._loop_factory, self._close)
                LIVE.add(self)
            self._running.start(call)

    def close(self, timeout: float | None = None) -> None:
        """Close the client and end the thread, if it runs.

        :param timeout: seconds after which the client is left as it is; None for no limit.
        """
        self.check()
        with self._closing:  # another thread that closes waits until this one has closed
            running = self._running
            if running is None or running.stopping:  # a signal handler of the closing thread calls
                return

            async def run() -> None:
                await asyncio.wait_for(self._close(), timeout)

            def close() -> None:
                call = Call(run)
                running.start(call)
                call.wait()

            is_closed = False
            try:
                close()
                is_closed = True
            finally:
                with self._lock:  # a call of another thread waits, and starts the thread again
                    try:
                        if is_closed and not running.stopping:
                            close()  # another thread may have used the client in the meantime
                    finally:
                        try:
                            running.stop()
                        finally:
                            if self._running is running:  # a signal handler may have replaced it
                                self._running = None

    def drop(self) -> None:
        """Do the same without waiting: the program has dropped its last reference."""
        running, self._running = self._running, None
        if running is not None and running.pid == os.getpid():
            running.stop_after()

    def at_exit(self) -> None:
        """Close the client when the program exits."""
        running = self._running
        if running is not None and running.pid == os.getpid():
            with suppress(RbFlyError, OSError, TimeoutError):
                self.close(EXIT)


class RunningLoop:
    """An event loop in a thread.

    :param close: closes the asynchronous client.
    :ivar pid: process of the thread.
    :ivar stopping: no call can begin any more.
    """

    def __init__(
        self,
        loop_factory: Callable[[], asyncio.AbstractEventLoop],
        close: Callable[[], Awaitable[None]],
    ) -> None:
        self.pid: int = os.getpid()
        self._close = close
        self._calls: set[Call[Any]] = set()
        self._loop = loop_factory()
        self.stopping: bool = False
        self._stopped = False
        self._is_used = False
        self._thread = threading.Thread(target=self._run, name='rbfly.sync', daemon=True)
        try:
            self._thread.start()
        except (RuntimeError, MemoryError):  # the system has no more threads
            self._loop.close()
            raise
        except BaseException:  # an interrupt: the thread may still be about to start
            self._loop.call_soon_threadsafe(self._stop)
            with suppress(RuntimeError):  # it has not started: it ends at once, or never starts
                self._thread.join()
            raise

    def start(self, call: Call[Any]) -> None:
        """Start a call; the caller makes sure that the loop is not stopped meanwhile."""
        self.check()
        self._is_used = True
        if self.stopping:  # a signal handler calls while its thread closes the client
            call.fail()
        else:
            call.start(self._loop, self._calls)

    def check(self) -> None:
        """Check that this process and thread can call the loop."""
        if self.pid != os.getpid():
            raise EventLoopError(
                'the client belongs to the process that has forked this one: create a client in'
                ' each process, after the fork'
            )
        if self._thread.ident == threading.get_ident():
            raise EventLoopError(
                'a function that the client calls cannot use the client, which would wait for'
                ' itself'
            )

    def stop(self) -> None:
        """End the thread, and wait for that."""
        self.stopping = True
        with suppress(RuntimeError):  # a signal handler has ended it
            self._loop.call_soon_threadsafe(self._stop)
        self._thread.join()

    def stop_after(self) -> None:
        """End the thread after closing the client; do not wait."""

        async def end() -> None:
            try:
                await self._close()
            finally:
                self._stop()

        Call(end).start(self._loop, self._calls)

    async def _end(self) -> None:
        """Close at once what an interrupted call has left open, and cancel all tasks."""
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        tasks.add(asyncio.ensure_future(self._close()))
        await asyncio.sleep(0)  # the task starts
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _stop(self) -> None:
        self._stopped = True
        self._loop.stop()

    def _run(self) -> None:
        loop = self._loop
        asyncio.set_event_loop(loop)
        try:
            while not self._stopped:
                with suppress(KeyboardInterrupt, SystemExit):  # a call has raised it to its caller
                    loop.run_forever()
            if self._is_used:  # else another thread may use the client by now
                loop.run_until_complete(self._end())
            loop.run_until_complete(loop.shutdown_asyncgens())
        finally:
            asyncio.set_event_loop(None)
            loop.close()
            for call in list(self._calls):
                call.fail()


class Call(Generic[T]):
    """One call in the thread.

    The waiting thread shares no lock with the event loop but `_ended`, which only ever goes from
    locked to unlocked there: an interrupt may leave any other lock of Python's own classes locked.
    """

    def __init__(self, run: Callable[[], Coroutine[Any, Any, T]]) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._calls: set[Call[Any]] = set()
        self._run: Callable[[], Coroutine[Any, Any, T]] | None = run
        self._context = contextvars.copy_context()  # of tracing, for example
        self._task: asyncio.Task[T] | None = None
        self._result: T | None = None
        self._error: BaseException | None = None
        self._is_done = False
        self._ended = threading.Lock()
        self._ended.acquire()
        self._then: Callable[[], object] | None = None

    def start(self, loop: asyncio.AbstractEventLoop, calls: set[Call[Any]]) -> None:
        """Run the call in the thread of an event loop.

        :param calls: all calls of the loop that have not ended.
        """
        self._loop, self._calls = loop, calls
        calls.add(self)
        loop.call_soon_threadsafe(self._begin)

    def then(self, function: Callable[[], object]) -> None:
        """Call a function when the call has ended, in either thread; perhaps twice."""
        self._then = function
        if self._is_done:
            function()

    def wait(self) -> T:
        """Wait for the result; an interrupt cancels the call."""
        try:
            self._join()
        except BaseException:
            self.cancel()
            raise
        try:
            if self._error is not None:
                raise self._error
            return cast('T', self._result)
        finally:
            del self  # the traceback of an error refers to this frame

    def cancel(self) -> None:
        """Cancel the call if it runs, and wait until it has ended."""
        if self._loop is None or self._is_done:
            return
        with suppress(RuntimeError):  # the loop is closed: the call has ended
            self._loop.call_soon_threadsafe(self._cancel)
        self._join()

    def _join(self) -> None:
        while not self._is_done:
            self._ended.acquire(timeout=WAKE)

    # -- in the thread

    def _begin(self) -> None:
        run, self._run = self._run, None
        if run is None:
            return  # cancelled before
        assert self._loop is not None
        self._task = self._loop.create_task(run(), context=self._context)
        self._task.add_done_callback(self._on_done)

    def _cancel(self) -> None:
        if self._task is not None:
            self._task.cancel()
        elif self._run is not None:  # interrupted before it began
            self._run = None
            self._calls.discard(self)
            self.fail()

    def _on_done(self, task: asyncio.Task[T]) -> None:
        self._task = None
        self._calls.discard(self)
        if task.cancelled() and not task.cancelling():
            self._end(None, RuntimeError('something that the function awaited was cancelled'))
        elif task.cancelled():
            self.fail()
        elif (error := task.exception()) is not None:
            self._end(None, error)
        else:
            self._end(task.result(), None)

    def fail(self) -> None:
        """End a call that was cancelled, or never begins."""
        self._end(None, StreamConnectionError('the client was closed'))

    def _end(self, result: T | None, error: BaseException | None) -> None:
        if self._is_done:
            return
        self._result, self._error, self._is_done = result, error, True
        self._ended.release()
        if self._then is not None:
            self._then()


LIVE: WeakSet[ClientThread] = WeakSet()  # those whose threads have started


@atexit.register
def close_all() -> None:
    """Close the clients that the program has not closed."""
    for item in list(LIVE):
        item.at_exit()
