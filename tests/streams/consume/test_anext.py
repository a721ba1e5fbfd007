"""`anext(subscription)` is a coroutine: programs can await it or make it a task."""

import asyncio
import gc
import sys
import weakref
from asyncio.tasks import _PyTask  # type: ignore[attr-defined]
from collections.abc import Callable, Coroutine
from traceback import walk_tb
from types import FrameType
from typing import Any

import pytest

from rbfly.protocol._cursor import KINDS
from rbfly.streams._consume._iteration import FastSubscription, MessageIterator
from rbfly.streams.error import SubscriptionError
from tests.cursors import Cursor
from tests.stream_wire import plain_chunk

pytestmark = pytest.mark.both_loops


class Reader(Cursor):
    """Waits for chunks as a subscription does."""

    def __init__(self) -> None:
        super().__init__()
        self.future: asyncio.Future[None] | None = None
        self.end = 0

    def put(self, *messages: bytes) -> None:
        self.push(plain_chunk(list(messages), self.end))
        self.end += len(messages)
        if self.future is not None and not self.future.done():
            self.future.set_result(None)

    async def wait(self, kind: int, limit: int, subscription: FastSubscription) -> Any:
        if self.future is not None:
            raise SubscriptionError('is being iterated by another task')
        try:
            while not subscription._advance(self, kind, limit):
                self.future = asyncio.get_running_loop().create_future()
                await self.future
        finally:
            self.future = None
        return subscription._take(self, kind)


Make = Callable[[Coroutine[Any, Any, Any]], 'asyncio.Task[Any]']


def python_task(work: Coroutine[Any, Any, Any]) -> 'asyncio.Task[Any]':
    task: asyncio.Task[Any] = _PyTask(work, loop=asyncio.get_running_loop())
    return task


@pytest.fixture(params=[asyncio.create_task, python_task], ids=['C', 'Python'])
def make(request: pytest.FixtureRequest) -> Make:
    function: Make = request.param
    return function


async def turn() -> None:
    for _ in range(3):
        await asyncio.sleep(0)


@pytest.mark.parametrize('waits', [False, True])
async def test_anext_runs_as_a_task(make: Make, waits: bool) -> None:
    reader = Reader()
    if not waits:
        reader.put(b'a', b'b')
    task = make(anext(reader))
    await turn()
    assert task.done() is not waits
    if waits:
        reader.put(b'a', b'b')
    assert await task == b'a'
    assert await anext(reader) == b'b'


@pytest.mark.parametrize('kind', ['context', 'batch'])
async def test_tasks_receive_contexts_and_batches(make: Make, kind: str) -> None:
    reader = Reader()
    iterator: Any = MessageIterator(FastSubscription(reader, reader), KINDS[kind], 10)
    tasks = [make(anext(iterator))]
    await turn()
    reader.put(b'a')
    tasks.append(make(anext(iterator)))
    await turn()
    reader.put(b'b')
    found = [await task for task in tasks]
    assert [item.body if kind == 'context' else list(item) for item in found] == (
        [b'a', b'b'] if kind == 'context' else [[b'a'], [b'b']]
    )


async def test_anext_in_a_task_group() -> None:
    reader = Reader()
    async with asyncio.TaskGroup() as group:
        task = group.create_task(anext(reader))
        await turn()
        reader.put(b'a')
    assert task.result() == b'a'


async def test_anext_with_gather_wait_for_and_shield() -> None:
    reader = Reader()
    reader.put(b'a', b'b', b'c')
    found = await asyncio.gather(anext(reader), anext(reader))
    assert [*found] == [b'a', b'b']
    assert await asyncio.wait_for(anext(reader), 10) == b'c'
    shielded = asyncio.shield(anext(reader))
    await turn()
    reader.put(b'd')
    assert await shielded == b'd'


@pytest.mark.parametrize('when', ['before it starts', 'while it waits', 'as a message arrives'])
async def test_cancelled_task_loses_no_message(make: Make, when: str) -> None:
    reader = Reader()
    task = make(anext(reader))
    if when == 'before it starts':
        reader.put(b'a')
    else:
        await turn()
    if when == 'as a message arrives':
        reader.put(b'a')
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    if when == 'while it waits':
        reader.put(b'a')
    assert await anext(reader) == b'a'


async def test_timeout_loses_no_message() -> None:
    reader = Reader()
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(anext(reader), 1e-3)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(1e-3):
            await anext(reader)
    reader.put(b'a')
    assert await anext(reader) == b'a'


async def test_anext_with_a_default(make: Make) -> None:
    class Ended(Reader):
        async def wait(self, kind: int, limit: int, subscription: FastSubscription) -> Any:
            await super().wait(kind, limit, subscription)
            raise StopAsyncIteration

    async def read(reader: Reader) -> object:
        return await anext(reader, 'default')

    reader = Reader()
    tasks = [make(read(reader)), make(read(ended := Ended()))]
    await turn()
    waited = reader.future
    assert waited is not None
    reader.put(b'a')
    ended.put(b'x')
    assert await asyncio.gather(*tasks) == [b'a', 'default']


async def test_anext_cannot_be_awaited_twice() -> None:
    reader = Reader()
    reader.put(b'a', b'b')
    ready: Any = anext(reader)
    assert await ready == b'a'
    with pytest.raises(RuntimeError, match='cannot reuse already awaited'):
        await ready
    with pytest.raises(RuntimeError, match='cannot reuse already awaited'):
        ready.throw(ValueError)
    ready.close()
    assert await anext(reader) == b'b'
    waiting: Any = anext(reader)
    task = asyncio.create_task(waiting)
    await turn()
    reader.put(b'c', b'd')
    assert await task == b'c'
    with pytest.raises(RuntimeError, match='cannot reuse already awaited'):
        await waiting


async def test_coroutine_protocol() -> None:
    reader = Reader()
    ready: Any = anext(reader)
    assert asyncio.isfuture(ready.send(None))
    with pytest.raises(ValueError, match='mine'):
        ready.throw(ValueError('mine'))
    reader.put(b'a', b'b')
    for read in (lambda item: item.send(None), next):
        ready = anext(reader)
        with pytest.raises(StopIteration) as caught:
            read(ready)
        assert caught.value.value in (b'a', b'b')
    never: Any = anext(reader)
    with pytest.raises(ValueError, match='mine'):
        never.throw(ValueError('mine'))
    never = anext(reader)
    never.close()
    with pytest.raises(RuntimeError, match='cannot reuse already awaited'):
        never.send(None)


def note(ex: StopIteration) -> None:
    ex.add_note('seen')


def cause(ex: StopIteration) -> None:
    ex.__cause__ = ValueError()


def suppress(ex: StopIteration) -> None:
    ex.__suppress_context__ = True


def context(ex: StopIteration) -> None:
    ex.__context__ = ValueError()


def attribute(ex: StopIteration) -> None:
    ex.mine = 1  # type: ignore[attr-defined]


def arguments(ex: StopIteration) -> None:
    ex.args = (1, 2)


def keep(ex: StopIteration) -> None:
    KEPT.append(ex)


def leave(ex: StopIteration) -> None:
    return


def check_new(ex: StopIteration, body: bytes) -> None:
    assert ex.value == body
    assert ex.__traceback__ is not None
    assert len([*walk_tb(ex.__traceback__)]) <= 2  # the portable build adds a frame of its own
    assert (ex.__context__, ex.__cause__, ex.__suppress_context__) == (None, None, False)
    assert not hasattr(ex, '__notes__')
    assert not hasattr(ex, 'mine')
    assert ex.args in ((), (body,))


KEPT: list[StopIteration] = []


@pytest.mark.parametrize(
    'change', [leave, note, cause, suppress, context, attribute, arguments, keep]
)
@pytest.mark.parametrize('traceback', [False, True])
async def test_each_stop_iteration_is_a_new_one(
    change: Callable[[StopIteration], None], traceback: bool
) -> None:
    KEPT.clear()
    reader = Reader()
    reader.put(b'a', b'b', b'c')
    for body in (b'a', b'b', b'c'):
        try:
            next(anext(reader))  # type: ignore[call-overload]
        except StopIteration as ex:
            check_new(ex, body)
            change(ex)
            if not traceback:
                ex.__traceback__ = None
    assert [ex.value for ex in KEPT] in ([], [b'a', b'b', b'c'])


async def test_debugger_that_keeps_exceptions_sees_each_message() -> None:
    seen: list[StopIteration] = []

    def trace(frame: FrameType, event: str, arg: Any) -> Any:
        if event == 'exception' and isinstance(arg[1], StopIteration):
            seen.append(arg[1])
        return trace

    reader = Reader()
    reader.put(b'a', b'b', b'c')
    before = sys.gettrace()

    async def read() -> list[bytes]:
        return [await anext(reader) for _ in range(3)]

    sys.settrace(trace)
    try:
        found = await read()
    finally:
        sys.settrace(before)
    assert found == [b'a', b'b', b'c']
    values = [ex.value for ex in seen if isinstance(ex.value, bytes)]
    assert values == found[: len(values)]


async def test_awaitable_that_is_kept_is_not_used_again() -> None:
    reader = Reader()
    reader.put(b'a', b'b', b'c')
    first: Any = anext(reader)
    assert await first == b'a'
    second, third = anext(reader), anext(reader)
    assert len({id(first), id(second), id(third)}) == 3
    with pytest.raises(RuntimeError, match='cannot reuse already awaited'):
        await first
    assert [await third, await second] == [b'b', b'c']


async def test_awaited_message_releases_the_subscription() -> None:
    class Kept(FastSubscription):
        pass

    reader = Reader()
    reader.put(b'a', b'b')
    subscription = Kept(reader, reader)
    awaited = anext(subscription)
    assert await awaited == b'a'
    ref = weakref.ref(subscription)
    del subscription, awaited
    assert ref() is None


async def test_only_the_program_keeps_a_message() -> None:
    reader = Reader()
    reader.put(*[bytes(range(i, i + 20)) for i in range(3)])
    other = bytes(range(40, 60))
    for _ in range(3):
        body = await anext(reader)
        assert sys.getrefcount(body) == sys.getrefcount(other)


@pytest.mark.filterwarnings('error')
async def test_anext_that_is_never_awaited_takes_no_message() -> None:
    reader = Reader()
    reader.put(b'a')
    anext(reader)  # type: ignore[unused-coroutine]
    assert await anext(reader) == b'a'


async def test_waiting_coroutine_can_be_collected() -> None:
    class Kept:
        pass

    async def wait() -> None:
        kept = Kept()
        refs.append(weakref.ref(kept))
        reader = Reader()
        await anext(reader)

    refs: list[weakref.ref[Kept]] = []
    work = wait()
    work.send(None)
    del work
    gc.collect()
    assert refs[0]() is None
