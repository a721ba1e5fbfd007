"""Where a client connects, and what it tells the broker about itself."""

import asyncio
import contextlib
import itertools
import ssl
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import trustme

import rbfly.streams as rbs
from rbfly.net import moving
from rbfly.net.uri import parse_uri
from rbfly.streams.error import StreamConnectionError
from rbfly.testing import StreamBroker
from tests.brokers import until
from tests.fake_broker import FakeBroker, Step
from tests.inside import connection_of
from tests.streams.test_callbacks import Own

PLAIN = 'rabbitmq-stream://localhost'


# -- advertised addresses


async def test_nodes_whose_advertised_names_resolve_nowhere() -> None:
    """As nodes in Kubernetes, seen from outside."""
    async with StreamBroker(nodes=3) as broker:
        broker.create_stream('orders')
        ports = {f'node-{i}.internal': parse_uri(uri).port for i, uri in enumerate(broker.uris)}
        broker.advertise(*ports)
        asked: list[tuple[str, int]] = []

        def resolve(host: str, port: int) -> tuple[str, int]:
            asked.append((host, port))
            return '127.0.0.1', ports[host]

        async with (
            rbs.streams_client(broker.uri, resolve=resolve) as client,
            client.publisher('orders') as publisher,
            client.subscribe('orders', offset=rbs.Offset.FIRST) as messages,
        ):
            for i in range(9):
                broker.move_leader('orders', i % 3)
                await publisher.send(i)
                assert await anext(messages) == i
        assert {host for host, _ in asked} == {*ports}


async def test_address_of_the_uri_is_used_while_resolve_names_one_that_is_down() -> None:
    async with StreamBroker() as broker:
        broker.create_stream('orders')
        async with (
            rbs.streams_client(broker.uri, resolve=lambda host, port: ('127.0.0.1', 1)) as client,
            client.publisher('orders') as publisher,
        ):
            await publisher.send('x')
        assert broker.messages('orders') == ['x']


@pytest.mark.parametrize(
    ('result', 'error'), [('host', '`resolve` for'), (('host', 0), 'port that `resolve`')]
)
async def test_wrong_result_of_resolve(result: Any, error: str) -> None:
    async with StreamBroker() as broker:
        broker.create_stream('orders')
        async with rbs.streams_client(broker.uri, resolve=lambda host, port: result) as client:
            with pytest.raises((TypeError, ValueError)) as caught:
                await client.publisher('orders')
            assert error in str(caught.value) + ''.join(getattr(caught.value, '__notes__', ()))


async def test_error_of_resolve_reaches_the_call() -> None:
    def resolve(host: str, port: int) -> tuple[str, int]:
        raise KeyError(host)

    async with StreamBroker() as broker:
        broker.create_stream('orders')
        async with rbs.streams_client(broker.uri, resolve=resolve) as client:
            with pytest.raises(KeyError):
                await client.publisher('orders')


@pytest.mark.parametrize('wait', [True, False])
async def test_error_of_the_programs_own_class(wait: bool) -> None:
    def resolve(host: str, port: int) -> tuple[str, int]:
        raise Own(1, 2)

    async def publish(client: rbs.StreamsClient) -> None:
        publisher = await client.publisher('orders', wait=wait)
        await publisher.send('x')

    async with StreamBroker() as broker, rbs.streams_client(broker.uri, resolve=resolve) as client:
        broker.create_stream('orders')
        with pytest.raises(Own, match='1 2'):
            await publish(client)


# -- TLS


async def test_server_hostname_is_the_name_in_the_certificate() -> None:
    authority = trustme.CA()
    server = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert('broker.example').configure_cert(server)
    context = ssl.create_default_context()
    authority.configure_trust(context)
    async with StreamBroker(ssl=server) as broker:
        async with rbs.streams_client(
            broker.uri, ssl=context, server_hostname='broker.example'
        ) as client:
            await client.ping()
        other = rbs.streams_client(broker.uri, ssl=context)
        with pytest.raises(rbs.TLSError, match='not valid for'):
            await other.create_stream('x')
        await other.close()


# -- backoff, limits, properties


async def test_delays_between_tries_are_those_of_backoff() -> None:
    async with StreamBroker() as broker:
        broker.refuse()
        async with rbs.streams_client(broker.uri, backoff=(0.001, 0.002)) as client:
            found = client.events()
            publisher = await client.publisher('orders', wait=False)
            async with asyncio.timeout(20):
                async for event in found:
                    if isinstance(event, rbs.RecoveryScheduled):
                        assert 0 <= event.delay <= 0.002
                        if event.attempt > 5:
                            break
            await publisher.close()


async def test_limits_of_publishers_and_subscriptions_of_a_connection() -> None:
    async with StreamBroker() as broker:
        broker.create_stream('orders')
        limits: Any = {'publishers_per_connection': 2, 'subscriptions_per_connection': 3}
        async with (
            rbs.streams_client(broker.uri, **limits) as client,
            contextlib.AsyncExitStack() as stack,
        ):
            for _ in range(5):
                await stack.enter_async_context(client.publisher('orders'))
                await stack.enter_async_context(client.subscribe('orders'))
            assert broker.connections == 3 + 2
            await asyncio.gather(*(client.stream_exists('orders') for _ in range(3)))


async def test_properties_of_client_and_server() -> None:
    async with FakeBroker() as fake:
        properties = {'pod': 'shop-7'}
        client = rbs.streams_client(fake.uri, client_properties=properties, connection_name='shop')
        assert client.server_properties == {}
        async with client:
            await client.ping()
            assert client.server_properties['version']
        [sent] = [
            frame.decode().properties
            for frame in fake.connection.frames
            if frame.key == Step.PEER_PROPERTIES
        ]
        assert (sent['pod'], sent['connection_name'], sent['product']) == (
            'shop-7',
            'shop',
            'RbFly',
        )


@pytest.mark.parametrize(
    ('arguments', 'error'),
    [
        ({'server_hostname': 'x'}, 'requires URIs with TLS'),
        ({'server_hostname': 1}, 'server_hostname must be str'),
        ({'resolve': 'localhost'}, 'resolve must be a function'),
        ({'resolve': print, 'load_balancer': True}, 'either resolve or load_balancer'),
        ({'backoff': 1}, 'backoff must be tuple'),
        ({'backoff': (1,)}, 'two numbers'),
        ({'backoff': (1, 'x')}, 'backoff must be int'),
        ({'backoff': (2, 1)}, '0 < first <= longest'),
        ({'backoff': (0, 1)}, '0 < first <= longest'),
        ({'publishers_per_connection': 0}, 'publishers_per_connection'),
        ({'subscriptions_per_connection': 257}, 'subscriptions_per_connection'),
        ({'client_properties': 'x'}, 'client_properties must be'),
        ({'client_properties': {'x': 1}}, "client property 'x' must be str"),
        ({'client_properties': {'connection_name': 'x'}}, 'pass connection_name'),
        ({'client_properties': {'x': '\ud800'}}, 'is not valid Unicode'),
        ({'client_properties': {'x': 'y' * 5000}}, '5005 bytes, more than 4096'),
    ],
)
def test_wrong_settings(arguments: dict[str, Any], error: str) -> None:
    with pytest.raises((TypeError, ValueError), match=error):
        rbs.streams_client(PLAIN, **arguments)


# -- reconnect


async def test_reconnect_moves_everything_and_resends_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(moving, 'DRAIN', 60.0)  # on a busy machine
    async with StreamBroker() as broker:
        broker.create_stream('orders')
        async with (
            rbs.streams_client(broker.uri) as client,
            client.publisher('orders') as publisher,
            client.subscribe('orders', offset=rbs.Offset.FIRST) as messages,
        ):
            stop, sent = asyncio.Event(), itertools.count()

            async def publish() -> None:
                while not stop.is_set():
                    await publisher.send(next(sent))

            publishing = [asyncio.create_task(publish()) for _ in range(20)]
            before = connection_of(publisher)
            for _ in range(5):
                await client.reconnect()
                after = connection_of(publisher)
                assert after is not before
                before = after
            stop.set()
            await asyncio.gather(*publishing)
            count = next(sent)
            found = [await anext(messages) for _ in range(count)]
        assert sorted(found) == [*range(count)]
        assert len(broker.messages('orders')) == count


async def test_reconnect_moves_what_an_outage_would_end() -> None:
    async with StreamBroker() as broker:
        broker.create_stream('orders')
        async with (
            rbs.streams_client(broker.uri, reconnect_timeout=0) as client,
            client.publisher('orders') as publisher,
            client.subscribe('orders', offset=rbs.Offset.FIRST) as messages,
        ):
            await publisher.send('x')
            assert await anext(messages) == 'x'
            reading = asyncio.create_task(anext(messages))
            await client.reconnect()
            await publisher.send('y')
            assert await reading == 'y'
            reading = asyncio.create_task(anext(messages))
            await asyncio.sleep(0)
            broker.cut()
            with pytest.raises(StreamConnectionError):
                await reading


async def test_reconnect_gives_up_waiting_for_confirms(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(moving, 'DRAIN', 0.05)
    async with StreamBroker() as broker:
        broker.create_stream('orders')
        async with (
            rbs.streams_client(broker.uri) as client,
            client.publisher('orders', name='shop') as publisher,
        ):
            broker.withhold_confirms()
            sending = asyncio.create_task(publisher.send('x'))
            await until(lambda: bool(broker.messages('orders')), 'the message is stored')
            moving_on = asyncio.create_task(client.reconnect())
            await until(lambda: connection_of(publisher) is None, 'the connection is closed')
            broker.heal()
            await asyncio.gather(moving_on, sending)
        assert broker.messages('orders') == ['x']


async def test_cancelled_reconnect_lets_publishers_continue() -> None:
    async with StreamBroker() as broker:
        broker.create_stream('orders')
        async with (
            rbs.streams_client(broker.uri) as client,
            client.publisher('orders') as publisher,
        ):
            broker.withhold_confirms()
            sending = asyncio.create_task(publisher.send(1))
            await until(lambda: bool(broker.messages('orders')), 'the message is stored')
            before = connection_of(publisher)
            call = asyncio.create_task(client.reconnect())
            await until(lambda: before.paused, 'the publisher waits')
            call.cancel()
            with pytest.raises(asyncio.CancelledError):
                await call
            broker.heal()
            await sending
            await publisher.send(2)
            assert connection_of(publisher) is before
        assert broker.messages('orders') == [1, 2]


@contextlib.asynccontextmanager
async def full_connection() -> AsyncIterator[tuple[StreamBroker, rbs.StreamsClient, Any]]:
    """A broker that reads nothing, a client, and a publisher whose connection is full.

    In the end, the broker has each message once.
    """
    stop, sent = asyncio.Event(), itertools.count()
    async with StreamBroker() as broker, rbs.streams_client(broker.uri) as client:
        broker.create_stream('orders')
        async with client.publisher('orders', max_unconfirmed=100_000, amqp=False) as publisher:
            broker.stall()
            endless = (b'%d' % i + bytes(1000) for i in sent)
            sending = asyncio.create_task(
                publisher.send_many(itertools.takewhile(lambda _: not stop.is_set(), endless))
            )
            await until(lambda: connection_of(publisher).paused, 'the connection is full')
            yield broker, client, publisher
            broker.heal()
            stop.set()
            count = await sending
            assert len(broker.messages('orders', raw=True)) == count


async def test_reconnect_of_a_full_connection_resends_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(moving, 'DRAIN', 60.0)  # on a busy machine
    async with full_connection() as (broker, client, publisher):
        before = connection_of(publisher)
        moving_on = asyncio.create_task(client.reconnect())
        await asyncio.sleep(0)
        broker.heal()
        while not moving_on.done():
            assert before.paused
            await asyncio.sleep(0)
        await moving_on
        assert connection_of(publisher) is not before


async def test_cancelled_reconnect_leaves_a_full_connection_paused() -> None:
    async with full_connection() as (broker, client, publisher):
        connection = connection_of(publisher)
        call = asyncio.create_task(client.reconnect())
        await asyncio.sleep(0)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        assert connection.paused
        broker.heal()
        await until(lambda: not connection.paused, 'the connection accepts data')


# -- nodes that refuse


async def test_first_connect_to_a_full_node_fails_at_once() -> None:
    async with (
        StreamBroker(max_connections=1) as broker,
        rbs.streams_client(broker.uri) as first,
    ):
        await first.ping()
        other = rbs.streams_client(broker.uri)
        with pytest.raises(rbs.VirtualHostError, match='a limit of connections is reached'):
            await other.create_stream('x')
        await other.close()


async def test_publisher_waits_for_a_full_node() -> None:
    """Others take the connection while the publisher has none."""
    async with StreamBroker(max_connections=2) as broker:
        broker.create_stream('orders')
        client = rbs.streams_client(broker.uri, backoff=(0.01, 0.05))
        async with client, client.publisher('orders', wait=True) as publisher:
            await publisher.send(1)
            found = client.events()
            others = [rbs.streams_client(broker.uri) for _ in range(2)]
            broker.cut()
            await asyncio.gather(*(other.ping() for other in others))
            sending = asyncio.create_task(publisher.send(2))
            async with asyncio.timeout(20):
                async for event in found:
                    if isinstance(event, rbs.RecoveryScheduled) and '0x0c' in str(event.error):
                        break
            assert not sending.done()
            for other in others:
                await other.close()
            await sending
        assert broker.messages('orders') == [1, 2]


async def test_certificate_that_expires_while_connected() -> None:
    authority = trustme.CA()
    server = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert('127.0.0.1').configure_cert(server)
    context = ssl.create_default_context()
    authority.configure_trust(context)
    async with StreamBroker(ssl=server) as broker:
        broker.create_stream('orders')
        async with rbs.streams_client(broker.uri, ssl=context) as client:
            publisher = await client.publisher('orders')
            await publisher.send(1)
            past = datetime(2020, 1, 1, tzinfo=UTC)
            expired = authority.issue_cert(
                '127.0.0.1', not_before=past, not_after=past + timedelta(days=1)
            )
            expired.configure_cert(server)
            await publisher.send(2)  # the connection stays
            broker.cut()
            with pytest.raises(rbs.TLSError, match='certificate has expired'):
                await publisher.send(3)
            authority.issue_cert('127.0.0.1').configure_cert(server)
            await publisher.send(4)  # the next use connects again
            await publisher.close()
        assert broker.messages('orders') == [1, 2, 4]


# -- the offset of the first message


@pytest.mark.parametrize(('version', 'first'), [('4.4', 1000), ('4.3', 0)])
async def test_initial_offset_of_a_stream(version: Any, first: int) -> None:
    async with (
        StreamBroker(version=version) as broker,
        rbs.streams_client(broker.uri) as client,
    ):
        await client.create_stream('orders', initial_offset=1000)
        await client.create_stream('orders', initial_offset=1000)
        async with client.publisher('orders') as publisher:
            await publisher.send_many(range(3))
        async with client.subscribe('orders', offset=rbs.Offset.FIRST) as messages:
            found = [await anext(messages.messages()) for _ in range(3)]
        assert [item.stream_offset for item in found] == [first, first + 1, first + 2]
        async with client.subscribe('orders', offset=rbs.Offset.offset(1001)) as messages:
            body = await anext(messages) if first else None
        assert body == (1 if first else None)
        with pytest.raises(ValueError, match='initial_offset'):
            await client.create_stream('x', initial_offset=-1)
