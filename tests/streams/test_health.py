"""What a client tells about itself: `health`, `describe` and `repr`."""

import asyncio
import platform
import re
from datetime import UTC, datetime
from typing import Any

import pytest

import rbfly
import rbfly.streams as rbs
from rbfly.streams.error import StreamDoesNotExist
from rbfly.testing import StreamBroker
from tests.brokers import until
from tests.inside import session_of

own_clock = pytest.mark.own_clock


async def down(broker: StreamBroker) -> None:
    """Cut all connections, and refuse new ones, for some seconds."""
    broker.refuse()
    broker.cut()
    await asyncio.sleep(5)


# -- health


async def test_client_that_was_not_used_is_healthy() -> None:
    client = rbs.streams_client('rabbitmq-stream://nowhere/')
    assert client.health() == rbs.Health(True, [])
    assert client.health()


async def test_working_client_is_healthy(client: rbs.StreamsClient, stream: str) -> None:
    async with client.publisher(stream) as publisher, client.subscribe(stream) as messages:
        await publisher.send('x')
        await messages.open()
        assert client.health().reasons == []
    await client.close()
    assert client.health()


@own_clock
async def test_outage() -> None:
    async with StreamBroker() as broker, rbs.streams_client(broker.uri) as client:
        broker.create_stream('orders')
        async with client.publisher('orders') as publisher, client.subscribe('orders') as messages:
            waiting = asyncio.ensure_future(anext(messages))
            await publisher.send('x')
            assert await waiting == 'x'
            waiting = asyncio.ensure_future(anext(messages))
            await asyncio.sleep(0)
            broker.refuse()
            broker.cut()
            await asyncio.sleep(0.5)
            assert client.health()  # for a moment
            await asyncio.sleep(10)
            health = client.health()
            assert not health
            [reason] = health.reasons
            assert re.fullmatch(
                "publisher of 'orders' and subscription of stream 'orders' have had no connection"
                r' for up to 1[01] s: rabbitmq-stream://127\.0\.0\.1:\d+: connection lost.*',
                reason,
            )
            broker.heal()
            await publisher.send('y')
            assert await waiting == 'y'
            assert client.health()


@own_clock
async def test_call_without_a_connection() -> None:
    async with StreamBroker() as broker, rbs.streams_client(broker.uri) as client:
        broker.refuse()
        creating = asyncio.create_task(client.create_stream('orders'))
        await asyncio.sleep(5)
        [reason] = client.health().reasons
        assert reason.startswith('a call waits for a connection: rabbitmq-stream://127.0.0.1:')
        broker.heal()
        await creating
        assert client.health()


@own_clock
async def test_subscription_that_no_task_reads_needs_no_connection() -> None:
    async with StreamBroker() as broker, rbs.streams_client(broker.uri) as client:
        broker.create_stream('orders')
        async with client.subscribe('orders'):
            await down(broker)
            assert client.health()
            broker.heal()


@own_clock
async def test_late_confirms() -> None:
    async with StreamBroker() as broker, rbs.streams_client(broker.uri) as client:
        broker.create_stream('orders')
        async with client.publisher('orders') as publisher:
            broker.withhold_confirms()
            sending = asyncio.create_task(publisher.send('x'))
            await asyncio.sleep(60)
            [reason] = client.health().reasons
            assert re.fullmatch(
                "publisher of 'orders': 1 message has waited (5|6)0 s for confirms;"
                ' the broker answers',
                reason,
            )
            assert "state='open, confirms are late' unconfirmed=1" in repr(publisher)
            broker.heal()
            await sending
            assert client.health()


@own_clock
async def test_stalled_subscription() -> None:
    async with StreamBroker() as broker, rbs.streams_client(broker.uri) as client:
        broker.create_stream('orders')
        broker.publish('orders', 'a')
        async with client.subscribe('orders', offset=rbs.Offset.FIRST) as messages:
            assert await anext(messages) == 'a'
            waiting = asyncio.ensure_future(anext(messages))
            broker.silence()
            broker.publish('orders', 'b')
            await asyncio.sleep(100)
            [reason] = client.health().reasons
            assert re.fullmatch(
                r"subscription of stream 'orders' has received nothing for \d+ s,"
                ' although the stream has more',
                reason,
            )
            assert "state='open, stalled'" in repr(messages)
            broker.heal()
            assert await waiting == 'b'
            await asyncio.sleep(1)
            assert client.health()


@own_clock
async def test_failed_publisher() -> None:
    async with (
        StreamBroker() as broker,
        rbs.streams_client(broker.uri, reconnect_timeout=3) as client,
    ):
        broker.create_stream('orders')
        async with client.publisher('orders') as publisher:
            await publisher.send('x')
            await down(broker)
            [reason] = client.health().reasons
            assert reason.startswith("publisher of 'orders' has failed: gave up after 3 s")
            assert "state='failed'" in repr(publisher)
            broker.heal()
            await publisher.send('y')
            assert client.health()


@own_clock
async def test_subscription_of_a_deleted_stream() -> None:
    async with StreamBroker() as broker, rbs.streams_client(broker.uri) as client:
        broker.create_stream('orders')
        messages = client.subscribe('orders')
        waiting = asyncio.ensure_future(anext(messages))
        await until(lambda: session_of(messages).active, 'it is open')
        await client.delete_stream('orders')
        with pytest.raises(StreamDoesNotExist):
            await waiting
        await messages.close()
        assert client.health()


async def test_another_event_loop(broker_uri: str) -> None:
    client = rbs.streams_client(broker_uri)
    await client.ping()

    async def use() -> None:
        for method in (client.health, client.describe):
            with pytest.raises(rbs.EventLoopError):
                method()

    await asyncio.to_thread(asyncio.run, use())
    await client.close()


# -- repr


async def read_on(messages: Any) -> None:
    async for _ in messages:
        pass


@own_clock
async def test_repr_differs_before_during_and_after_an_outage() -> None:
    async with StreamBroker() as broker, rbs.streams_client(broker.uri) as client:
        broker.create_stream('orders')
        broker.create_super_stream('parts', partitions=2)
        parts = client.super_stream('parts')
        async with (
            client.publisher('orders', name='shop') as publisher,
            parts.publisher(route=rbs.by_hash(str)) as publishers,
            client.subscribe('orders') as messages,
            client.subscribe('orders', group='billing') as member,
            parts.subscribe() as merged,
        ):
            users: list[Any] = [publisher, publishers, messages, member, merged]
            await publisher.send('x')
            await until(lambda: session_of(member).active, 'the member is active')
            before = list(map(repr, [client, *users]))
            readers = [asyncio.create_task(read_on(item)) for item in users[2:]]
            await asyncio.sleep(1)
            await down(broker)
            during = list(map(repr, [client, *users]))
            broker.heal()
            await asyncio.sleep(60)
            after = list(map(repr, [client, *users]))
            for reader in readers:
                reader.cancel()
            await asyncio.wait(readers)
        closed = list(map(repr, users))
    for found in zip(before, during, after, strict=True):
        assert len(set(found)) == 3, found
    assert before[1] == (
        "<Publisher stream='orders' name='shop' state='open' unconfirmed=0 reconnects=0>"
    )
    assert during[1] == before[1].replace("'open'", "'reconnecting'")
    assert after[1] == before[1].replace('reconnects=0', 'reconnects=1')
    assert "state='2 partitions: 2 open' unconfirmed=0 reconnects=0>" in before[2]
    assert "state='open, active'" in before[4]
    assert "state='2 partitions: 2 reconnecting'" in during[5]
    assert re.fullmatch(
        r'<StreamsClient rabbitmq-stream://127\.0\.0\.1:\d+ connections=2 publishers=3'
        r' subscriptions=4 connections_lost=0>',
        before[0],
    )
    assert 'connections=0 publishers=3' in during[0]
    assert all('closed' in text for text in closed)


async def test_errors_name_publishers_and_subscriptions_plainly(
    client: rbs.StreamsClient, stream: str
) -> None:
    async with client.subscribe(stream) as messages:
        pass
    with pytest.raises(rbs.SubscriptionClosed, match=f"the subscription of stream '{stream}' has"):
        await messages.fetch()


# -- describe


SECRET = 'correct horse'


class Leak(Exception):
    pass


@own_clock
async def test_description_of_an_outage() -> None:
    async with (
        StreamBroker() as broker,
        rbs.streams_client(broker.uri, connection_name='shop', heartbeat=30) as client,
    ):
        broker.create_stream('orders')
        broker.create_super_stream('parts', partitions=2)
        async with (
            client.publisher('orders', name='till', max_unconfirmed=50) as publisher,
            client.subscribe('orders', offset=rbs.Offset.FIRST, group='billing') as member,
            client.super_stream('parts').subscribe() as merged,
        ):
            await publisher.send('x')
            assert await anext(member) == 'x'
            found = client.describe()
            assert found.health
            assert found.versions['RbFly'] == rbfly.__version__
            assert found.versions[platform.python_implementation()] == platform.python_version()
            assert 'ClockLoop' in found.versions['event loop']
            assert found.settings['connection_name'] == 'shop'
            assert 'connect_timeout' not in found.settings  # the default
            roles = {item.role: item for item in found.connections}
            assert set(roles) == {'publish', 'consume'}
            assert roles['publish'].users == 1
            assert roles['consume'].users == 3
            assert roles['publish'].heartbeat == 30
            assert roles['publish'].server.startswith('RabbitMQ ')
            [described] = found.publishers
            assert described.node == roles['publish'].node
            assert (described.stream, described.name, described.state) == ('orders', 'till', 'open')
            assert described.max_unconfirmed == 50
            assert described.next_publish_id == 2
            by_stream = {item.stream: item for item in found.subscriptions}
            assert set(by_stream) == {'orders', 'parts-0', 'parts-1'}
            assert by_stream['orders'].group == 'billing'
            assert by_stream['orders'].state == 'open, active'
            assert by_stream['orders'].position == 1
            assert by_stream['parts-0'].super_stream == 'parts'
            assert found.errors == []

            waiting = [asyncio.ensure_future(anext(item)) for item in (member, merged)]
            sending = asyncio.create_task(publisher.send('y'))
            await asyncio.sleep(1)
            await sending
            await down(broker)
            found = client.describe()
            assert not found.health
            assert found.connections == []
            assert found.connections_lost == 2
            [described] = found.publishers
            assert described.state == 'reconnecting'
            assert described.problem is not None
            assert 'connection lost' in described.problem
            assert found.errors[-1].count > 1
            assert 'connection lost' in found.errors[-1].text
            broker.heal()
            for reader in waiting:
                reader.cancel()
            await asyncio.wait(waiting)


async def test_description_as_text(client: rbs.StreamsClient, stream: str) -> None:
    async with client.publisher(stream) as publisher, client.subscribe(stream) as messages:
        await publisher.send('x')
        await messages.open()
        found = client.describe()
    lines = str(found).splitlines()
    assert lines[0].startswith(f'RbFly {rbfly.__version__}, CPython {platform.python_version()}, ')
    assert 'health: ok' in lines
    at = next(i for i, line in enumerate(lines) if re.fullmatch('1 publisher', line))
    header, row = lines[at + 1 : at + 3]
    assert header.split()[:2] == ['stream', 'state']
    assert row.split()[:2] == [stream, 'open']
    assert header.index('node') == row.index(found.connections[0].node[:4])
    names, values = lines[lines.index('sums of all streams') + 1 :][:2]
    assert names.split()[:4] == ['published', 'confirmed', 'refused', 'resent']
    assert values.split()[:4] == ['1', '1', '0', '0']
    assert found.metrics.streams[stream].confirmed == found.metrics.confirmed == 1
    assert found.metrics.last_confirm is not None
    confirmed_at = datetime.fromtimestamp(found.metrics.last_confirm, UTC)
    assert values[names.index('last confirm') :].split()[0] == f'{confirmed_at:%H:%M:%S}'
    assert all(line == line.rstrip() and len(line) < 250 for line in lines)


async def test_description_of_a_client_that_was_not_used() -> None:
    client = rbs.streams_client('rabbitmq-stream://shop:secret@nowhere/')
    text = str(client.describe())
    assert '0 connections open, 0 lost so far' in text
    lines = text.splitlines()
    counts = lines[lines.index('sums of all streams') + 2].split()
    assert counts == ['0'] * 10 + ['-', '-']  # no confirm and no chunk has arrived
    assert 'rabbitmq-stream://nowhere:5552' in text
    assert 'secret' not in text


async def test_nothing_secret_is_described() -> None:
    """An attacker reads the bug report."""

    async def offset(stream: str) -> rbs.Offset:
        raise Leak(SECRET)

    async with StreamBroker(users={'till': SECRET}) as broker:
        broker.create_stream('orders')
        async with (
            rbs.streams_client(broker.uri) as client,
            client.publisher('orders') as publisher,
        ):
            await publisher.send(SECRET)
            messages = client.subscribe('orders', offset=offset)
            with pytest.raises(Leak):
                await anext(messages)
            # a broker that repeats what it was sent
            broker.close_connections(reason=f'bad password {SECRET}')
            await until(lambda: client.describe().connections_lost > 0, 'it is closed')
            for found in (client.describe(), client.health(), client, publisher, messages):
                for text in (str(found), repr(found)):
                    assert SECRET not in text
                    assert 'correct' not in text
            assert 'bad password ***' in str(client.describe())
            assert 'Leak' in str(client.describe())
            await messages.close()


@own_clock
async def test_provider_of_credentials_that_fails() -> None:
    async def provide() -> rbs.Credentials:
        if failing:
            raise Leak(SECRET)
        return rbs.Credentials('till', SECRET)

    failing = True
    async with StreamBroker(users={'till': SECRET}) as broker:
        broker.create_stream('orders')
        uri = broker.uri.partition('://')[0] + '://' + broker.uri.partition('@')[2]
        async with (
            rbs.streams_client(uri, credentials=provide) as client,
            client.publisher('orders', wait=False) as publisher,
        ):
            await asyncio.sleep(10)
            found = client.describe()
            failing = False
            await publisher.send('x')
    text = f'{found} {found!r}'
    assert not found.health
    assert 'because of Leak' in text
    assert 'correct' not in text
