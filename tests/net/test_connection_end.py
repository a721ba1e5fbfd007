"""A callback that raises keeps no other registration from being notified or closed."""

import asyncio
from typing import Any

import pytest

import rbfly.streams as rbs
from tests import fake_broker as wire
from tests.brokers import until
from tests.fake_broker import FakeBroker
from tests.inside import cluster_of, connection_of
from tests.registrations import FakeRegistration

HANG = 30.0  # seconds; only a safeguard


def raising(*args: object) -> None:
    raise ZeroDivisionError('mine')


@pytest.fixture
async def loop_errors() -> list[type[BaseException]]:
    """Classes of the exceptions that the event loop's exception handler receives."""
    found: list[type[BaseException]] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: found.append(type(context['exception'])))
    return found


async def test_other_registrations_reconnect_when_a_callback_raises(loop_errors: list[Any]) -> None:
    async with (
        FakeBroker() as fake,
        rbs.streams_client(fake.uri) as client,
        client.publisher('test') as publisher,
    ):
        connection = connection_of(publisher)
        assert connection is not None
        connection.registrations = {
            FakeRegistration(lost=raising): None,
            **connection.registrations,
        }
        fake.connections[-1].transport.abort()
        await until(lambda: connection_of(publisher) is not connection, 'the connection is lost')
        await asyncio.wait_for(publisher.send('x'), HANG)
        await asyncio.wait_for(connection.close(), HANG)
    assert loop_errors == [ZeroDivisionError]


async def test_connection_is_closed_when_a_callback_is_interrupted() -> None:
    def interrupted(error: Exception) -> None:
        raise KeyboardInterrupt

    async with FakeBroker() as fake, rbs.streams_client(fake.uri) as client:
        connection = await client.get_protocol()
        connection.registrations[FakeRegistration(lost=interrupted)] = None
        with pytest.raises(KeyboardInterrupt):
            connection.connection_lost(None)
        await asyncio.wait_for(connection.close(), HANG)


async def test_other_registrations_learn_of_a_moved_stream_when_a_callback_raises(
    loop_errors: list[Any],
) -> None:
    async with FakeBroker() as fake, rbs.streams_client(fake.uri) as client:
        connection = await client.get_protocol()
        moved: list[str] = []
        connection.registrations = dict.fromkeys(
            (
                FakeRegistration(metadata_update=raising),
                FakeRegistration(metadata_update=moved.append),
            )
        )
        fake.connection.send(wire.frame(wire.METADATA_UPDATE, b'\x00\x06' + wire.string('test')))
        await until(lambda: moved == ['test'], 'the other callback is called')
        assert connection.is_open
    assert loop_errors == [ZeroDivisionError]


async def test_other_registrations_resume_writing_when_a_callback_raises(
    loop_errors: list[Any],
) -> None:
    async with FakeBroker() as fake, rbs.streams_client(fake.uri) as client:
        connection = await client.get_protocol()
        resumed: list[bool] = []
        others = (
            FakeRegistration(resume=raising),
            FakeRegistration(resume=lambda: resumed.append(True)),
        )
        connection.registrations = dict.fromkeys(others)
        connection.resume_writing()
        assert resumed == [True]
    assert loop_errors == [ZeroDivisionError]


async def test_disconnect_closes_connections_when_a_callback_raises(loop_errors: list[Any]) -> None:
    async with FakeBroker() as fake, rbs.streams_client(fake.uri) as client:
        connection = await client.get_protocol()
        cluster_of(client).registrations = {FakeRegistration(disconnect=raising): None}
    assert not connection.is_open
    assert loop_errors == [ZeroDivisionError]
