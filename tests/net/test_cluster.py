"""Publishers and subscriptions on one node share connects and Metadata requests."""

import asyncio
from collections import Counter
from contextlib import AsyncExitStack, aclosing
from typing import Any

import pytest

import rbfly.streams as rbs
from rbfly.net.observer import Life, Observer, Role, State
from rbfly.net.pool import Pool
from rbfly.protocol.const import Key, ResponseCode
from rbfly.streams.error import AuthenticationError, ConnectTimeout, StreamConnectionError
from tests import fake_broker as wire
from tests.brokers import until
from tests.fake_broker import SILENT, FakeBroker, Frame, Step, refuse
from tests.fake_broker import FakeConnection as Peer
from tests.inside import cluster_of, locator_of
from tests.net.test_closing import Held

pytestmark = pytest.mark.own_clock

MANY = 300  # more than a connection has ids
NAMES = [f's{i}' for i in range(MANY)]
IDS = 256  # on a connection
CONNECTIONS = 2 * -(-MANY // IDS)  # publishing, and consuming
DECLARED = (Key.DECLARE_PUBLISHER, Key.SUBSCRIBE)


@pytest.fixture(autouse=True)
def attempts(monkeypatch: pytest.MonkeyPatch) -> Counter[Role]:
    """Count connects by role; fail if two connects to a node in one role overlap."""
    connect = Pool._connect
    running = set()
    made: Counter[Role] = Counter()

    async def counting(self: Pool, role: Role, node: Any, *args: Any) -> Any:
        assert (role, node) not in running
        running.add((role, node))
        made[role] += 1
        try:
            return await connect(self, role, node, *args)
        finally:
            running.discard((role, node))

    monkeypatch.setattr(Pool, '_connect', counting)
    return made


class IdleErrors(Observer):
    """Records the error of each registration that becomes idle."""

    def __init__(self) -> None:
        self.errors: list[Exception | None] = []

    def on_transition(
        self,
        registration: object,
        before: State | Life,
        after: State | Life,
        error: Exception | None,
    ) -> None:
        if after is State.IDLE:
            self.errors.append(error)


def now() -> float:
    return asyncio.get_running_loop().time()


async def publish(client: rbs.StreamsClient, name: str, leave: asyncio.Event) -> None:
    async with client.publisher(name):
        await leave.wait()


async def connecting(
    client: rbs.StreamsClient, fake: FakeBroker, held: Held, leave: asyncio.Event
) -> list[asyncio.Task[None]]:
    """Open many publishers, which all wait for one connection."""
    await client.stream_exists('test')
    fake.handlers[Step.OPEN] = held
    tasks = [asyncio.create_task(publish(client, name, leave)) for name in NAMES]
    await until(lambda: bool(held.requests), 'the client connects')
    return tasks


async def read(messages: rbs.Subscription) -> None:
    await anext(messages)


def subscriptions(client: rbs.StreamsClient) -> list[rbs.Subscription]:
    return [client.subscribe(name, offset=rbs.Offset.FIRST, amqp=False) for name in NAMES]


def declared_streams(peers: list[Peer], key: int) -> list[str]:
    return [frame.decode().stream for peer in peers for frame in peer.frames if frame.key == key]


def requested_streams(peers: list[Peer]) -> list[tuple[str, ...]]:
    """Return the streams of each Metadata request."""
    return [
        frame.decode().streams
        for peer in peers
        for frame in peer.frames
        if frame.key == Key.METADATA
    ]


async def test_300_publishers_and_subscriptions_open_and_recover_together(
    attempts: Counter[Role], monkeypatch: pytest.MonkeyPatch
) -> None:
    # No jitter: all reconnect in one turn.
    monkeypatch.setattr('random.uniform', lambda low, high: high)
    leave = asyncio.Event()
    async with (
        FakeBroker() as fake,
        rbs.streams_client(fake.uri) as client,
        AsyncExitStack() as stack,
    ):
        tasks = [asyncio.create_task(publish(client, name, leave)) for name in NAMES]
        for messages in subscriptions(client):
            await stack.enter_async_context(aclosing(messages))
            tasks.append(asyncio.create_task(read(messages)))
        for outage in range(3):
            first = outage * CONNECTIONS
            total = (outage + 1) * MANY
            await until(
                lambda total=total: all(  # type: ignore[misc]
                    len(declared_streams(fake.connections, key)) >= total for key in DECLARED
                ),
                'all publishers and subscriptions are declared',
            )
            await asyncio.sleep(0.01)  # for the responses
            peers = fake.connections[first:]
            assert len(peers) == CONNECTIONS
            for key in DECLARED:
                assert sorted(declared_streams(peers, key)) == sorted(NAMES)
            assert [sorted(names) for names in requested_streams(peers)] == [sorted(NAMES)]
            assert not any(task.done() for task in tasks)
            for peer in peers:
                peer.transport.abort()
        leave.set()
        await asyncio.gather(*tasks[:MANY])
        for task in tasks[MANY:]:
            task.cancel()
        await asyncio.gather(*tasks[MANY:], return_exceptions=True)
    assert attempts.keys() == {Role.PUBLISH, Role.CONSUME}


async def test_every_publisher_raises_the_connect_error(attempts: Counter[Role]) -> None:
    leave = asyncio.Event()
    async with FakeBroker() as fake, rbs.streams_client(fake.uri) as client:
        await client.stream_exists('test')
        recorder = IdleErrors()
        cluster_of(client).observers.add(recorder)
        fake.handlers[Step.SASL_AUTHENTICATE] = refuse(ResponseCode.AUTHENTICATION_FAILURE)
        found = await asyncio.gather(
            *(publish(client, name, leave) for name in NAMES), return_exceptions=True
        )
        assert {type(error) for error in found} == {AuthenticationError}
        assert len({id(error) for error in found}) == MANY, 'each raises its own exception'
        assert {id(error) for error in recorder.errors} == {id(error) for error in found}
        assert attempts[Role.PUBLISH] == 1
        assert len(fake.connections) == 2
        fake.handlers.clear()
        leave.set()
        await publish(client, 'test', leave)


async def test_shared_connect_survives_cancelled_waiters(attempts: Counter[Role]) -> None:
    held = Held()
    leave = asyncio.Event()
    async with FakeBroker() as fake, rbs.streams_client(fake.uri) as client:
        tasks = await connecting(client, fake, held, leave)
        for task in tasks[::2]:  # including the one that began the connect
            task.cancel()
        await asyncio.wait(tasks[::2])
        held.answer()
        leave.set()
        await asyncio.gather(*tasks[1::2])
        assert sorted(declared_streams(fake.connections, Key.DECLARE_PUBLISHER)) == sorted(
            NAMES[1::2]
        )
        assert attempts[Role.PUBLISH] == 1


async def test_shared_connect_is_cancelled_with_its_last_waiter(attempts: Counter[Role]) -> None:
    held = Held()
    leave = asyncio.Event()
    async with FakeBroker() as fake, rbs.streams_client(fake.uri) as client:
        tasks = await connecting(client, fake, held, leave)
        peer = fake.connections[-1]
        for task in tasks[1:]:
            task.cancel()
        await asyncio.wait(tasks[1:])
        await asyncio.sleep(0.01)
        assert not peer.lost.done()
        tasks[0].cancel()
        begin = now()
        await peer.lost
        assert now() - begin < 1, 'the connect is cancelled before its timeout'
        fake.handlers.clear()
        leave.set()
        await publish(client, 'test', leave)
        assert attempts[Role.PUBLISH] == 2


async def test_each_publisher_has_its_own_deadline() -> None:
    leave = asyncio.Event()
    async with FakeBroker() as fake, rbs.streams_client(fake.uri, reconnect_timeout=8) as client:
        await client.stream_exists('test')
        fake.handlers[Step.OPEN] = SILENT
        begin = now()
        early = [asyncio.create_task(publish(client, name, leave)) for name in NAMES[:10]]
        await asyncio.sleep(5)
        late = [asyncio.create_task(publish(client, name, leave)) for name in NAMES[10:]]
        found = await asyncio.gather(*early, return_exceptions=True)
        assert {type(error) for error in found} == {ConnectTimeout}
        assert all('while opening the virtual host' in str(error) for error in found)
        assert now() - begin == pytest.approx(8, abs=0.01)
        fake.handlers.clear()
        leave.set()
        await asyncio.gather(*late)
        assert wire.DECLARE_PUBLISHER in fake.connections[-1].commands()


async def test_cancelled_metadata_request_leaves_later_ones_alone() -> None:
    async with FakeBroker() as fake, rbs.streams_client(fake.uri) as client:
        await client.get_protocol()
        cluster, locator = cluster_of(client), locator_of(client)
        asked = asyncio.ensure_future(locator.locate('test', cluster.deadline()))
        await asyncio.sleep(0)  # the request is prepared, but its task has not begun
        (batch,) = locator._batches.values()
        batch._task.cancel()
        with pytest.raises(StreamConnectionError, match='cancelled'):
            await asked
        assert (await locator.locate('test', cluster.deadline())).leader


async def test_unanswered_metadata_request_delays_only_its_own_streams() -> None:
    names = [letter * 200 for letter in 'abc']  # two of them fit into a frame

    def metadata(connection: Peer, request: Frame) -> None:
        if names[2] in request.decode().streams:
            fake.default(connection, request)

    async with (
        FakeBroker(tune=(512, 60), on={wire.METADATA: metadata}) as fake,
        rbs.streams_client(fake.uri) as client,
    ):
        await client.get_protocol()
        cluster, locator = cluster_of(client), locator_of(client)
        asked = [asyncio.create_task(locator.locate(name, cluster.deadline())) for name in names]
        assert (await asked[2]).leader
        assert requested_streams(fake.connections) == [(names[0], names[1]), (names[2],)]
        assert not any(task.done() for task in asked[:2])
        for task in asked:
            task.cancel()
        await asyncio.gather(*asked, return_exceptions=True)
