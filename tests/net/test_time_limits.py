"""Time limits in a task that is being cancelled."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

import rbfly.streams as rbs
from rbfly.testing import StreamBroker
from rbfly.time_limits import Reliable, time_limit, time_limit_at


def limit_at_now() -> Any:
    return time_limit_at(asyncio.get_running_loop().time())


LIMITS: list[Callable[[], Any]] = [
    lambda: time_limit(0),
    limit_at_now,
    lambda: Reliable(asyncio.timeout(0)),
]


async def cancelled_in(scope: Callable[[], Any], cancel: bool) -> BaseException | None:
    """Return what a scope raises in a task that has been cancelled before.

    :param cancel: cancel the task again within the scope.
    """
    task = asyncio.current_task()
    assert task is not None
    task.cancel()
    try:
        await asyncio.sleep(0)
    except asyncio.CancelledError:
        pass
    try:
        async with scope():
            if cancel:
                task.cancel()
            await asyncio.Event().wait()
    except BaseException as ex:
        return ex
    return None


@pytest.mark.parametrize('scope', LIMITS)
async def test_expired_in_a_cancelled_task(scope: Callable[[], Any]) -> None:
    found = await asyncio.create_task(cancelled_in(scope, False))
    assert type(found) is TimeoutError


@pytest.mark.parametrize('scope', LIMITS)
async def test_cancelled_within(scope: Callable[[], Any]) -> None:
    found = await asyncio.create_task(cancelled_in(scope, True))
    assert type(found) is asyncio.CancelledError


async def test_cancelled_program_hears_of_unconfirmed_messages() -> None:
    errors: list[rbs.RbFlyError] = []

    async def program(uri: str) -> None:
        async with rbs.streams_client(uri, close_timeout=0.1) as client:
            publisher = await client.publisher('orders')
            await publisher.submit('order')
            try:
                await asyncio.Event().wait()
            finally:
                try:
                    await publisher.close()
                except rbs.ConfirmTimeout as ex:
                    errors.append(ex)

    async with StreamBroker() as broker:
        broker.create_stream('orders')
        broker.withhold_confirms()
        task = asyncio.create_task(program(broker.uri))
        await broker.wait_for('orders', 1)
        task.cancel()
        await asyncio.wait([task])
    assert task.cancelled()
    assert [error.outcome for error in errors] == ['unknown']
