"""The context (:mod:`contextvars`) in which RbFly calls `on_revoke`."""

import asyncio
import gc
import sys
import weakref
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

import rbfly.streams as rbs
from rbfly.testing import StreamBroker


class Resource:
    """An object of the program."""


async def close_with_hook(
    client: rbs.StreamsClient, on_revoke: Callable[[str], Awaitable[object]]
) -> None:
    group = rbs.Group('archive', on_revoke=on_revoke)
    async with client.subscribe('orders', group=group) as messages:
        await messages.fetch()


async def test_connection_that_is_opened_in_the_hook_keeps_nothing_of_it() -> None:
    async def work(client: rbs.StreamsClient, resource: Resource) -> None:
        async def flush(stream: str) -> None:
            async with client.publisher('archive') as publisher:
                await publisher.send(str(resource))

        await close_with_hook(client, flush)

    async with StreamBroker() as broker, rbs.streams_client(broker.uri) as client:
        broker.create_stream('orders')
        broker.create_stream('archive')
        broker.publish('orders', 1)
        resource = Resource()
        reference = weakref.ref(resource)
        await work(client, resource)
        del resource
        gc.collect()
        assert len(broker.messages('archive')) == 1
        assert reference() is None


async def test_hook_that_a_hook_of_another_member_calls() -> None:
    """Each of them may close its own subscription, and waits for the hook of the other."""
    order: list[str] = []
    async with StreamBroker() as broker, rbs.streams_client(broker.uri) as client:
        for stream in ('orders', 'events'):
            broker.create_stream(stream)
            broker.publish(stream, 1)

        async def close_orders(stream: str) -> None:
            await events.close()
            await orders.close()
            order.append(stream)

        async def close_events(stream: str) -> None:
            await events.close()
            order.append(stream)

        orders: Any = client.subscribe('orders', group=rbs.Group('a', on_revoke=close_orders))
        events: Any = client.subscribe('events', group=rbs.Group('b', on_revoke=close_events))
        async with asyncio.timeout(20):
            await orders.fetch()
            await events.fetch()
            await orders.close()
    assert order == ['events', 'orders']


def test_loop_that_is_closed_while_a_hook_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    errors: list[Any] = []

    def note(unraisable: Any) -> None:
        if not isinstance(unraisable.exc_value, ResourceWarning):  # of sockets that stay open
            errors.append(unraisable)

    monkeypatch.setattr(sys, 'unraisablehook', note)
    loop = asyncio.new_event_loop()
    loop.set_exception_handler(lambda *_: None)  # tasks that are destroyed
    with StreamBroker() as broker:
        broker.create_stream('orders')
        broker.publish('orders', 1)

        async def run() -> None:
            called = asyncio.Event()

            async def hang(stream: str) -> None:
                called.set()
                await asyncio.Event().wait()

            client = rbs.streams_client(broker.uri)
            running.add(asyncio.create_task(close_with_hook(client, hang)))
            await called.wait()

        running: set[asyncio.Task[None]] = set()
        loop.run_until_complete(run())
        loop.close()
        running.clear()
        gc.collect()
    assert not errors, errors[0].exc_value
