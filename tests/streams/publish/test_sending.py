"""Tasks that await confirms wake as from futures: in order, in their contexts, cancellable."""

import asyncio
import contextvars
import gc
import traceback
import weakref
from asyncio.tasks import _PyTask  # type: ignore[attr-defined]
from collections.abc import Coroutine, Generator
from typing import Any, TypeVar
from unittest.mock import Mock

import pytest

import rbfly.streams as rbs
from rbfly.net.observer import Observers, State
from rbfly.net.retry import Refusal
from rbfly.net.totals import Totals
from rbfly.net.uri import Settings
from rbfly.net.waiting import CloseTimeout
from rbfly.protocol._engine import Engine
from rbfly.streams._publish._core import PublisherCore
from rbfly.streams._publish.session import PublisherSession
from rbfly.streams.error import PublishError, StreamConnectionError
from rbfly.streams.types import PublisherInfo
from tests.inside import session_of, window_of
from tests.stream_wire import confirm, feed, read_publish, refuse

P = TypeVar('P', rbs.Publisher, rbs.PublisherBatchFast)


class Connection(Engine):
    """The part of a connection that a publisher uses."""

    frame_max = 1 << 20
    is_open = False  # the publisher sends no requests

    def __init__(self) -> None:
        super().__init__()
        self.paused = False
        self.registrations: dict[object, None] = {}
        self.written: list[bytes] = []

    feed = feed

    def write(self, data: bytes | list[bytes]) -> None:
        self.written.append(data if isinstance(data, bytes) else b''.join(data))

    confirm_check: object = None

    def check_confirms(self, check: object) -> None:
        pass

    def require_answer(self) -> None:
        pass

    def on_frame(self, key: int, version: int, body: bytes) -> None:
        raise AssertionError

    def on_failure(self, error: Exception) -> None:
        raise error

    def ids(self) -> list[list[int]]:
        """Publishing ids of each frame that was written."""
        return [[publish_id for publish_id, _ in read_publish(data)[1]] for data in self.written]

    def confirm(self, *ids: int) -> None:
        self.feed(confirm(3, ids))

    def refuse(self, *ids: int) -> None:
        self.feed(refuse(3, [(publish_id, 0x0F) for publish_id in ids]))


class Cluster:
    """A cluster with one connection, which is open."""

    is_forked = False

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.generation = 0
        self.busy_poll = 0.0
        self.known: set[object] = set()
        self.registrations: dict[object, None] = {}
        self.observers = Observers()
        self.totals = Totals(connection.counters)
        self.settings = Settings([])
        self.refusal = Refusal()
        self.closing = self.idle_closing = CloseTimeout(0.001)

    def check_loop(self) -> None:
        pass

    def on_answer(self) -> None:
        self.closing.restore()

    def deadline(self) -> Any:
        raise AssertionError


def open_session(connection: Connection, core: PublisherCore | None = None) -> PublisherSession:
    """Return a session whose registration is open."""
    cluster: Any = Cluster(connection)
    if core is None:
        core = rbs.Publisher._new_core(PublisherInfo('stream'))
    session = PublisherSession(cluster, 'stream', '', core)
    registration: Any = session.registration
    registration.connection, registration.id = connection, 3
    registration.state = State.OPEN
    cluster.registrations[registration] = None
    session.on_open(registration.connection, 3)
    return session


def attach(cls: type[P], connection: Connection) -> P:
    core = cls._new_core(PublisherInfo('stream'))
    core.window.start_at(0)
    return cls(open_session(connection, core), object())


@pytest.fixture(params=[asyncio.Task, _PyTask], ids=['C', 'Python'])
def task_factory(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Any:
    if request.param is _PyTask:
        # since Python 3.14 a task in Python is known to the function in Python only
        known: Any = asyncio.current_task
        python = getattr(asyncio.tasks, '_py_current_task', known)

        def current_task(loop: Any = None) -> Any:
            return known(loop) or python(loop)

        monkeypatch.setattr(asyncio, 'current_task', current_task)
        monkeypatch.setattr(asyncio.tasks, 'current_task', current_task)
    return request.param


class World:
    """A publisher, with the test as its broker."""

    def __init__(self, task_factory: Any) -> None:
        self.connection = Connection()
        self.publisher = attach(rbs.Publisher, self.connection)
        self.factory = task_factory
        self.loop = asyncio.get_running_loop()

    def task(self, work: Coroutine[Any, Any, Any]) -> 'asyncio.Task[Any]':
        task: asyncio.Task[Any] = self.factory(work, loop=self.loop)
        return task

    async def senders(self, count: int) -> list['asyncio.Task[Any]']:
        tasks = [self.task(self.publisher.send(b'%d' % i)) for i in range(count)]
        await turn()
        return tasks


def session(world: World) -> PublisherSession:
    found = session_of(world.publisher)
    assert isinstance(found, PublisherSession)
    return found


async def turn() -> None:
    for _ in range(3):
        await asyncio.sleep(0)


async def test_tasks_wake_in_order(task_factory: Any) -> None:
    world = World(task_factory)
    order: list[int] = []

    async def each(number: int) -> None:
        for _ in range(2):
            await world.publisher.send(b'x')
            order.append(number)

    tasks = [world.task(each(i)) for i in range(5)]
    await turn()
    assert world.connection.ids() == [[0], [1, 2, 3, 4]]
    world.connection.confirm(3, 0, 4)
    world.connection.confirm(1)
    await turn()
    assert order == [3, 0, 4, 1]
    # their messages share a frame
    assert world.connection.ids()[2:] == [[5, 6, 7, 8]]
    world.connection.confirm(*range(9))
    await turn()
    world.connection.confirm(9)
    await asyncio.gather(*tasks)


async def test_new_sender_shares_a_frame_with_woken_tasks(task_factory: Any) -> None:
    world = World(task_factory)

    async def each() -> None:
        for _ in range(2):
            await world.publisher.send(b'x')

    tasks = [world.task(each()) for _ in range(3)]
    await turn()
    tasks.append(world.task(world.publisher.send(b'x')))  # has not begun
    world.connection.confirm(0, 1, 2)
    await turn()
    assert world.connection.ids() == [[0], [1, 2], [3, 4, 5, 6]]
    world.connection.confirm(3, 4, 5, 6)
    await asyncio.gather(*tasks)


async def test_tasks_wake_in_their_contexts(task_factory: Any) -> None:
    world = World(task_factory)
    variable = contextvars.ContextVar('variable', default=-1)

    async def each(number: int) -> tuple[int, bool]:
        variable.set(number)
        await world.publisher.send(b'x')
        return variable.get(), asyncio.current_task() is tasks[number]

    tasks = [world.task(each(i)) for i in range(4)]
    await turn()
    world.connection.confirm(0, 1, 2, 3)
    assert await asyncio.gather(*tasks) == [(0, True), (1, True), (2, True), (3, True)]
    assert variable.get() == -1


async def test_cancelled_before_and_after_the_confirm(task_factory: Any) -> None:
    world = World(task_factory)
    tasks = await world.senders(5)
    tasks[1].cancel('early')
    tasks[3].cancel()
    tasks[3].cancel()
    await turn()
    assert [task.cancelled() for task in tasks] == [False, True, False, True, False]
    world.connection.confirm(0, 1, 2, 3)
    tasks[2].cancel()  # its wake-up is scheduled
    await turn()
    assert [task.done() for task in tasks] == [True, True, True, True, False]
    assert tasks[2].cancelled()
    with pytest.raises(asyncio.CancelledError, match='early'):
        await tasks[1]
    world.connection.confirm(4)
    await tasks[4]


async def test_refused(task_factory: Any) -> None:
    world = World(task_factory)
    tasks = await world.senders(3)
    world.connection.refuse(1)
    world.connection.confirm(0, 2)
    done = await asyncio.gather(*tasks, return_exceptions=True)
    assert done[0] is None
    assert done[2] is None
    assert isinstance(done[1], PublishError)
    assert (done[1].code, done[1].publish_id) == (0x0F, 1)


@pytest.mark.parametrize('how', ['send', 'send_many', 'flush'])
async def test_error_shared_by_many_tasks_does_not_grow(task_factory: Any, how: str) -> None:
    world = World(task_factory)
    publisher: Any = world.publisher
    if how == 'flush':
        publisher = attach(rbs.PublisherBatchFast, world.connection)
        publisher.batch(b'x')
    args: dict[str, list[Any]] = {'send': [b'x'], 'send_many': [[b'x']], 'flush': []}
    tasks = [world.task(getattr(publisher, how)(*args[how])) for _ in range(50)]
    await turn()
    while how != 'flush' and window_of(publisher).unsettled < len(tasks):
        await turn()  # on a busy machine, send_many lets other tasks run before its first message
    error = ValueError('the end')
    error.__cause__ = cause = OSError('reset by peer')
    session_of(publisher).on_failed(error)
    await asyncio.wait(tasks)
    outcomes = [task.exception() for task in tasks]
    assert {(type(item), str(item)) for item in outcomes} == {(ValueError, 'the end')}
    if how != 'flush':  # each call has its own
        assert len({id(item) for item in outcomes}) == len(outcomes)
    assert all(item is not None and item.__cause__ is cause for item in outcomes)
    for outcome in (error, *outcomes):
        assert outcome is not None
        assert len([*traceback.walk_tb(outcome.__traceback__)]) < 10


@pytest.mark.parametrize('how', ['cancelled', 'refused', 'given up'])
async def test_failed_task_is_released(how: str) -> None:
    class Kept:
        pass

    async def each() -> None:
        kept = Kept()
        refs.append(weakref.ref(kept))
        await world.publisher.send(b'x')

    refs: list[weakref.ref[Kept]] = []
    world = World(asyncio.Task)  # Python tasks always form cycles
    gc.disable()
    try:
        tasks = [world.task(each()) for _ in range(5)]
        await turn()
        if how == 'cancelled':
            assert all(task.cancel() for task in tasks)
        elif how == 'refused':
            world.connection.refuse(*range(5))
        else:
            session(world)._give_up(ValueError('the end'))
        await asyncio.gather(*tasks, return_exceptions=True)
        tasks.clear()
        await turn()
        assert [ref() for ref in refs] == [None] * 5
    finally:
        gc.enable()


async def test_error_during_write(task_factory: Any) -> None:
    world = World(task_factory)
    world.connection.write = lambda data: session(world).on_failed(ValueError('gone'))  # type: ignore
    with pytest.raises(ValueError, match='gone'):
        await world.task(world.publisher.send(b'x'))


def test_other_tasks_wake_after_one_ends_the_loop(task_factory: Any) -> None:
    ended: list[int] = []

    async def each(world: World, number: int) -> None:
        await world.publisher.send(b'x')
        if number == 1:
            raise KeyboardInterrupt
        ended.append(number)

    async def main() -> None:
        world = World(task_factory)
        tasks.extend(world.task(each(world, i)) for i in range(4))
        await turn()
        world.connection.confirm(0, 1, 2, 3)
        await asyncio.wait(tasks)

    tasks: list[asyncio.Task[Any]] = []
    loop = asyncio.new_event_loop()
    try:
        with pytest.raises(KeyboardInterrupt):
            loop.run_until_complete(main())
        assert ended == [0]
        loop.run_until_complete(turn())
        assert ended == [0, 2, 3]
        with pytest.raises(KeyboardInterrupt):
            tasks[1].result()
        assert not asyncio.all_tasks(loop)
    finally:
        loop.close()


async def test_confirm_before_the_task_awaits_it(task_factory: Any) -> None:
    class Late:
        """Passes what a coroutine awaits to the task later."""

        def __init__(self, how: str) -> None:
            self.how = how

        def __await__(self) -> Generator[Any, Any, Any]:
            inner = world.publisher.send(b'x').__await__()
            waits = next(inner)
            if self.how == 'confirmed':
                world.connection.confirm(0)
                yield from turn().__await__()
            else:
                session(world)._give_up(ValueError('the end'))
            yield waits
            return (yield from inner)

    async def late(how: str) -> None:
        await Late(how)

    world = World(task_factory)
    await asyncio.wait_for(world.task(late('confirmed')), 10)
    with pytest.raises(ValueError, match='the end'):
        await asyncio.wait_for(world.task(late('given up')), 10)


async def test_concurrent_flushes_and_a_cancelled_one() -> None:
    connection = Connection()
    publisher = attach(rbs.PublisherBatchFast, connection)
    publisher.batch(b'a')
    first = asyncio.create_task(publisher.flush())
    await turn()
    publisher.batch(b'b')
    others = [asyncio.create_task(publisher.flush()) for _ in range(3)]
    await turn()
    others[0].cancel()
    connection.confirm(1)
    await turn()
    assert [task.done() for task in (first, *others)] == [False, True, False, False]
    connection.refuse(0)
    await turn()
    outcome = await asyncio.gather(first, *others[1:], return_exceptions=True)
    assert all(isinstance(error, PublishError) for error in outcome)
    await publisher.flush()
    publisher.batch(b'c')
    pair = [asyncio.create_task(publisher.flush()) for _ in range(2)]
    await turn()
    connection.confirm(2)
    await asyncio.wait_for(asyncio.gather(*pair), 10)


async def test_failure_to_reopen_is_raised_each_time(task_factory: Any) -> None:
    world = World(task_factory)
    session(world).registration.reset()
    session(world).on_failed(StreamConnectionError('lost'))
    refuse = Mock(side_effect=StreamConnectionError('not here'))
    session(world).registration.cluster.deadline = refuse  # type: ignore[method-assign]
    for _ in range(2):
        with pytest.raises(StreamConnectionError, match='not here'):
            await world.publisher.send(b'x')
