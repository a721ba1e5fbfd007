"""When a publisher gives up, every waiting call fails and learns whether its message was sent."""

import asyncio
from typing import Any
from unittest.mock import Mock

import pytest

import rbfly.streams as rbs
from rbfly.protocol._entry import SubEntry
from rbfly.protocol._pending import ConfirmWaiter
from rbfly.protocol._publish import PublishWindow
from rbfly.streams.error import PublisherError, PublishError
from rbfly.streams.types import PublisherInfo
from tests.inside import core_of, window_of
from tests.streams.publish.test_sending import (
    Connection,
    World,
    open_session,
    session,
    task_factory,
    turn,
)

__all__ = ['task_factory']


async def check_errors_after_close(
    world: World, sent: list[asyncio.Task[Any]], unsent: list[asyncio.Task[Any]]
) -> None:
    """Close the publisher; the errors of the unsent messages say that they were not sent."""
    with pytest.raises(TimeoutError):
        await world.publisher.close()
    for task in (*sent, *unsent):
        with pytest.raises(PublisherError, match='was closed before') as caught:
            await task
        assert ('before the message was sent' in str(caught.value)) is (task in unsent)


async def test_error_says_whether_the_message_was_sent(task_factory: Any) -> None:
    world = World(task_factory)
    sent = await world.senders(2)
    world.connection.paused = True
    unsent = await world.senders(1)  # waits for capacity
    unsent.append(world.task(world.publisher.send_many([b'x'])))
    await turn()
    await check_errors_after_close(world, sent, unsent)


async def test_message_queued_after_a_connection_loss_was_not_sent(task_factory: Any) -> None:
    world = World(task_factory)
    sent = await world.senders(1)
    core_of(world.publisher).suspend()
    await check_errors_after_close(world, sent, await world.senders(2))


@pytest.mark.parametrize('again', [False, True])
def test_message_sent_on_a_lost_connection_counts_as_sent(again: bool) -> None:
    window = PublishWindow(3, 1 << 20, 100, 0, None, False)
    waiters = [ConfirmWaiter(i, True) for i in range(4)]
    for waiter in waiters[:2]:
        window.append(b'x', waiter)
    assert window.take()
    for waiter in waiters[2:]:
        window.append(b'x', waiter)
    window.replay(4, 1 << 20)
    if again:
        window.replay(5, 1 << 20)
    assert window.fail_pending() == waiters
    assert [waiter.unsent for waiter in waiters] == [False, False, True, True]


def test_sub_entry_too_large_for_the_new_frame_size_is_refused_as_a_whole() -> None:
    window = PublishWindow(3, 1 << 20, 100, 0, None, False, SubEntry(3, 0, None))
    waiters = [ConfirmWaiter(i, True) for i in range(4)]
    for waiter in waiters:
        window.append(b'x' * 30, waiter)
    assert window.take()
    assert window.replay(4, 100) == waiters[:3]
    assert [waiter.errors for waiter in waiters] == [[(0, 0x0E)]] * 3 + [None]
    assert window.take()


async def test_error_names_the_sub_entry_that_is_too_large() -> None:
    core = rbs.Publisher._new_core(PublisherInfo('stream', sub_entry_size=3))
    session = open_session(Connection(), core)
    publisher = rbs.Publisher(session, object())
    core_of(publisher).suspend()
    tasks = [asyncio.create_task(publisher.send(b'x' * 30)) for _ in range(3)]
    await turn()
    assert not [task for task in tasks if task.done()]
    for waiter in window_of(publisher).replay(3, 100):
        session.settle(waiter)
    for outcome in await asyncio.gather(*tasks, return_exceptions=True):
        assert isinstance(outcome, PublishError)
        assert 'sub-entry of 3 messages' in str(outcome)


async def test_interrupt_while_waiting_calls_are_woken_forgets_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World(asyncio.Task)
    tasks = await world.senders(3)
    settle = session(world).settle
    monkeypatch.setattr(session(world), 'settle', Mock(side_effect=KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        world.connection.refuse(0, 1, 2)
    monkeypatch.setattr(session(world), 'settle', settle)
    await asyncio.wait(tasks[1:], timeout=10)
    assert [type(task.exception()) for task in tasks[1:]] == [PublishError] * 2
    tasks[0].cancel()
    tasks = [*await world.senders(2), tasks[0]]
    world.connection.confirm(3, 4)
    await asyncio.wait(tasks, timeout=10)
    assert [task.done() for task in tasks] == [True] * 3
