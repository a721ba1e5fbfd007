"""Tasks that work on messages: on several at once, and in order by key."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Hashable
from time import monotonic
from typing import Any, Protocol

from ..time_limits import time_limit
from ._partition import Block, Item, Partition, Waiting

TURN = 0.004  # seconds for which messages are worked on before other tasks run
CLOCK = 15  # look at the clock at every 16th message
YIELDS = 3  # let timers run, and the tasks that they wake

Work = Callable[[Any], Awaitable[object]]
Key = Callable[[Any], Hashable]
FREE: Waiting = deque()  # no message with the key is in work
AnyError = (Exception, asyncio.CancelledError)


def limited(work: Work, timeout: float) -> Work:
    """Return the work with a limit of time."""

    async def call(message: Any) -> None:
        try:
            async with time_limit(timeout) as limit:
                await work(message)
        except TimeoutError as ex:
            if limit.expired():
                raise TimeoutError(f'the work has not ended within {timeout:g} s') from ex
            raise

    return call


def is_misuse(error: BaseException) -> bool:
    """Return whether `work` could not be called, or its result cannot be awaited."""
    traceback = error.__traceback__
    while traceback is not None and traceback.tb_next is not None:
        traceback = traceback.tb_next
    return (
        isinstance(error, TypeError)
        and traceback is not None
        and traceback.tb_frame.f_globals.get('__name__') == __name__
    )


class Owner(Protocol):
    """What workers report to."""

    async def on_error(self, item: Item, error: BaseException) -> bool:
        """The work on a message has failed; return whether the message is finished."""

    def on_progress(self, partition: Partition) -> None:
        """Messages of a partition may be finished, or a worker has left it."""

    def on_broken(self, error: BaseException) -> None:
        """A worker has ended."""


class Worker:
    """One task.

    :ivar partition: of the message that it works on; None while it has none.
    """

    __slots__ = ('partition', 'task')

    def __init__(self) -> None:
        self.partition: Partition | None = None
        self.task: asyncio.Task[None]


class Workers:
    """Works on messages in several tasks.

    Workers take messages from the first block that has some.  With a key, a worker that finds the
    key of a message busy lets the message wait, and the worker that finishes the message before it
    continues with that one.

    :param count: number of workers.
    :param work: async function of a message.
    :param key: function of a message; None if messages need no order.
    """

    def __init__(self, count: int, work: Work, key: Key | None, owner: Owner) -> None:
        self._count = count
        self._work = work
        self._key = key
        self._owner = owner
        self._blocks: deque[Block] = deque()
        self._items: deque[Item] = deque()  # to try again
        self._idle: deque[asyncio.Future[None]] = deque()
        self._workers: set[Worker] = set()
        self._turn_end = 0.0

    def start(self) -> None:
        """Start the tasks."""
        while len(self._workers) < self._count:
            worker = Worker()
            loop = asyncio.get_running_loop()
            worker.task = asyncio.Task(self._run(worker), loop=loop)  # never an eager one
            self._workers.add(worker)
            worker.task.add_done_callback(self._on_done)

    def _on_done(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self._owner.on_broken(error)

    def add(self, block: Block) -> None:
        """Work on the messages of a block."""
        self._blocks.append(block)
        self._wake(len(block.done))

    def add_item(self, item: Item) -> None:
        """Work on a message again; or let `on_error` handle `item.error`, if there is one."""
        self._items.append(item)
        self._wake(1)

    def _wake(self, count: int) -> None:
        idle = self._idle
        while idle and count:
            future = idle.popleft()
            if not future.done():
                future.set_result(None)
                count -= 1

    def are_in(self, partitions: Collection[Partition]) -> bool:
        """Return whether a worker works on a message of one of these partitions."""
        return any(worker.partition in partitions for worker in self._workers)

    def cancel(self, partitions: Collection[Partition]) -> set[asyncio.Task[None]]:
        """Cancel the work on messages of partitions, and start other workers.

        :returns: the tasks, which end later.
        """
        found = {worker for worker in self._workers if worker.partition in partitions}
        self._workers -= found
        for worker in found:
            worker.task.cancel()
        if found:
            self.start()
        return {worker.task for worker in found}

    def close(self) -> set[asyncio.Task[None]]:
        """Cancel all tasks, and return them: they end later."""
        tasks = {worker.task for worker in self._workers}
        self._workers.clear()
        for task in tasks:
            task.cancel()
        return tasks

    # -- one worker

    async def _run(self, worker: Worker) -> None:
        blocks, items = self._blocks, self._items
        take = self._take if self._key is None else self._take_by_key
        while True:
            if items:
                item = items.popleft()
                partition = item.block.partition
                worker.partition = partition
                if not partition.given_back:
                    await self._try_again(worker, item)
            elif blocks:
                block = blocks[0]
                partition = block.partition
                worker.partition = partition
                await take(worker, block)
                if blocks and blocks[0] is block:
                    blocks.popleft()
            else:
                future = asyncio.get_running_loop().create_future()
                self._idle.append(future)
                await future
                continue
            worker.partition = None
            self._owner.on_progress(partition)
            if worker.task.cancelling():  # the work has suppressed that
                return

    async def _take(self, worker: Worker, block: Block) -> None:
        work, done = self._work, block.done
        for index, message in block.left:
            try:
                await work(message)
            except AnyError as ex:
                if not await self._handle(worker, Item(block, index, message), ex):
                    continue
            done[index] = 1
            if not index & CLOCK and monotonic() > self._turn_end:
                await self._yield()

    async def _take_by_key(self, worker: Worker, block: Block) -> None:
        work, done, busy = self._work, block.done, block.partition.busy
        key_of, get = self._key, busy.get
        assert key_of is not None
        for index, message in block.left:
            try:
                key = key_of(message)
                waiting = get(key, FREE)
            except Exception as ex:
                item = Item(block, index, message)
                item.error = ex
                if await self._handle(worker, item, ex):
                    done[index] = 1
                continue
            if waiting is None:
                busy[key] = deque([(block, index, message)])
                continue
            if waiting is not FREE:
                waiting.append((block, index, message))
                continue
            busy[key] = None
            try:
                await work(message)
            except AnyError as ex:
                item = Item(block, index, message)
                item.key, item.is_keyed = key, True
                if not await self._handle(worker, item, ex):
                    continue
            done[index] = 1
            if (waiting := busy.pop(key)) is not None:
                busy[key] = waiting
                await self._take_waiting(worker, block.partition, key)
            if not index & CLOCK and monotonic() > self._turn_end:
                await self._yield()

    async def _take_waiting(self, worker: Worker, partition: Partition, key: Hashable) -> None:
        """Work on the messages that wait for a key."""
        waiting = partition.busy[key]
        while waiting:
            block, index, message = waiting.popleft()
            try:
                await self._work(message)
            except AnyError as ex:
                item = Item(block, index, message)
                item.key, item.is_keyed = key, True
                if not await self._handle(worker, item, ex):
                    return  # they wait until the message is finished
            block.done[index] = 1
            if not index & CLOCK and monotonic() > self._turn_end:
                await self._yield()
        del partition.busy[key]

    async def _try_again(self, worker: Worker, item: Item) -> None:
        error = item.error
        try:
            if error is None:
                await self._work(item.message)
        except AnyError as ex:
            error = ex
        if error is not None and not await self._handle(worker, item, error):
            return
        item.block.done[item.index] = 1
        if item.is_keyed:
            await self._take_waiting(worker, item.block.partition, item.key)

    async def _handle(self, worker: Worker, item: Item, error: BaseException) -> bool:
        if worker.task.cancelling():
            raise asyncio.CancelledError
        try:
            return await self._owner.on_error(item, error)
        finally:
            del error  # its traceback refers to this frame

    async def _yield(self) -> None:
        for _ in range(YIELDS):
            await asyncio.sleep(0)
        self._turn_end = monotonic() + TURN
