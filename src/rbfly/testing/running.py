"""A broker that runs: in the loop at hand, or in a thread of its own."""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
from collections.abc import Callable
from typing import ParamSpec, Self, TypeVar

from ..error import EventLoopError
from .cluster import Cluster

T = TypeVar('T')
P = ParamSpec('P')


class Running:
    """Start and end of a cluster, and how it is reached from other threads."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._thread: threading.Thread | None = None
        self._end: asyncio.Event | None = None
        self._scheduling = threading.Lock()  # what is scheduled before the end is done

    async def __aenter__(self) -> Self:
        await self._open()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._close()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self.stop()

    def start(self) -> None:
        """Run in a thread with an event loop of its own; returns when clients can connect.

        :raises EventLoopError: it runs already.
        :raises OSError: the port is in use.
        """
        if self.running:
            raise EventLoopError('the broker runs already')
        ready: concurrent.futures.Future[None] = concurrent.futures.Future()
        self._thread = threading.Thread(
            target=self._run, args=(ready,), name='rbfly.testing', daemon=True
        )
        self._thread.start()
        try:
            ready.result()
        except BaseException:
            self._thread.join()
            self._thread = None
            raise

    def stop(self) -> None:
        """End what :meth:`start` has started; no effect if it does not run."""
        thread, self._thread = self._thread, None
        if thread is not None:
            if self._end is not None:
                self._call(self._end.set)
            thread.join()

    def _run(self, ready: concurrent.futures.Future[None]) -> None:
        async def main() -> None:
            try:
                await self._open()
            except BaseException as ex:
                ready.set_exception(ex)
                return
            self._end = asyncio.Event()
            ready.set_result(None)
            try:
                await self._end.wait()
            finally:
                await self._close()

        # Whatever loop the program has chosen, this one is always there.
        with asyncio.Runner(loop_factory=asyncio.SelectorEventLoop) as runner:
            runner.run(main())

    async def _open(self) -> None:
        if self.running:
            raise EventLoopError('the broker runs already')
        loop = self._cluster.loop = asyncio.get_running_loop()
        try:
            for node in self._cluster.nodes:
                await node.open(loop)
        except BaseException:
            await self._close()
            raise

    async def _close(self) -> None:
        for node in self._cluster.nodes:
            await node.end()
        self._cluster.flush()
        with self._scheduling:
            self._cluster.loop = None
        await asyncio.sleep(0)  # what other threads have asked for is answered

    @property
    def running(self) -> bool:
        """Whether clients can connect."""
        return self._cluster.loop is not None

    def _call(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call it in the broker's loop, from wherever this is; at once where there is none."""
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
            loop = self._cluster.loop
            if loop is not None and loop is not current:
                loop.call_soon_threadsafe(call)
        if loop is None or loop is current:
            call()
        return found.result()
