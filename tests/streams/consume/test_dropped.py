"""Clients, publishers and subscriptions that lose their last reference, closed or not."""

import asyncio
import gc
import logging
import weakref
from collections.abc import Iterator
from typing import Any

import pytest

import rbfly.streams as rbs
from rbfly.net.observer import Life
from rbfly.streams.error import ProtocolError, StreamConnectionError
from tests import fake_broker as wire
from tests.brokers import until
from tests.fake_broker import FakeBroker, FakeConnection, refuse
from tests.fake_stream import FakeStream
from tests.inside import cluster_of, session_of


@pytest.fixture
def _no_collector() -> Iterator[None]:
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures('_no_collector')
async def test_dropped_client_warns_and_closes_its_sockets() -> None:
    async with FakeBroker() as fake:
        client = rbs.streams_client(fake.uri)
        await client.get_protocol()
        with pytest.warns(ResourceWarning, match=rf'unclosed client of .*:{fake.port}'):
            del client
        await asyncio.wait_for(fake.connection.lost, 20)


@pytest.mark.usefixtures('_no_collector')
async def test_dropping_the_last_subscription_releases_its_client() -> None:
    stream = FakeStream()
    stream.append(b'x')
    async with FakeBroker(on=stream.handlers()) as fake:
        client = rbs.streams_client(fake.uri)
        held = [client.subscribe('test', offset=rbs.Offset.FIRST, amqp=False)]
        del client
        assert await anext(held[0]) == b'x'

        async def drop() -> None:
            held.clear()
            await until(lambda: not stream.reader.live, 'the subscription is closed')

        with pytest.warns(ResourceWarning):
            await drop()


@pytest.mark.usefixtures('_no_collector')
async def test_loss_of_a_dropped_subscription_is_not_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    stream = FakeStream()
    stream.append(b'x')
    async with (
        FakeBroker(on=stream.handlers()) as fake,
        rbs.streams_client(fake.uri) as client,
    ):
        held = [client.subscribe('test', offset=rbs.Offset.FIRST, amqp=False)]
        assert await anext(held[0]) == b'x'
        registration = session_of(held[0]).registration
        held.clear()
        registration.on_metadata_update('test')  # before the turn that releases the subscription
        await until(lambda: not cluster_of(client).registrations, 'the subscription is released')
    assert not caplog.records


@pytest.mark.usefixtures('_no_collector')
@pytest.mark.parametrize('how', ['never used', 'disconnected'])
async def test_dropped_client_without_connections_does_not_warn(
    how: str, recwarn: pytest.WarningsRecorder
) -> None:
    async with FakeBroker() as fake:
        client = rbs.streams_client(fake.uri)
        if how == 'disconnected':
            await client.get_protocol()
            await client.disconnect()
        del client
    assert not recwarn.list


@pytest.mark.usefixtures('_no_collector')
@pytest.mark.parametrize(
    'cls', [rbs.Publisher, rbs.PublisherBatchFast, rbs.PublisherBatchLimit, rbs.PublisherBin]
)
async def test_closed_publisher_is_released_with_its_last_reference(cls: type[Any]) -> None:
    async with FakeBroker() as fake, rbs.streams_client(fake.uri) as client:
        async with client.publisher('test', cls=cls) as publisher:
            if hasattr(publisher, 'send'):
                await (await publisher.submit(b'x'))
                await publisher.send_many([b'y'] * 10)
            else:
                await publisher.flush()
        gone = weakref.ref(publisher)
        del publisher
        assert gone() is None


@pytest.mark.usefixtures('_no_collector')
@pytest.mark.parametrize('how', ['lost', 'resumed', 'disconnected'])
async def test_subscription_dropped_while_others_are_notified(how: str) -> None:
    """It is not notified any more, and nothing fails in the event loop."""
    stream = FakeStream()
    stream.append(b'x')
    async with FakeBroker(on=stream.handlers()) as fake, rbs.streams_client(fake.uri) as client:
        kept, dropped = (
            client.subscribe('test', offset=rbs.Offset.FIRST, amqp=False) for _ in range(2)
        )
        for messages in (kept, dropped):
            assert await anext(messages) == b'x'
        held = [dropped]
        del messages, dropped
        session = session_of(kept)
        connection = session.registration.connection
        assert connection is not None
        with pytest.MonkeyPatch.context() as patch:
            for name in ('on_lost', 'on_resume', 'on_disconnect'):
                patch.setattr(session, name, lambda *args: held.clear())
            if how == 'lost':
                connection.abort(StreamConnectionError('lost'))
            elif how == 'resumed':
                connection.resume_writing()
            else:
                await client.disconnect()
        assert not held
        await kept.aclose()


@pytest.mark.usefixtures('_no_collector')
@pytest.mark.parametrize('how', ['lost', 'disconnected'])
async def test_subscription_dropped_during_its_state_change(
    how: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The garbage collector can run at any time; here, whenever a state change is logged."""
    stream = FakeStream()
    stream.append(b'x')
    async with FakeBroker(on=stream.handlers()) as fake, rbs.streams_client(fake.uri) as client:
        held = [client.subscribe('test', offset=rbs.Offset.FIRST, amqp=False)]
        assert await anext(held[0]) == b'x'
        registration = session_of(held[0]).registration
        assert registration.connection is not None

        def drop(record: logging.LogRecord) -> bool:
            held.clear()
            return True

        with caplog.at_level(logging.DEBUG), caplog.filtering(drop):  # type: ignore[arg-type]
            if how == 'lost':
                registration.connection.abort(StreamConnectionError('lost'))
            else:
                await client.disconnect()
        assert not held
        await until(lambda: registration.life is Life.CLOSED, 'the subscription is closed')


@pytest.mark.usefixtures('_no_collector')
@pytest.mark.parametrize('how', ['refused', 'cancelled'])
async def test_publisher_that_fails_to_open_keeps_nothing(how: str) -> None:
    answer = {'refused': refuse(), 'cancelled': wire.SILENT}[how]
    async with FakeBroker(on={wire.DECLARE_PUBLISHER: answer}) as fake:
        client = rbs.streams_client(fake.uri)
        opening = asyncio.ensure_future(client.publisher('test').__aenter__())
        asked = [wire.DECLARE_PUBLISHER]
        await until(
            lambda: [*map(declared_publishers, fake.connections)][1:] == [asked],
            'the publisher is declared',
        )
        if how == 'cancelled':
            opening.cancel()
        with pytest.raises((ProtocolError, asyncio.CancelledError)):
            await opening
        await client.disconnect()
        cluster = weakref.ref(cluster_of(client))
        del client, opening
        await asyncio.sleep(0)
        assert cluster() is None


def declared_publishers(peer: FakeConnection) -> list[int]:
    return [key for key in peer.commands() if key == wire.DECLARE_PUBLISHER]
