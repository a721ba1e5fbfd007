"""Timeouts of publishers: a call that times out leaves nothing behind."""

import asyncio
import gc
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any

import pytest

import rbfly.streams as rbs
from rbfly.streams._publish._confirm import ConfirmFuture
from rbfly.streams.error import ConfirmTimeout, WindowTimeout
from tests.inside import session_of, window_of
from tests.streams.publish.test_sending import Connection, World, attach, task_factory, turn

__all__ = ['task_factory']

SOON = 1e-6  # seconds

Work = Callable[[Any, float | None], Awaitable[Any]]


async def endless() -> AsyncIterator[bytes]:
    yield b'x'
    await asyncio.get_running_loop().create_future()


def forever() -> Iterator[bytes]:
    while True:
        yield b'x'


def publisher_and_call(name: str) -> tuple[type[Any], Work]:
    """A class of publishers, and a call with a timeout."""
    works: dict[str, tuple[type[Any], Work]] = {
        'send': (rbs.Publisher, lambda p, t: p.send(b'x', timeout=t)),
        'send without room': (rbs.Publisher, lambda p, t: p.send(b'x', timeout=t)),
        'submit': (rbs.Publisher, lambda p, t: p.submit(b'x', timeout=t)),
        'send_many': (rbs.Publisher, lambda p, t: p.send_many([b'x'], timeout=t)),
        'send_many forever': (rbs.Publisher, lambda p, t: p.send_many(forever(), timeout=t)),
        'send_many async': (rbs.Publisher, lambda p, t: p.send_many(endless(), timeout=t)),
        'flush': (rbs.Publisher, lambda p, t: p.flush(timeout=t)),
    }
    return works[name]


WITHOUT_ROOM = ['send without room', 'submit']
WORKS = ['send', 'send_many', 'send_many forever', 'send_many async', 'flush', *WITHOUT_ROOM]


async def filled(name: str) -> tuple[Any, Connection, Work]:
    """A publisher for which a call has to wait."""
    cls, run = publisher_and_call(name)
    connection = Connection()
    publisher = attach(cls, connection)
    if name == 'flush':
        publisher.batch(b'x')
    elif name in WITHOUT_ROOM:
        connection.paused = True
    return publisher, connection, run


@pytest.mark.parametrize('timeout', [None, SOON], ids=['cancelled', 'timed out'])
@pytest.mark.parametrize('name', WORKS)
async def test_abandoned_waits_form_no_cycle(
    task_factory: Any, name: str, timeout: float | None
) -> None:
    publisher, _, run = await filled(name)

    async def each() -> None:
        await run(publisher, timeout or 3600)

    # Count only garbage of these calls: threads of earlier tests may end and also leave garbage.
    left: list[weakref.ref[Any]] = []

    async def rounds(count: int) -> None:
        for _ in range(count):
            task = task_factory(each(), loop=asyncio.get_running_loop())
            left.append(weakref.ref(task))
            if timeout is None:
                await turn()
                task.cancel()
            await asyncio.wait([task])
            if timeout is not None:
                assert isinstance(task.exception(), ConfirmTimeout)
                left.append(weakref.ref(task.exception()))

    await rounds(2)
    gc.collect()
    gc.disable()
    try:
        await rounds(20)
        # a Python task always forms a cycle
        if task_factory is asyncio.Task:
            assert not [item for item in left if item() is not None]
        assert not [item for item in gc.get_objects() if isinstance(item, asyncio.Timeout)]
    finally:
        gc.enable()
        session_of(publisher)._give_up(ValueError('the end'))


@pytest.mark.parametrize('name', WITHOUT_ROOM)
async def test_message_without_capacity_in_time_is_not_sent(name: str) -> None:
    publisher, _, run = await filled(name)
    queued = window_of(publisher).queued
    with pytest.raises(WindowTimeout):
        await run(publisher, SOON)
    assert (window_of(publisher).queued, publisher.message_id) == (queued, queued)
    session_of(publisher)._give_up(ValueError('the end'))


@pytest.mark.parametrize(
    'name', ['send', 'send_many', 'send_many forever', 'send_many async', 'flush']
)
async def test_timeout_of_0_needs_a_confirm_and_writes_nothing(name: str) -> None:
    publisher, connection, run = await filled(name)
    queued, last = window_of(publisher).queued, publisher.next_publish_id
    with pytest.raises(ConfirmTimeout, match='nothing was sent') as caught:
        await run(publisher, 0)
    batched = name == 'flush'  # its messages stay queued
    outcome = ('unknown', False) if batched else ('not_sent', True)
    assert (caught.value.outcome, caught.value.retriable) == outcome
    assert (connection.written, window_of(publisher).queued) == ([], queued)
    assert publisher.next_publish_id == last
    session_of(publisher)._give_up(ValueError('the end'))


async def test_submit_with_a_timeout_of_0_sends_if_there_is_capacity() -> None:
    """It never suspends."""
    connection = Connection()
    publisher = attach(rbs.Publisher, connection)
    sending = publisher.submit(b'x', timeout=0)
    with pytest.raises(StopIteration) as returned:
        sending.send(None)
    await asyncio.sleep(0)  # the end of the turn
    assert connection.ids() == [[0]]
    connection.paused = True
    sending = publisher.submit(b'y', timeout=0)
    with pytest.raises(WindowTimeout):
        sending.send(None)
    connection.paused = False
    connection.confirm(0)
    await returned.value.value


async def test_flush_with_a_timeout_of_0_reports_what_is_confirmed() -> None:
    connection = Connection()
    publisher = attach(rbs.Publisher, connection)
    await publisher.flush(timeout=0)
    publisher.batch(b'x')
    with pytest.raises(ConfirmTimeout):
        await publisher.flush(timeout=SOON)
    connection.confirm(0)
    await publisher.flush(timeout=0)


async def test_confirm_arrives_in_the_turn_of_the_timeout(task_factory: Any) -> None:
    world = World(task_factory)
    world.connection.write = lambda data: world.loop.call_soon(world.connection.confirm, 0)  # type: ignore
    await world.task(world.publisher.send(b'x', timeout=1e-12))


async def test_sends_with_and_without_a_timeout_share_a_frame(task_factory: Any) -> None:
    world = World(task_factory)
    tasks = [world.task(world.publisher.send(b'x', timeout=t)) for t in (None, 5, None, 5, 9)]
    await turn()
    assert world.connection.ids() == [[0], [1, 2, 3, 4]]
    world.connection.confirm(*range(5))
    await asyncio.gather(*tasks)


@pytest.mark.parametrize('value', [-1, -0.5, float('nan'), float('inf'), '1', True, b'1', [1]])
@pytest.mark.parametrize('name', WORKS)
async def test_no_timeout(name: str, value: Any) -> None:
    cls, run = publisher_and_call(name)
    connection = Connection()
    publisher = attach(cls, connection)
    kind = ValueError if isinstance(value, int | float) and value is not True else TypeError
    with pytest.raises(kind, match='timeout must be'):
        await run(publisher, value)
    assert (publisher.message_id, connection.written) == (0, [])


async def test_abandoned_flushes_do_not_accumulate() -> None:
    publisher, connection, _ = await filled('flush')
    for _ in range(10):
        with pytest.raises(ConfirmTimeout):
            await publisher.flush(timeout=SOON)
    assert len([item for item in gc.get_objects() if isinstance(item, ConfirmFuture)]) <= 1
    connection.confirm(0)
    await publisher.flush()
