"""Waiting for capacity: fair and cancellable, and every waiter is served."""

import asyncio
import random
from collections import deque

import pytest

from rbfly.streams._publish.semaphore import WindowSemaphore


class Window:
    """Limited capacity, released in the order in which it was taken."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.used = 0
        self.most = 0
        self.taken: deque[int] = deque()
        self.capacity = WindowSemaphore(self.has_capacity)

    def has_capacity(self, amount: int) -> bool:
        return self.used + self.capacity.reserved + amount <= self.size

    async def take(self, amount: int) -> None:
        if self.capacity.waiting or not self.has_capacity(amount):
            await self.capacity.wait(amount, amount)
        self.used += amount
        self.most = max(self.most, self.used)
        self.taken.append(amount)
        self.capacity.grant()

    def give_back(self) -> None:
        self.used -= self.taken.popleft()
        self.capacity.grant()


async def settle() -> None:
    """Let every task run that is ready."""
    for _ in range(5):
        await asyncio.sleep(0)


async def test_capacity_is_granted_in_order() -> None:
    window = Window(10)
    order: list[int] = []

    async def take(name: int, amount: int) -> None:
        await window.take(amount)
        order.append(name)

    amounts = [10, 1, 8, 1, 3, 7, 10, 1]
    tasks = [asyncio.create_task(take(*item)) for item in enumerate(amounts)]
    await settle()
    assert order == [0]
    steps = []
    while window.taken:
        window.give_back()
        await settle()
        steps.append(len(order))
    assert order == list(range(8))  # a small one does not pass a large one
    assert steps == [4, 4, 5, 6, 6, 7, 8, 8]
    assert window.capacity.reserved == 0
    await asyncio.gather(*tasks)


async def test_cancelled_waiter_lets_the_next_one_through() -> None:
    window = Window(10)
    await window.take(8)
    large = asyncio.create_task(window.take(5))
    small = asyncio.create_task(window.take(2))
    await settle()
    assert not small.done()
    large.cancel()
    await settle()
    assert small.done()
    assert not window.capacity.waiting


async def test_capacity_granted_to_a_cancelled_task_goes_to_the_next() -> None:
    window = Window(1)
    await window.take(1)
    first, second = (asyncio.create_task(window.take(1)) for _ in range(2))
    await settle()
    window.give_back()
    first.cancel()  # in the same turn
    await settle()
    assert first.cancelled()
    assert second.done()
    assert (window.used, window.capacity.reserved) == (1, 0)


async def test_two_tasks_cancelled_as_capacity_is_granted() -> None:
    window = Window(1)
    await window.take(1)
    tasks = [asyncio.create_task(window.take(1)) for _ in range(3)]
    await settle()
    tasks[0].cancel()
    tasks[1].cancel()
    window.give_back()
    await settle()
    assert [task.cancelled() for task in tasks] == [True, True, False]
    assert tasks[2].done()


async def test_failure_reaches_every_waiter() -> None:
    window = Window(1)
    await window.take(1)
    tasks = [asyncio.create_task(window.take(1)) for _ in range(3)]
    await settle()
    tasks[1].cancel()
    window.capacity.fail(KeyError('x'))
    outcomes = await asyncio.gather(*tasks, return_exceptions=True)
    assert [type(item) for item in outcomes] == [KeyError, asyncio.CancelledError, KeyError]
    assert (window.capacity.reserved, len(window.capacity.waiting)) == (0, 0)


async def test_timeouts_leave_nothing_behind() -> None:
    window = Window(1)
    await window.take(1)
    patient = asyncio.create_task(window.take(1))
    for _ in range(1000):
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(window.take(1), 1e-9)
    assert len(window.capacity.waiting) == 1
    window.give_back()
    await patient


@pytest.mark.parametrize('walk', range(5))
async def test_thousands_of_tasks_some_of_them_cancelled(walk: int, rng: random.Random) -> None:
    window = Window(50)
    tasks = [asyncio.create_task(window.take(rng.choice([1, 1, 1, 7, 50]))) for _ in range(1000)]
    while not all(task.done() for task in tasks):
        for _ in range(rng.randrange(4)):
            rng.choice(tasks).cancel()
        if window.taken and rng.random() < 0.7:
            window.give_back()
        if rng.random() < 0.5:
            await asyncio.sleep(0)
        if not window.taken:
            await settle()
            assert window.taken or all(task.done() for task in tasks), 'somebody was forgotten'
    await asyncio.gather(*tasks, return_exceptions=True)
    assert (window.capacity.reserved, len(window.capacity.waiting)) == (0, 0)
    assert window.most <= 50
