"""Every public method refuses another event loop, thread or process before it changes anything."""

import asyncio
import contextlib
import inspect
import os
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any

import pytest
import uvloop

import rbfly.streams as rbs
from rbfly.streams._consume._iteration import MessageIterator
from rbfly.streams._publish.confirmation import Confirmation
from rbfly.streams.error import EventLoopError
from rbfly.streams.events import Events
from rbfly.testing import StreamBroker
from tests.inside import cluster_of, cursor_of, session_of, window_of

HANG = 20.0  # seconds; only a safeguard
NEW_LOOPS = [
    pytest.param(asyncio.new_event_loop, marks=pytest.mark.nightly),
    uvloop.new_event_loop,
]

PUBLISHERS: list[Any] = [
    rbs.Publisher,
    rbs.PublisherBin,
    rbs.PublisherBatch,
    rbs.PublisherBatchFast,
    rbs.PublisherBatchLimit,
    rbs.PublisherBatchMem,
    rbs.PublisherBinBatch,
]

Call = Callable[[Any], Any]

SEND: dict[str, Call] = {
    'close': lambda p: p.close(),
    'send': lambda p: p.send(b'x'),
    'submit': lambda p: p.submit(b'x'),
    'send_many': lambda p: p.send_many([b'x']),
    'send_atomic': lambda p: p.send_atomic([b'x']),
    'batch': lambda p: p.batch(b'x'),
    'flush': lambda p: p.flush(),
}
LIMITED: dict[str, Call] = {'batch': lambda p: p.batch(b'x', max_len=10)}

READ: dict[str, Call] = {
    '__anext__': lambda s: s.__anext__(),
    '__aexit__': lambda s: s.__aexit__(None, None, None),
    'close': lambda s: s.close(),
    'aclose': lambda s: s.aclose(),
    'commit': lambda s: s.commit(),
    'messages': lambda s: s.messages().__anext__(),
    'batches': lambda s: s.batches(1).__anext__(),
    'fetch': lambda s: s.fetch(1),
    'open': lambda s: s.open(),
    'stop': lambda s: s.stop(),
    'hooks': lambda s: s.hooks().__enter__(),
}
# A call of each public method.
CALLS: dict[type[Any], dict[str, Call]] = {
    rbs.StreamsClient: {
        '__aenter__': lambda c: c.__aenter__(),
        '__aexit__': lambda c: c.__aexit__(None, None, None),
        'get_protocol': lambda c: c.get_protocol(),
        'ping': lambda c: c.ping(),
        'health': lambda c: c.health(),
        'describe': lambda c: c.describe(),
        'reconnect': lambda c: c.reconnect(),
        'close': lambda c: c.close(),
        'disconnect': lambda c: c.disconnect(),
        'events': lambda c: c.events(),
        'create_stream': lambda c: c.create_stream('other'),
        'delete_stream': lambda c: c.delete_stream(STREAM),
        'stream_exists': lambda c: c.stream_exists(STREAM),
        'stream_stats': lambda c: c.stream_stats(STREAM),
        'publisher': lambda c: c.publisher(STREAM, name='p').__aenter__(),
        'subscribe': lambda c: c.subscribe(STREAM),
        'write_offset': lambda c: c.write_offset(STREAM, 'reader', 1),
        'read_offset': lambda c: c.read_offset(STREAM, 'reader'),
        'references': lambda c: c.references(STREAM),
        'resolve_offset': lambda c: c.resolve_offset(STREAM, rbs.Offset.NEXT),
        'lag': lambda c: c.lag(STREAM, 'reader'),
    },
    rbs.SuperStream: {
        'create': lambda s: s.create(partitions=2),
        'delete': lambda s: s.delete(),
        'exists': lambda s: s.exists(),
        'partitions': lambda s: s.partitions(),
        'publisher': lambda s: s.publisher(route=rbs.by_hash(str), name='p').__aenter__(),
        'subscribe': lambda s: s.subscribe(),
        'lag': lambda s: s.lag('reader'),
        'read_offset': lambda s: s.read_offset('reader'),
        'write_offset': lambda s: s.write_offset('reader', {f'{SUPER_STREAM}-0': 1}),
    },
    rbs.Publisher: SEND,
    rbs.PublisherBin: SEND,
    rbs.PublisherBatch: SEND,
    rbs.PublisherBatchFast: SEND,
    rbs.PublisherBatchLimit: SEND | LIMITED,
    rbs.PublisherBatchMem: SEND | LIMITED,
    rbs.PublisherBinBatch: SEND,
    rbs.SuperStreamPublisher: SEND,
    rbs.Subscription: READ,
    rbs.SuperStreamSubscription: READ,
    MessageIterator: {'__anext__': lambda i: i.__anext__()},
    Confirmation: {'__await__': lambda c: c, '__iter__': lambda c: c},
    Events: {
        '__anext__': lambda e: e.__anext__(),
        'close': lambda e: e.close(),
        'aclose': lambda e: e.aclose(),
    },
}

# More ways to call them.
VARIANTS: dict[type[Any], dict[str, Call]] = {
    rbs.StreamsClient: {
        'publisher, awaited': lambda c: c.publisher(STREAM, name='p'),
        'publisher, in the background': lambda c: c.publisher(STREAM, name='p', wait=False),
    },
    rbs.Subscription: {'batches, joined': lambda s: s.batches(1, max_wait=0).__anext__()},
}

# Public names that may be used anywhere, and why.
READ_ONLY = 'only reads'
RETURNS_SELF = 'only returns the object'
RAISES = 'only raises an error'
FUTURE = 'inherited from asyncio.Future'
EXEMPT: dict[type[Any], dict[str, str]] = {
    rbs.StreamsClient: {
        'connected': READ_ONLY,
        'metrics': 'any thread may read it',
        'server_properties': READ_ONLY,
        'super_stream': 'sends nothing',
    },
    rbs.SuperStream: {},
    **{
        cls: dict.fromkeys(('next_publish_id', 'message_id', 'unconfirmed', 'capacity'), READ_ONLY)
        for cls in PUBLISHERS
    },
    rbs.SuperStreamPublisher: dict.fromkeys(
        ('next_publish_id', 'next_publish_ids', 'message_id', 'unconfirmed', 'capacity'), READ_ONLY
    ),
    rbs.Subscription: {
        '__aiter__': RETURNS_SELF,
        '__aenter__': RETURNS_SELF,
        '__await__': RAISES,
        '__iter__': RAISES,
        'active': READ_ONLY,
        'position': READ_ONLY,
    },
    rbs.SuperStreamSubscription: {
        '__aiter__': RETURNS_SELF,
        '__aenter__': RETURNS_SELF,
        '__await__': RAISES,
        '__iter__': RAISES,
        'active': READ_ONLY,
        'position': READ_ONLY,
    },
    MessageIterator: {'__aiter__': RETURNS_SELF},
    Events: {'__aiter__': RETURNS_SELF},
    Confirmation: {name: FUTURE for name in dir(asyncio.Future) if name[0] != '_'}
    | dict.fromkeys(('failure', 'seen'), READ_ONLY),
}

PROTOCOL = ('__aenter__', '__aexit__', '__aiter__', '__anext__', '__await__', '__iter__')
STREAM = 'owned'
SUPER_STREAM = 'owned-super'


@pytest.mark.parametrize('cls', CALLS, ids=lambda cls: cls.__name__)
def test_every_public_method_is_covered(cls: type[Any]) -> None:
    # Names that only raise AttributeError are no methods.
    names = [name for name in dir(cls) if hasattr(cls, name)]
    public = {name for name in names if not name.startswith('_') or name in PROTOCOL}
    assert public == CALLS[cls].keys() | EXEMPT[cls].keys()
    assert not CALLS[cls].keys() & EXEMPT[cls].keys()


def test_every_stateful_public_class_is_covered() -> None:
    values = [rbs.Offset, rbs.OffsetTracking, rbs.MessageFilter, rbs.MessageCtx]  # usable anywhere
    values += [rbs.BasePublisher, rbs.BaseSubscription]  # the bases of those below
    values.append(rbs.SendProgress)  # bound to a loop by `send_many`; see its own tests
    stateful = {
        item
        for name in rbs.__all__
        if isinstance(item := getattr(rbs, name), type)
        and item not in values
        and any(inspect.iscoroutinefunction(getattr(item, m, None)) for m in dir(item))
    }
    assert stateful <= CALLS.keys()


# -- use from other loops, threads and processes


async def call_and_await(call: Call, owned: Any) -> None:
    result = call(owned)
    if isinstance(result, Awaitable):
        await result


def call_in_loop(call: Call, owned: Any, run_loop: Callable[[Any], object] = asyncio.run) -> str:
    """Call in a new event loop, or the one that `run_loop` runs, and return the error."""
    try:
        run_loop(call_and_await(call, owned))
    except BaseException as ex:
        return repr(ex)
    return 'no error'


def call_without_loop(call: Call, owned: Any) -> str:
    """Call without an event loop, and return the error."""
    try:
        call_and_await(call, owned).send(None)
    except BaseException as ex:
        return repr(ex)
    return 'no error'


def in_thread(function: Callable[..., str], *args: Any) -> str:
    found: list[str] = []
    thread = threading.Thread(target=lambda: found.append(function(*args)), daemon=True)
    thread.start()
    thread.join(HANG)
    return found[0] if found else 'hangs'


def in_child(function: Callable[..., str], *args: Any) -> str:
    """Call a function in a child, forked while a task is running, and return its result."""
    source, sink = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.write(sink, function(*args).encode())
        finally:
            os._exit(0)
    os.close(sink)
    try:
        with open(source, 'rb') as file:
            return file.read().decode()
    finally:
        os.waitpid(pid, 0)


INSIDE: dict[str, Callable[[Call, Any], str]] = {
    'event loop of another thread': lambda *args: in_thread(call_in_loop, *args),
    'thread without an event loop': lambda *args: in_thread(call_without_loop, *args),
    'event loop of a forked child': lambda *args: in_child(call_in_loop, *args),
    'forked child': lambda *args: in_child(call_without_loop, *args),
}
NEXT_LOOP = 'next event loop'
SAME_LOOP = 'same event loop in a forked child'


# -- objects in use


@pytest.fixture(scope='module')
def memory_broker() -> Iterator[StreamBroker]:
    with StreamBroker() as broker:
        yield broker


@contextlib.asynccontextmanager
async def owned_by(client: rbs.StreamsClient, cls: type[Any]) -> AsyncIterator[Any]:
    """Create an object and use it: publishers have sent, subscriptions have messages left."""
    if cls is rbs.StreamsClient:
        yield client
    elif cls is rbs.SuperStream:
        yield client.super_stream(SUPER_STREAM)
    elif cls is Events:
        yield client.events()
    elif cls is Confirmation:
        async with client.publisher(STREAM) as publisher:
            yield await publisher.submit(b'x')
    elif cls in PUBLISHERS:
        async with client.publisher(STREAM, cls=cls) as publisher:
            await publisher.send(b'x')
            yield publisher
    elif cls is rbs.SuperStreamPublisher:
        route = rbs.by_hash(repr)
        async with client.super_stream(SUPER_STREAM).publisher(route=route) as publisher:
            await publisher.send(b'x')
            yield publisher
    else:
        messages: rbs.Subscription | rbs.SuperStreamSubscription
        if cls is rbs.SuperStreamSubscription:
            messages = client.super_stream(SUPER_STREAM).subscribe(offset=rbs.Offset.FIRST)
        else:
            messages = client.subscribe(STREAM, offset=rbs.Offset.FIRST, amqp=False)
        async with messages:
            assert await anext(messages)
            yield messages.messages() if cls is MessageIterator else messages


async def touch(owned: Any) -> None:
    """Use the object, so that it knows the current task step to be in its event loop."""
    if isinstance(owned, rbs.Publisher | rbs.SuperStreamPublisher):
        await owned.send(b'y')
    elif isinstance(owned, rbs.Subscription | rbs.SuperStreamSubscription | MessageIterator):
        await anext(owned)


def state(client: rbs.StreamsClient, owned: Any) -> object:
    """Return everything that a call could have changed."""
    found: list[object] = [client._users, {*client._names}, cluster_of(client).generation]
    if isinstance(owned, rbs.Publisher):
        found += [owned.message_id, window_of(owned).unsettled, session_of(owned).state]
    if isinstance(owned, rbs.SuperStreamPublisher):
        found += [owned.message_id, owned.unconfirmed, owned.capacity]
    if isinstance(owned, rbs.Subscription):
        cursor = cursor_of(owned)
        found += [cursor.position, cursor.unfinished, session_of(owned).closed]
    if isinstance(owned, rbs.SuperStreamSubscription):
        found += [owned.position, session_of(owned).closed]
    return found


CASES = [
    (cls, name) for calls in (CALLS, VARIANTS) for cls, found in calls.items() for name in found
]


@pytest.mark.filterwarnings('ignore::DeprecationWarning')  # deprecated names; fork with threads
@pytest.mark.filterwarnings('ignore:coroutine:RuntimeWarning')
@pytest.mark.parametrize('new_loop', NEW_LOOPS, ids=['asyncio', 'uvloop'])
@pytest.mark.parametrize('user', [*INSIDE, NEXT_LOOP, SAME_LOOP])
@pytest.mark.parametrize(('cls', 'name'), CASES, ids=lambda item: getattr(item, '__name__', item))
def test_method_refuses_other_loops_threads_and_processes(
    memory_broker: StreamBroker,
    cls: type[Any],
    name: str,
    user: str,
    new_loop: Callable[[], asyncio.AbstractEventLoop],
) -> None:
    if STREAM not in memory_broker.streams:
        memory_broker.create_stream(STREAM)
        memory_broker.publish(STREAM, 1, 2, 3)
        memory_broker.create_super_stream(SUPER_STREAM, partitions=2)
        memory_broker.publish(f'{SUPER_STREAM}-0', 1, 2, 3)
    client = rbs.streams_client(memory_broker.uri)
    call = (CALLS[cls] | VARIANTS.get(cls, {}))[name]
    loop = new_loop()
    in_use = owned_by(client, cls)

    async def begin() -> Any:
        await client.__aenter__()
        await client.get_protocol()
        return await in_use.__aenter__()

    async def inside(owned: Any) -> tuple[str, object]:
        await touch(owned)
        before = state(client, owned)
        return INSIDE[user](call, owned), before

    async def end() -> None:
        await in_use.__aexit__(None, None, None)
        await client.__aexit__(None, None, None)

    if cls is Confirmation:
        memory_broker.withhold_confirms()
    owned = loop.run_until_complete(begin())
    try:
        if user == NEXT_LOOP:
            before = state(client, owned)
            found = call_in_loop(call, owned)
        elif user == SAME_LOOP:
            before = state(client, owned)
            found = in_child(call_in_loop, call, owned, loop.run_until_complete)
        else:
            found, before = loop.run_until_complete(inside(owned))
        assert found.startswith(EventLoopError.__name__)
        assert 'asyncio.run_coroutine_threadsafe(coroutine, loop)' in found
        assert 'one client per process' in found
        assert state(client, owned) == before
    finally:
        memory_broker.heal()
        loop.run_until_complete(end())
        loop.close()
