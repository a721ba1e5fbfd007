"""The documented ways to resume `send_many` through faults: nothing is lost or stored twice."""

import ast
import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

import rbfly.streams as rbs
from rbfly.amqp import decode_amqp
from rbfly.net import retry
from rbfly.streams.error import PublishError, StreamDoesNotExist
from rbfly.testing import StreamBroker
from tests.brokers import until
from tests.examples import examples
from tests.inside import cluster_of
from tests.streams.publish.test_publish import stored

COUNT = 2000
NAMES = pytest.mark.parametrize('name', [None, 'loader'])
WINDOWS = pytest.mark.parametrize('window', [1, 7, 100])


@pytest.fixture(autouse=True)
def _retry_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retry, 'BACKOFF_FIRST', 0.001)
    monkeypatch.setattr(retry, 'BACKOFF_LAST', 0.01)


def bodies(count: int = COUNT) -> list[Any]:
    return [b'%d' % i for i in range(count)]


class Program:
    """The functions of a documented program.

    :param function: a function of the program, by which it is found.
    :param changes: replacements in its source.
    :ivar names: the functions by their names.
    :ivar said: their output.
    """

    def __init__(self, function: str, **changes: str) -> None:
        (code,) = [code for _, code in examples() if f'async def {function}(' in code]
        for old, new in changes.items():
            assert old in code
            code = code.replace(old, new)
        tree = ast.parse(code)
        tree.body = [item for item in tree.body if not isinstance(item, ast.Expr)]  # it runs them
        self.said: list[str] = []
        self.names: dict[str, Any] = {'print': lambda *texts: self.said.append(str(texts))}
        exec(compile(tree, function, 'exec'), self.names)


def cut(client: rbs.StreamsClient) -> None:
    """Lose the connections of all publishers."""
    registrations: list[Any] = list(cluster_of(client).registrations)
    for connection in [registration.connection for registration in registrations]:
        if connection is not None and connection._transport is not None:
            connection._transport.abort()


# -- `send_all`: a list, sent by a publisher that stays open


class Sending:
    """Calls `send_all` with the same list until the list is empty.

    :param seconds: timeout of `send_many`.
    :ivar errors: errors of the calls that failed.
    """

    def __init__(
        self, publisher: rbs.Publisher, messages: list[Any], seconds: str = '0.02'
    ) -> None:
        self.program = Program('send_all', **{'timeout=10': f'timeout={seconds}'})
        self.publisher = publisher
        self.messages = messages
        self.progress = rbs.SendProgress()
        self.errors: list[BaseException] = []
        self.call = self.start()
        self.all = asyncio.create_task(self.run())

    def start(self) -> asyncio.Task[None]:
        send_all = self.program.names['send_all']
        return asyncio.create_task(send_all(self.publisher, self.messages, self.progress))

    async def run(self) -> None:
        while True:
            (outcome,) = await asyncio.gather(self.call, return_exceptions=True)
            if outcome is None:
                break
            self.errors.append(outcome)
            self.call = self.start()


@NAMES
@WINDOWS
async def test_cancelled(
    client: rbs.StreamsClient, stream: str, name: str | None, window: int
) -> None:
    messages = bodies()
    async with client.publisher(stream, name=name, amqp=False, max_unconfirmed=window) as publisher:
        sending = Sending(publisher, messages, '60')
        for turns in range(25):
            for _ in range(turns):
                await asyncio.sleep(0)
            sending.call.cancel()
        await sending.all
    assert {type(error) for error in sending.errors} <= {asyncio.CancelledError}
    assert sending.errors
    assert await stored(client, stream) == bodies()


@NAMES
@WINDOWS
async def test_timeouts(
    client: rbs.StreamsClient, stream: str, name: str | None, window: int
) -> None:
    async with client.publisher(stream, name=name, amqp=False, max_unconfirmed=window) as publisher:
        sending = Sending(publisher, bodies(), '0.0001')
        await sending.all
    assert sending.program.said
    assert sending.errors == []
    assert await stored(client, stream) == bodies()


@WINDOWS
@NAMES
async def test_connections_are_lost(
    client: rbs.StreamsClient, stream: str, name: str | None, window: int
) -> None:
    async with client.publisher(stream, name=name, amqp=False, max_unconfirmed=window) as publisher:
        sending = Sending(publisher, bodies(), '60')
        for part in range(1, 4):
            await until(lambda: publisher.message_id > part * COUNT // 5, 'the publisher sends')  # noqa: B023
            cut(client)
        await sending.all
    assert sending.errors == []
    found = await stored(client, stream)
    if name is not None:
        assert found == bodies()
    else:  # sent again: at most what was unconfirmed
        assert list(dict.fromkeys(found)) == bodies()
        assert len(found) - COUNT <= 3 * window


class World:
    """A broker in memory, and a documented program that sends to it."""

    def __init__(
        self, broker: StreamBroker, program: Program, progress: rbs.SendProgress | None = None
    ) -> None:
        self.broker = broker
        self.said = program.said
        self.progress = progress or rbs.SendProgress()
        self.errors: list[BaseException] = []
        self.cancel: Callable[[], object]

    async def timed_out(self) -> None:
        """Wait until `send_many` times out, or the program waits for the rest of such a call."""
        n = len(self.said)
        await until(
            lambda: len(self.said) > n or bool(self.progress.unknown), 'send_many has timed out'
        )

    async def failed(self, before: int) -> None:
        """Wait until another call has ended with an error."""
        await until(lambda: len(self.errors) > before, 'send_many has failed')


async def confirms_come_late(world: World) -> None:
    world.broker.withhold_confirms()
    await world.timed_out()
    world.broker.heal()


async def confirms_come_in_any_order(world: World) -> None:
    world.broker.shuffle_confirms()


async def messages_are_refused(world: World) -> None:
    before = len(world.errors)
    world.broker.publish_error(0x11, 5)
    await world.failed(before)
    assert isinstance(world.errors[-1], PublishError)


async def cancelled_while_confirms_are_late(world: World) -> None:
    before = len(world.errors)
    world.broker.withhold_confirms()
    await world.timed_out()
    world.cancel()
    world.broker.heal()
    await world.failed(before)


async def cancelled_while_messages_are_refused(world: World) -> None:
    before = len(world.errors)
    world.broker.publish_error(0x11, 3)
    await asyncio.sleep(0)
    world.cancel()
    await world.failed(before)


async def cut_before_the_confirms(world: World) -> None:
    world.broker.withhold_confirms()
    await world.timed_out()
    world.broker.cut()
    world.broker.heal()


async def confirms_are_lost(world: World) -> None:
    world.broker.lose_confirms(3)
    await world.timed_out()
    world.broker.heal()
    world.broker.cut()


async def leader_moves(world: World) -> None:
    world.broker.move_leader('s', 1 - world.broker.leader('s'))


async def node_restarts(world: World) -> None:
    node = world.broker.leader('s')
    world.broker.stop_node(node)
    world.broker.start_node(node)


async def outage_is_too_long(world: World) -> None:
    world.broker.refuse()
    world.broker.cut()
    await world.timed_out()
    world.broker.heal()


Fault = Callable[[World], Awaitable[None]]
# With the timeout of `send_many` in seconds.
EXACT: list[tuple[Fault, str]] = [
    (confirms_come_late, '0.02'),
    (confirms_come_in_any_order, '60'),
    (messages_are_refused, '60'),
    (cancelled_while_confirms_are_late, '0.02'),
    (cancelled_while_messages_are_refused, '60'),
]
RESENDING: list[tuple[Fault, str]] = [
    (cut_before_the_confirms, '0.02'),
    (confirms_are_lost, '0.02'),
    (leader_moves, '60'),
    (node_restarts, '60'),
]


@pytest.mark.parametrize(
    ('name', 'fault', 'seconds'),
    [(name, *item) for item in EXACT for name in (None, 'loader')]
    + [('loader', *item) for item in RESENDING],
)
@WINDOWS
async def test_faults(name: str | None, fault: Fault, seconds: str, window: int) -> None:
    async with StreamBroker(nodes=2) as broker, rbs.streams_client(broker.uri) as client:
        broker.create_stream('s')
        async with client.publisher(
            's', name=name, amqp=False, max_unconfirmed=window
        ) as publisher:
            for turn in range(2):
                sending = Sending(publisher, bodies(), seconds)
                world = World(broker, sending.program, sending.progress)
                world.errors, world.cancel = sending.errors, lambda: sending.call.cancel()  # noqa: B023
                await broker.wait_for('s', turn * COUNT + COUNT // 10, raw=True)
                await fault(world)
                await sending.all
                broker.heal()
        found = broker.messages('s', raw=True)
    sent = bodies() * 2
    assert Counter(found) == Counter(sent)
    if 'refused' not in fault.__name__:  # refused messages are stored after the others
        assert found == sent


@NAMES
async def test_sending_continues_when_the_stream_is_created_again(
    client: rbs.StreamsClient, stream: str, name: str | None
) -> None:
    count = 3000
    async with client.publisher(stream, name=name, amqp=False, max_unconfirmed=1) as publisher:
        while True:
            begin = publisher.message_id
            sending = Sending(publisher, bodies(count), '60')
            await until(lambda: publisher.message_id > begin + 10, 'the publisher sends')  # noqa: B023
            await client.delete_stream(stream)
            await until(lambda: bool(sending.errors) or sending.all.done(), 'send_many has ended')  # noqa: B023
            await client.create_stream(stream)
            if sending.errors:
                break  # else the broker deleted the stream after the last message
        await sending.all
    assert {type(error) for error in sending.errors} == {StreamDoesNotExist}
    found = await stored(client, stream)
    assert 0 < len(found) < count
    assert found == bodies(count)[-len(found) :]


# -- `load`: the same messages in the same order, sent by a named publisher


ORDERS = [{'id': i} for i in range(COUNT)]


def load(stream: str, window: int, seconds: str) -> Program:
    change = f"'{stream}', max_unconfirmed={window}, "
    changes = {'timeout=10': f'timeout={seconds}', 'range(1000)': f'range({COUNT})'}
    return Program('load', **{"'orders', ": change, **changes})


@pytest.mark.parametrize('window', [7, 200])
async def test_interrupted_load_is_run_again(
    client: rbs.StreamsClient, broker_uri: str, stream: str, window: int
) -> None:
    program = load(stream, window, '0.05')
    for turns in range(0, 100, 10):
        async with rbs.streams_client(broker_uri) as other:
            run = asyncio.create_task(program.names['load'](other))
            await until(lambda: bool(cluster_of(other).registrations) or run.done(), 'load begins')  # noqa: B023
            for _ in range(turns):
                await asyncio.sleep(0)
            cut(other)
            await asyncio.sleep(0)
            run.cancel()
            await asyncio.gather(run, return_exceptions=True)
    for _ in range(2):
        await program.names['load'](client)
    assert [decode_amqp(item).body for item in await stored(client, stream)] == ORDERS


@pytest.mark.parametrize(
    ('fault', 'seconds'),
    [
        *((fault, seconds) for fault, seconds in EXACT if 'refused' not in fault.__name__),
        *RESENDING,
        (outage_is_too_long, '60'),
    ],
)
@WINDOWS
async def test_load_through_faults(fault: Fault, seconds: str, window: int) -> None:
    program = load('s', window, seconds)
    async with (
        StreamBroker(nodes=2) as broker,
        rbs.streams_client(broker.uri, close_timeout=0.02, reconnect_timeout=0.5) as client,
    ):
        broker.create_stream('s')
        world = World(broker, program)

        async def run() -> None:
            while True:
                call: asyncio.Task[None] = asyncio.create_task(program.names['load'](client))
                world.cancel = call.cancel
                (outcome,) = await asyncio.gather(call, return_exceptions=True)
                if outcome is None:
                    break
                world.errors.append(outcome)

        running = asyncio.create_task(run())
        await broker.wait_for('s', COUNT // 10)
        await fault(world)
        await running
        assert broker.messages('s') == ORDERS
