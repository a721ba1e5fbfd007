"""Events and counters of a client, over all of its connections."""

import asyncio
import logging
from typing import Any

import pytest

import rbfly.streams as rbs
from rbfly.net.observer import Life, Observer, Observers, Role, State
from rbfly.net.uri import Address
from tests import fake_broker as wire
from tests.brokers import until
from tests.fake_broker import SILENT, FakeBroker, Step
from tests.inside import cluster_of

HANG = 30.0


Change = State | Life


class Recorder(Observer):
    """Records the events of connections, and the states of registrations."""

    def __init__(self) -> None:
        self.connections: list[tuple[str, Address, Role]] = []
        self.errors: list[Exception] = []
        self.states: list[Change] = []

    def on_transition(
        self, registration: object, before: Change, after: Change, error: Exception | None
    ) -> None:
        self.states.append(after)

    def on_connection_opened(self, address: Address, role: Role) -> None:
        self.connections.append(('opened', address, role))

    def on_connection_lost(self, address: Address, role: Role, error: Exception) -> None:
        self.connections.append(('lost', address, role))
        self.errors.append(error)

    def on_connection_closed(self, address: Address, role: Role) -> None:
        self.connections.append(('closed', address, role))


@pytest.fixture
async def reported() -> list[dict[str, Any]]:
    """What the event loop's exception handler receives."""
    found: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: found.append(context))
    return found


# -- delivery


class Calling(Observer):
    """Calls a function when a connection is closed."""

    def __init__(self, function: Any) -> None:
        self.function = function

    def on_connection_closed(self, address: Address, role: Role) -> None:
        self.function()


def notify(observers: Observers) -> None:
    observers.notify(Observer.on_connection_closed, Address('localhost', 1), Role.CONSUME)


def test_every_observer_is_notified_in_order() -> None:
    observers, seen = Observers(), list[int]()
    for i in range(3):
        observers.add(Calling(lambda i=i: seen.append(i)))
    notify(observers)
    assert seen == [0, 1, 2]


def test_removed_observer_is_not_notified() -> None:
    observers, seen = Observers(), list[int]()
    removed = Calling(lambda: seen.append(0))
    observers.add(removed)
    observers.add(Calling(lambda: seen.append(1)))
    observers.remove(removed)
    observers.remove(removed)
    notify(observers)
    assert seen == [1]


def test_observer_removed_during_a_delivery_is_not_notified() -> None:
    observers, seen = Observers(), list[int]()
    later = Calling(lambda: seen.append(0))
    observers.add(Calling(lambda: observers.remove(later)))
    observers.add(later)
    observers.add(Calling(lambda: seen.append(1)))
    notify(observers)
    assert seen == [1]


def test_observer_added_during_a_delivery_is_notified_of_the_next_event() -> None:
    observers, seen = Observers(), list[int]()
    added = Calling(lambda: seen.append(0))
    adding = Calling(lambda: observers.add(added))
    observers.add(adding)
    notify(observers)
    assert seen == []
    observers.remove(adding)
    notify(observers)
    assert seen == [0]


async def test_observer_that_raises_is_reported(reported: list[dict[str, Any]]) -> None:
    observers, seen = Observers(), list[int]()
    observers.add(Calling(lambda: 1 / 0))
    observers.add(Calling(lambda: seen.append(1)))
    notify(observers)
    assert seen == [1]
    (context,) = reported
    assert isinstance(context['exception'], ZeroDivisionError)
    assert 'on_connection_closed' in context['message']


def test_observer_that_raises_outside_an_event_loop_is_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    observers = Observers()
    observers.add(Calling(lambda: 1 / 0))
    with caplog.at_level(logging.ERROR, 'rbfly'):
        notify(observers)
    (record,) = caplog.records
    assert record.exc_info is not None
    assert record.exc_info[0] is ZeroDivisionError


# -- events


async def test_connections_of_a_client() -> None:
    """The roles are those of the registrations; a connection is lost once, or closed."""
    recorder = Recorder()
    async with FakeBroker() as fake:
        async with rbs.streams_client(fake.uri) as client:
            cluster_of(client).observers.add(recorder)
            async with client.publisher('test') as publisher:
                await publisher.send('x')
                fake.connections[-1].transport.abort()
                await until(lambda: len(recorder.connections) >= 3, 'the connection is lost')
                await asyncio.wait_for(publisher.send('y'), HANG)
        address = Address('127.0.0.1', fake.port)
    assert recorder.connections[:4] == [
        ('opened', address, Role.CONSUME),
        ('opened', address, Role.PUBLISH),
        ('lost', address, Role.PUBLISH),
        ('opened', address, Role.PUBLISH),
    ]
    assert sorted(recorder.connections[4:], key=str) == [
        ('closed', address, Role.CONSUME),
        ('closed', address, Role.PUBLISH),
    ]
    assert 'connection lost' in str(recorder.errors[0])
    assert recorder.states == [
        State.OPENING, State.OPEN, State.LOST, State.BACKING_OFF, State.OPENING, State.OPEN,
        Life.CLOSING, State.IDLE, Life.CLOSED,
    ]  # fmt: skip


async def test_connection_is_lost_before_its_registrations() -> None:
    order: list[str] = []

    class Ordered(Observer):
        def on_transition(
            self, registration: object, before: Change, after: Change, error: Exception | None
        ) -> None:
            order.append(after.value)

        def on_connection_lost(self, address: Address, role: Role, error: Exception) -> None:
            order.append('connection lost')

    async with (
        FakeBroker() as fake,
        rbs.streams_client(fake.uri) as client,
        client.publisher('test') as publisher,
    ):
        cluster_of(client).observers.add(Ordered())
        fake.connections[-1].transport.abort()
        await until(lambda: 'lost' in order, 'the publisher is lost')
        await asyncio.wait_for(publisher.send('x'), HANG)
    assert order[:2] == ['connection lost', 'lost']


async def test_connection_closed_without_waiting() -> None:
    recorder = Recorder()
    async with FakeBroker(on={wire.CLOSE: SILENT}) as fake:
        client = rbs.streams_client(fake.uri)
        cluster_of(client).observers.add(recorder)
        await client.get_protocol()
        await cluster_of(client).close(wait=False)
    assert [event for event, _, _ in recorder.connections] == ['opened', 'closed']


async def test_connection_of_a_dropped_client_is_closed() -> None:
    recorder = Recorder()
    async with FakeBroker() as fake:
        client = rbs.streams_client(fake.uri)
        cluster_of(client).observers.add(recorder)
        await client.get_protocol()
        with pytest.warns(ResourceWarning):
            del client
        await until(lambda: len(recorder.connections) == 2, 'the connection is closed')
    assert recorder.connections[-1][0] == 'closed'


async def test_failed_handshake_is_no_connection() -> None:
    recorder = Recorder()
    async with FakeBroker(at={Step.OPEN: wire.refuse(0x0C)}) as fake:
        client = rbs.streams_client(fake.uri)
        cluster_of(client).observers.add(recorder)
        with pytest.raises(rbs.VirtualHostError):
            await client.get_protocol()
    assert recorder.connections == []


async def test_observer_that_raises_disturbs_no_publisher(reported: list[dict[str, Any]]) -> None:
    def raising(*args: object) -> None:
        raise ZeroDivisionError

    fail: Any = raising

    class Raising(Observer):
        on_transition = fail
        on_connection_opened = fail
        on_connection_lost = fail
        on_connection_closed = fail

    async with FakeBroker() as fake:
        async with rbs.streams_client(fake.uri) as client:
            cluster_of(client).observers.add(Raising())
            async with client.publisher('test') as publisher:
                await publisher.send('x')
                fake.connections[-1].transport.abort()
                await asyncio.wait_for(publisher.send('y'), HANG)
        assert not client.connected
    assert {type(context['exception']) for context in reported} == {ZeroDivisionError}


# -- counters


async def test_counters_sum_over_connections() -> None:
    async with FakeBroker() as fake:
        async with rbs.streams_client(fake.uri) as client:
            counters = cluster_of(client).counters
            async with client.publisher('test') as publisher:
                for body in ('x', 'y', 'z'):
                    await publisher.send(body)
                    fake.connections[-1].transport.abort()
            assert len(fake.connections) > 2
            assert client.metrics().confirmed == 3
        received = counters.bytes_received
        await client.get_protocol()
        assert counters.bytes_received > received
        assert client.metrics().confirmed == 3
        await client.disconnect()
