"""Asks the broker for the partitions of keys."""

from __future__ import annotations

import asyncio
import functools
import weakref
from collections.abc import Coroutine
from typing import TypeVar

from ...error import ConfirmTimeout, NoRouteError, PublisherError, RbFlyError, WindowTimeout
from ...net.cluster import Cluster
from ...net.waiting import outcome
from ...time_limits import time_limit_at
from .._admin.partitions import query_route, retried
from ._routing import PublishTarget, Router
from .partitions import PublishPartitions

# Seconds for which a publisher remembers that a key has no partition, and how many keys at most:
# a program may send any number of messages with such a key, and use any number of them.
NO_ROUTE = 1.0
NO_ROUTE_KEYS = 1000

T = TypeVar('T')


class KeyRoutes:
    """The partitions of keys, as the broker has reported them; the router has their cache."""

    def __init__(
        self, cluster: Cluster, stream: str, router: Router, partitions: PublishPartitions
    ) -> None:
        self._cluster = cluster
        self._stream = stream
        self._router = router
        self._partitions = partitions
        self._asking: dict[str, asyncio.Task[tuple[str, ...]]] = {}
        # By key without a partition: the broker's answer, and the time until which it is valid.
        self._no_route: dict[str, tuple[tuple[str, ...], float]] = {}

    async def ask(self, key: str) -> PublishTarget | tuple[PublishTarget, ...]:
        """Return the partitions of a key; ask the broker, and cache the answer.

        If the key has no partition, do not ask again for `NO_ROUTE` seconds.
        """
        self._partitions.check_open()
        names, until = self._no_route.get(key, ((), 0.0))
        if asyncio.get_running_loop().time() >= until:
            names = await self._query(key)
        return self._router.targets(names, key)

    async def _query(self, key: str) -> tuple[str, ...]:
        """Ask the broker for the partitions of a key; calls that overlap share one request.

        The request goes on, and its answer is cached, if the time of the call is up.
        """
        task = self._asking.get(key)
        if task is None:
            cluster, stream = self._cluster, self._stream  # the task must not keep the publisher
            query = functools.partial(query_route, cluster, stream, key)
            task = asyncio.ensure_future(retried(cluster, stream, query))
            self._asking[key] = task
            task.add_done_callback(functools.partial(on_answer, weakref.ref(self), key))
        try:
            names = await outcome(task)
        except RbFlyError as ex:  # a copy
            ex.outcome = 'not_sent'
            raise
        if names is None:  # `close` has cancelled it
            self._partitions.check_open()
            raise PublisherError(f'the query for the partitions of key {key!r} was cancelled')
        return names

    def on_answer(self, key: str, names: tuple[str, ...] | None) -> None:
        """Cache the broker's answer; None for none."""
        del self._asking[key]
        if names is None:
            return
        kept = self._no_route
        kept.pop(key, None)
        try:
            self._router.cache[key] = self._router.targets(names, key)
        except NoRouteError:
            kept[key] = names, asyncio.get_running_loop().time() + NO_ROUTE
            if len(kept) > NO_ROUTE_KEYS:
                del kept[next(iter(kept))]

    async def in_time(
        self,
        call: Coroutine[object, object, T],
        until: float | None,
        timeout: float | None,
        what: str,
        end: str = 'the message was not sent',
        kind: type[ConfirmTimeout] = WindowTimeout,
    ) -> T:
        """Return the result of a call that asks the broker for partitions, if it ends in time.

        :param what: what the partitions are asked for.
        :param end: what becomes of the messages if the time is up.
        :param kind: the error if the time is up.
        """
        limit = time_limit_at(until)
        try:
            async with limit:
                return await call
        except TimeoutError:
            if not limit.expired():
                raise
        finally:
            del limit  # it refers to the task
        # not in the handler: the TimeoutError refers to the task
        text = f'the broker did not report the partitions of {what} within {timeout} s; {end}'
        raise self._partitions.or_refusal(kind(text))

    def close(self) -> None:
        """End the calls that wait for an answer."""
        for task in self._asking.values():
            task.cancel()


def on_answer(
    routes: weakref.ref[KeyRoutes], key: str, task: asyncio.Task[tuple[str, ...]]
) -> None:
    failed = task.cancelled() or task.exception()  # retrieved, so that asyncio does not log it
    if (found := routes()) is not None:
        found.on_answer(key, None if failed else task.result())
