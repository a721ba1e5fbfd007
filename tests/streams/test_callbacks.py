"""Functions and iterators of the program may raise anything: the program gets its own error."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest
import pytest_asyncio

import rbfly.streams as rbs
from rbfly.error import AMQPDecoderError, ArgumentTypeError, OffsetNotStored, SubscriptionClosed
from rbfly.testing import StreamBroker
from tests.brokers import until
from tests.super_streams import subscribe_to

HANG = 20.0  # seconds; only a safeguard


class Own(Exception):
    """An error that cannot be copied."""

    def __init__(self, first: int, second: int) -> None:
        super().__init__(f'{first} {second}')


class Base(BaseException):
    pass


ERRORS: dict[str, Callable[[], BaseException]] = {
    'its own class': lambda: Own(1, 2),
    'no Exception': Base,
    'StopIteration': StopIteration,
    'StopAsyncIteration': StopAsyncIteration,
    'CancelledError': asyncio.CancelledError,
    'TimeoutError': TimeoutError,
    'StreamConnectionError': lambda: rbs.StreamConnectionError('of the program'),
    'StreamDoesNotExist': lambda: rbs.StreamDoesNotExist('other'),
    'SubscriptionClosed': lambda: SubscriptionClosed('of the program'),
    'OffsetNotStored': lambda: OffsetNotStored('of the program'),
    'ArgumentError': lambda: rbs.ArgumentError('of the program'),
}
STOPS = StopIteration, StopAsyncIteration
# of what an async function has awaited: the task that reads was not cancelled
SILENT = *STOPS, asyncio.CancelledError


@pytest.fixture(params=[*ERRORS])
def error(request: pytest.FixtureRequest) -> BaseException:
    return ERRORS[request.param]()


@pytest_asyncio.fixture
async def client() -> AsyncIterator[rbs.StreamsClient]:
    async with StreamBroker() as broker, rbs.streams_client(broker.uri) as client:
        broker.create_stream('events')
        broker.create_super_stream('orders', partitions=2)
        yield client


@contextlib.contextmanager
def raising(
    error: BaseException, where: str, silent: tuple[type[BaseException], ...] = STOPS
) -> Iterator[None]:
    """Expect the error itself with a note, or a RuntimeError that it has caused."""
    expected = RuntimeError if isinstance(error, silent) else type(error)
    with pytest.raises(expected) as caught:
        yield
    found = caught.value
    assert (found.__cause__ if isinstance(error, silent) else found) is error
    assert where in '\n'.join([str(found), *getattr(found, '__notes__', [])])


# -- reading

WAYS: dict[str, Callable[[Any], Any]] = {
    'bodies': lambda messages: anext(messages),
    'contexts': lambda messages: anext(messages.messages()),
    'batches': lambda messages: anext(messages.batches()),
    'joined batches': lambda messages: anext(messages.batches(max_wait=0.01)),
    'fetch': lambda messages: messages.fetch(),
    'open': lambda messages: messages.open(),
}
KINDS: dict[str, dict[str, Any]] = {
    'stream': {},
    'group': {'group': 'g'},
    'super stream': {'super_stream': True},
    'group of a super stream': {'super_stream': True, 'group': 'g'},
}


@pytest.mark.parametrize(
    ('kind', 'way'),
    # a member is open before it asks for the offset
    [(kind, way) for kind in KINDS for way in WAYS if way != 'open' or 'group' not in kind],
)
async def test_offset_function(
    client: rbs.StreamsClient, error: BaseException, kind: str, way: str
) -> None:
    calls = []

    async def offset(stream: str) -> rbs.Offset:
        calls.append(stream)
        if len(calls) > 4:
            return rbs.Offset.FIRST  # after too many tries
        raise error

    stream = 'orders' if 'super' in kind else 'events'
    async with (
        asyncio.timeout(HANG),
        contextlib.aclosing(subscribe_to(client, stream, offset=offset, **KINDS[kind])) as messages,
    ):
        with raising(error, 'the function given as offset=', SILENT):
            await WAYS[way](messages)
        assert len(calls) == len(set(calls))


async def test_offset_function_is_cancelled_with_its_subscription(
    client: rbs.StreamsClient,
) -> None:
    outcomes: list[BaseException] = []
    called = asyncio.Event()

    async def offset(stream: str) -> rbs.Offset:
        called.set()
        try:
            await asyncio.Event().wait()
        except BaseException as ex:
            outcomes.append(ex)
            raise
        raise AssertionError

    messages: rbs.Subscription = client.subscribe('events', offset=offset)
    waiting = asyncio.ensure_future(messages.fetch())
    await called.wait()
    await messages.aclose()
    with pytest.raises(SubscriptionClosed):
        await waiting
    await until(lambda: len(outcomes) == 1, 'the function ends')
    assert isinstance(outcomes[0], asyncio.CancelledError)
    assert not hasattr(outcomes[0], '__notes__')


@pytest.mark.parametrize('way', [way for way in WAYS if way != 'open'])
async def test_filter(client: rbs.StreamsClient, error: BaseException, way: str) -> None:
    def extract(ctx: rbs.MessageCtx) -> str:
        raise error

    def value(ctx: rbs.MessageCtx) -> str:
        return 'a'

    async with client.publisher('events', filter_extract=value) as publisher:
        await publisher.send('x')
    failing = rbs.MessageFilter(extract, {'a'})
    async with (
        asyncio.timeout(HANG),
        client.subscribe('events', offset=rbs.Offset.FIRST, filter=failing) as messages,
    ):
        with raising(error, '`extract` of MessageFilter'):
            await WAYS[way](messages)


@pytest.mark.parametrize('value', [0, 5])
async def test_filter_value_of_another_type(client: rbs.StreamsClient, value: Any) -> None:
    """The messages are not silently dropped, as if they had another value."""
    async with client.publisher('events', filter_extract=lambda _: str(value)) as publisher:
        await publisher.send('x')
    wanted = rbs.MessageFilter(lambda _: value, {str(value)})
    async with (
        asyncio.timeout(HANG),
        client.subscribe('events', offset=rbs.Offset.FIRST, filter=wanted) as messages,
    ):
        with pytest.raises(ArgumentTypeError, match='must return str or None, not int'):
            await anext(messages)


# -- publishing


async def batch(publisher: Any) -> None:
    publisher.batch('x')


async def one_by_one() -> AsyncIterator[str]:
    yield 'x'


SENDS: dict[str, Callable[[Any], Any]] = {
    'send': lambda publisher: publisher.send('x'),
    'submit': lambda publisher: publisher.submit('x'),
    'batch': batch,
    'list': lambda publisher: publisher.send_many(['x']),
    'iterator': lambda publisher: publisher.send_many(iter(['x'])),
    'async iterator': lambda publisher: publisher.send_many(one_by_one()),
}


class Names:
    """Names of partitions that cannot be iterated over."""

    def __init__(self, failing: Callable[[Any], Any]) -> None:
        self.failing = failing

    def __iter__(self) -> Any:
        return self.failing(self)


ROUTES: dict[str, Callable[[Any], Any]] = {
    'the key function of by_hash': rbs.by_hash,
    'the key function of by_key': rbs.by_key,
    '`route`': lambda failing: lambda message, partitions: failing(message),
    '`route` for': lambda failing: lambda message, partitions: Names(failing),
}


@pytest.mark.parametrize('way', [*SENDS])
@pytest.mark.parametrize('where', [*ROUTES])
async def test_route(client: rbs.StreamsClient, error: BaseException, where: str, way: str) -> None:
    def failing(message: object) -> str:
        raise error

    opener = client.super_stream('orders').publisher(route=ROUTES[where](failing))
    async with asyncio.timeout(HANG), opener as publisher:
        with raising(error, where):
            await SENDS[way](publisher)


@pytest.mark.parametrize('way', [*SENDS])
async def test_filter_extract(client: rbs.StreamsClient, error: BaseException, way: str) -> None:
    def extract(ctx: rbs.MessageCtx) -> str:
        raise error

    opener = client.publisher('events', filter_extract=extract)
    async with asyncio.timeout(HANG), opener as publisher:
        with raising(error, 'filter_extract'):
            await SENDS[way](publisher)


class Failing:
    """An iterator whose second message fails, or whose iteration cannot begin."""

    def __init__(self, error: BaseException, begins: bool) -> None:
        self.error = error
        self.begins = begins
        self.count = 0

    def begin(self) -> Any:
        if not self.begins:
            raise self.error
        return self

    def next(self) -> str:
        self.count += 1
        if self.count > 1:
            raise self.error
        return '0 x'


class FailingSync(Failing):
    def __iter__(self) -> Any:
        return self.begin()

    def __next__(self) -> str:
        return self.next()


class FailingAsync(Failing):
    def __aiter__(self) -> Any:
        return self.begin()

    async def __anext__(self) -> str:
        return self.next()


FAILING = [
    (cls, name, begins)
    for cls in (FailingSync, FailingAsync)
    for name in ERRORS
    for begins in (True, False)
    # what ends an iterator, or what Python does not let an async function raise
    if not begins or name != 'StopIteration'
    if not begins or name != 'StopAsyncIteration' or cls is FailingSync
]


@pytest.mark.parametrize('routed', [True, False])
@pytest.mark.parametrize(('cls', 'name', 'begins'), FAILING)
async def test_iterator_of_send_many(
    client: rbs.StreamsClient, cls: Any, name: str, begins: bool, routed: bool
) -> None:
    error = ERRORS[name]()
    target: Any = (
        client.super_stream('orders').publisher(route=rbs.by_hash(str))
        if routed
        else client.publisher('events')
    )
    progress = rbs.SendProgress()
    async with asyncio.timeout(HANG), target as publisher:
        with raising(error, 'the iterator given to send_many'):
            await publisher.send_many(cls(error, begins), progress=progress)
    assert progress.taken == begins


async def test_note_shows_the_message(client: rbs.StreamsClient) -> None:
    by_customer = rbs.by_hash(lambda order: order['customer'])
    async with client.super_stream('orders').publisher(route=by_customer) as publisher:
        with pytest.raises(KeyError) as caught:
            await publisher.send({'id': 1})
        [note] = caught.value.__notes__
        assert note == "raised by the key function of by_hash for the message {'id': 1}"
        with pytest.raises(TypeError) as refused:
            await publisher.send(rbs.Message({'customer': 'a'}))
        assert 'for the message Message(' in refused.value.__notes__[0]


async def test_same_error_has_one_note(client: rbs.StreamsClient) -> None:
    error = Own(1, 2)

    def failing(message: object) -> str:
        raise error

    async with client.super_stream('orders').publisher(route=rbs.by_hash(failing)) as publisher:
        for _ in range(3):
            with pytest.raises(Own):
                await publisher.send('x')
    assert len(error.__notes__) == 1


async def test_event_of_a_failed_offset_function_has_its_error(client: rbs.StreamsClient) -> None:
    error = AMQPDecoderError('of the program')

    async def offset(stream: str) -> rbs.Offset:
        raise error

    events = client.events()
    async with contextlib.aclosing(client.subscribe('events', offset=offset)) as messages:
        with pytest.raises(AMQPDecoderError):
            await anext(messages)
    async for event in events:
        if isinstance(event, rbs.RecoveryFailed):
            assert event.error is error
            break
