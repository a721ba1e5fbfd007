"""Run the broker: in the current event loop, or in its own thread."""

from __future__ import annotations

import asyncio
import concurrent.futures
import os
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import ParamSpec, Self, TypeVar

from ..error import EventLoopError
from .cluster import Cluster

T = TypeVar('T')
P = ParamSpec('P')


class Running:
    """Starts, stops and calls a cluster from any thread."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._thread: threading.Thread | None = None  # started by start()
        self._end = asyncio.Event()  # ends the thread
        self._pid = 0
        # Whatever is scheduled while it is held runs before the broker has stopped.
        self._scheduling = threading.Lock()

    async def __aenter__(self) -> Self:
        self._claim(asyncio.get_running_loop())
        await self._listen()
        return self

    async def __aexit__(self, *exc: object) -> None:
        if self._thread is not None:
            await asyncio.to_thread(self.stop)
        elif self.running:
            if self._cluster.loop is not asyncio.get_running_loop():
                raise EventLoopError('the broker runs in another event loop: stop it there')
            await self._close()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self.stop()

    def start(self) -> None:
        """Run the broker in its own thread and event loop; return when clients can connect.

        :raises EventLoopError: the broker is already running.
        :raises OSError: the port is in use.
        """
        # Independent of the event loop policy of the program.
        loop = asyncio.SelectorEventLoop()
        ready: concurrent.futures.Future[None] = concurrent.futures.Future()
        thread = threading.Thread(
            target=self._run, args=(loop, ready), name='rbfly.testing', daemon=True
        )
        try:
            self._claim(loop, thread)
        except EventLoopError:
            loop.close()
            raise
        try:
            thread.start()
            ready.result()
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """Stop the thread of :meth:`start`, and wait for its end.

        Does nothing if no thread runs, or in a forked child. Does not wait if `on_event` calls it.
        """
        thread = self._thread
        if thread is None or self._pid != os.getpid():
            return
        with self._scheduling:
            if self._cluster.loop is not None:
                with suppress(RuntimeError):  # the loop has ended
                    self._cluster.loop.call_soon_threadsafe(self._end.set)
        if thread is not threading.current_thread():
            if thread.ident is not None:  # the thread has started
                thread.join()
            with self._scheduling:
                if self._thread is thread:
                    self._thread = None

    def _run(self, loop: asyncio.AbstractEventLoop, ready: concurrent.futures.Future[None]) -> None:
        async def main() -> None:
            try:
                await self._listen()
            except BaseException as ex:
                ready.set_exception(ex)
                return
            ready.set_result(None)
            try:
                await self._end.wait()
            finally:
                await self._close()

        with asyncio.Runner(loop_factory=lambda: loop) as runner:
            runner.run(main())

    def _claim(
        self, loop: asyncio.AbstractEventLoop, thread: threading.Thread | None = None
    ) -> None:
        """Reserve the broker for an event loop.

        :raises EventLoopError: the broker runs in another event loop.
        """
        self._check_process()
        with self._scheduling:
            if self._loop() is not None:
                raise EventLoopError('the broker is already running')
            self._cluster.loop, self._thread, self._pid = loop, thread, os.getpid()
            self._end = asyncio.Event()

    async def _listen(self) -> None:
        try:
            for node in self._cluster.nodes:
                await node.open(asyncio.get_running_loop())
        except BaseException:
            await self._close()
            raise

    async def _close(self) -> None:
        for node in self._cluster.nodes:
            await node.end()
        self._cluster.flush()
        with self._scheduling:
            self._cluster.loop = None
        await asyncio.sleep(0)  # run the calls that other threads have scheduled

    @property
    def running(self) -> bool:
        """Whether clients can connect."""
        loop = self._cluster.loop
        return loop is not None and not loop.is_closed()

    def _check_process(self) -> None:
        if self.running and self._pid != os.getpid():
            raise EventLoopError(
                'the broker runs in the parent process: use it there, or start another one here'
            )

    def _loop(self) -> asyncio.AbstractEventLoop | None:
        """Return the broker's event loop; clean up if it was closed before the broker stopped."""
        cluster = self._cluster
        if cluster.loop is not None and cluster.loop.is_closed():
            cluster.loop = None
            for node in cluster.nodes:
                node.abandon()
            cluster.flush()
        return cluster.loop

    def _call(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call a function in the broker's loop from any thread; directly if the loop does not run.

        :raises EventLoopError: the loop belongs to another process.
        """
        self._check_process()
        try:
            current = asyncio.get_running_loop()
        except RuntimeError:
            current = None
        found: concurrent.futures.Future[T] = concurrent.futures.Future()

        def call() -> None:
            try:
                found.set_result(function(*args, **kwargs))
            except BaseException as ex:
                found.set_exception(ex)

        with self._scheduling:
            loop = self._loop()
            # A thread that is starting will run its loop; another loop that is not running may not.
            if loop is current or not (self._thread or (loop and loop.is_running())):
                loop = None
            if loop is not None:
                loop.call_soon_threadsafe(call)
        if loop is None:
            call()
        return found.result()
