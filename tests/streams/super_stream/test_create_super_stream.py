"""Super streams are created, listed and deleted."""

import asyncio
import contextlib
from collections.abc import Iterator
from datetime import timedelta
from typing import Any, Literal
from uuid import uuid4

import pika
import pytest

import rbfly.streams as rbs
from brokers import RabbitMQ
from rbfly.net.connection import Connection
from rbfly.protocol import commands
from rbfly.protocol.commands import StreamMetadata
from rbfly.streams._admin.partitions import query_partitions, query_route
from rbfly.streams._super_stream.client import POLLS
from rbfly.testing import StreamBroker
from tests import fake_broker as wire
from tests.fake_broker import FakeBroker, Frame, refuse
from tests.fake_broker import FakeConnection as Peer
from tests.inside import cluster_of


@pytest.fixture
def name(broker: RabbitMQ) -> Iterator[str]:
    """A name for a super stream that the test creates; the fixture deletes it."""
    found = f'test-{uuid4()}'
    yield found
    asyncio.run(delete(broker.uri, found))


async def delete(uri: str, name: str) -> None:
    async with rbs.streams_client(uri) as client:
        await client.super_stream(name).delete()


async def test_create_by_number_of_partitions(client: rbs.StreamsClient, name: str) -> None:
    await client.super_stream(name).create(partitions=12)
    partitions = await client.super_stream(name).partitions()
    assert partitions == tuple(f'{name}-{i}' for i in range(12))
    for partition in partitions:
        assert (await client.stream_stats(partition)).committed_chunk_id is None
    assert await query_route(cluster_of(client), name, '3') == (f'{name}-3',)
    assert await query_route(cluster_of(client), name, '12') == ()


async def test_create_by_binding_keys(client: rbs.StreamsClient, name: str) -> None:
    await client.super_stream(name).create(binding_keys=iter(['emea', 'apac']))
    assert await client.super_stream(name).partitions() == (f'{name}-emea', f'{name}-apac')
    assert await query_route(cluster_of(client), name, 'apac') == (f'{name}-apac',)


async def test_partition_is_an_ordinary_stream(client: rbs.StreamsClient, name: str) -> None:
    await client.super_stream(name).create(partitions=2)
    async with client.publisher(f'{name}-1') as publisher:
        await publisher.send('x')
    async with client.subscribe(f'{name}-1', offset=rbs.Offset.FIRST) as messages:
        assert await anext(messages) == 'x'
    assert (await client.stream_stats(f'{name}-0')).committed_chunk_id is None


async def test_creating_twice_does_nothing(client: rbs.StreamsClient, name: str) -> None:
    for age in (1, 1, 2):
        await client.super_stream(name).create(partitions=3, max_age=timedelta(days=age))
    assert len(await client.super_stream(name).partitions()) == 3


async def test_clients_create_a_super_stream_that_another_client_is_creating(
    client: rbs.StreamsClient, broker: RabbitMQ, name: str
) -> None:
    """RabbitMQ refuses them before the super stream has its partitions."""
    locator = await client.get_protocol()

    async def create() -> int:
        await created(locator, name)
        async with rbs.streams_client(broker.uri) as other:
            await other.super_stream(name).create(partitions=20)
            return len(await other.super_stream(name).partitions())

    first = asyncio.create_task(client.super_stream(name).create(partitions=20))
    assert await asyncio.gather(*(create() for _ in range(3))) == [20] * 3
    await first


async def created(locator: Connection, name: str) -> None:
    """Wait until a super stream exists, with or without partitions."""
    while True:
        with contextlib.suppress(rbs.StreamDoesNotExist):
            await locator.request(commands.Partitions(name))
            return


@pytest.mark.parametrize(
    ('other', 'count'),
    [({'partitions': 2}, 2), ({'partitions': 4}, 4), ({'binding_keys': ['0', '2', '1']}, 3)],
    ids=str,
)
async def test_super_stream_exists_with_other_partitions(
    client: rbs.StreamsClient,
    name: str,
    other: dict[str, Any],
    count: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr('rbfly.streams._super_stream.client.POLLS', 2)
    await client.super_stream(name).create(partitions=3)
    with pytest.raises(rbs.ProtocolError, match='exists with other partitions') as caught:
        await client.super_stream(name).create(**other)
    assert caught.value.code == rbs.ResponseCode.STREAM_ALREADY_EXISTS
    found = f"'{name}-0', '{name}-1', '{name}-2'"
    assert f'it has 3 ({found}), requested: {count} (' in str(caught.value)


async def test_partition_was_deleted(
    client: rbs.StreamsClient, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr('rbfly.streams._super_stream.client.POLLS', 2)
    await client.super_stream(name).create(partitions=3)
    await client.delete_stream(f'{name}-1')
    assert await client.super_stream(name).partitions() == (f'{name}-0', f'{name}-2')
    with pytest.raises(rbs.ProtocolError, match='exists with other partitions'):
        await client.super_stream(name).create(partitions=3)


async def test_stream_has_the_name_of_a_partition(
    client: rbs.StreamsClient, stream_name: str
) -> None:
    name, _, key = stream_name.rpartition('-')
    await client.create_stream(stream_name)
    with pytest.raises(
        rbs.ProtocolError, match=f"with the names of its .*'{stream_name}'"
    ) as caught:
        await client.super_stream(name).create(binding_keys=['x', key])
    assert caught.value.code == rbs.ResponseCode.STREAM_ALREADY_EXISTS
    assert not await client.stream_exists(f'{name}-x')


async def test_queue_has_the_name_of_a_partition() -> None:
    """The protocol shows streams only."""

    def metadata(connection: Peer, request: Frame) -> None:
        code = rbs.ResponseCode.STREAM_DOES_NOT_EXIST
        missing = StreamMetadata(code, None, ())
        connection.respond(request, dict.fromkeys(request.decode().streams, missing))

    on = {wire.CREATE_SUPER_STREAM: refuse(0x05), wire.METADATA: metadata}
    async with FakeBroker(on=on) as fake, rbs.streams_client(fake.uri) as client:
        with pytest.raises(rbs.ProtocolError, match='there is a queue, but no stream'):
            await client.super_stream('orders').create(partitions=3)


async def test_names_that_do_not_fit_into_a_frame(client: rbs.StreamsClient) -> None:
    await client.stream_exists('orders')
    with pytest.raises(rbs.ArgumentError, match='CreateSuperStream needs a frame of'):
        await client.super_stream('x' * 200).create(partitions=10_000)
    assert client.connected


@pytest.mark.parametrize('version', ['4.0', '4.3'])
async def test_limit_of_the_broker(version: Literal['4.0', '4.3']) -> None:
    async with StreamBroker(version=version) as memory, rbs.streams_client(memory.uri) as client:
        await client.super_stream('orders').create(partitions=1000)
        if version == '4.0':
            await client.super_stream('many').create(partitions=1001)
        else:
            with pytest.raises(rbs.ProtocolError) as caught:
                await client.super_stream('many').create(partitions=1001)
            assert caught.value.code == rbs.ResponseCode.PRECONDITION_FAILED


async def test_super_stream_that_another_client_creates_slowly(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It may take any time, as long as RabbitMQ adds partitions."""
    monkeypatch.setattr('rbfly.streams._super_stream.client.POLL', 0)
    count = 0

    def partitions(connection: Peer, request: Frame) -> None:
        nonlocal count
        count += 1
        names = [f'orders-{i}' for i in range(min(3, count // (POLLS - 1)))]
        connection.respond(request, names)

    on = {wire.CREATE_SUPER_STREAM: refuse(0x05), wire.PARTITIONS: partitions}
    async with FakeBroker(on=on) as fake, rbs.streams_client(fake.uri) as client:
        await client.super_stream('orders').create(partitions=3)
    assert count == 3 * (POLLS - 1)


async def test_streams_that_another_client_creates_slowly(monkeypatch: pytest.MonkeyPatch) -> None:
    """RabbitMQ creates all of them before they become partitions."""
    monkeypatch.setattr('rbfly.streams._super_stream.client.POLL', 0)
    count = 0

    def metadata(connection: Peer, request: Frame) -> None:
        nonlocal count
        count += 1
        exists, missing = rbs.ResponseCode.OK, rbs.ResponseCode.STREAM_DOES_NOT_EXIST
        codes = [exists if i < count // (POLLS - 1) else missing for i in range(3)]
        streams = request.decode().streams
        connection.respond(
            request,
            {
                name: StreamMetadata(code, None, ())
                for name, code in zip(streams, codes, strict=True)
            },
        )

    def partitions(connection: Peer, request: Frame) -> None:
        done = count == 4 * (POLLS - 1)
        connection.respond(request, [f'orders-{i}' for i in range(3)] if done else [])

    on = {
        wire.CREATE_SUPER_STREAM: refuse(0x05),
        wire.METADATA: metadata,
        wire.PARTITIONS: partitions,
    }
    async with FakeBroker(on=on) as fake, rbs.streams_client(fake.uri) as client:
        await client.super_stream('orders').create(partitions=3)


async def test_delete(client: rbs.StreamsClient, name: str) -> None:
    await client.super_stream(name).create(partitions=3)
    publisher = await client.publisher(f'{name}-2')
    await client.super_stream(name).delete()
    with pytest.raises(rbs.StreamDoesNotExist):  # noqa: PT012
        async with asyncio.timeout(60):
            while True:  # the leader may end later
                await publisher.send('x')
    assert not await client.stream_exists(f'{name}-0')
    await client.super_stream(name).delete()
    with pytest.raises(rbs.StreamDoesNotExist, match=f"^super stream '{name}' does not exist"):
        await client.super_stream(name).partitions()
    with pytest.raises(rbs.StreamDoesNotExist, match=f"^super stream '{name}' does not exist"):
        await query_route(cluster_of(client), name, '0')


async def test_exists(client: rbs.StreamsClient, stream: str, name: str) -> None:
    orders = client.super_stream(name)
    assert not await orders.exists()
    await orders.create(partitions=1)
    assert await orders.exists()
    assert not await client.super_stream(stream).exists()  # a stream
    await client.delete_stream(f'{name}-0')
    assert await orders.exists()  # without partitions
    await orders.delete()
    assert not await orders.exists()


async def test_create_again_with_other_partitions(client: rbs.StreamsClient, name: str) -> None:
    await client.super_stream(name).create(partitions=3)
    await client.super_stream(name).delete()
    await client.super_stream(name).create(binding_keys=['ab'])
    assert await client.super_stream(name).partitions() == (f'{name}-ab',)


async def test_stream_is_no_super_stream(client: rbs.StreamsClient, stream: str) -> None:
    calls = (
        client.super_stream(stream).partitions(),
        client.super_stream(stream).delete(),
        query_route(cluster_of(client), stream, 'key'),
    )
    for call in calls:
        with pytest.raises(rbs.StreamDoesNotExist, match=f"^'{stream}' is a stream, not a super"):
            await call
    assert await client.stream_exists(stream)


async def test_super_stream_is_no_stream(client: rbs.StreamsClient, name: str) -> None:
    await client.super_stream(name).create(partitions=1)
    calls = (
        client.delete_stream(name),
        client.stream_stats(name),
        client.publisher(name),
        client.lag(name, 'reference'),
        client.lag(name, position=0),
        client.read_offset(name, 'reference'),
        client.write_offset(name, 'reference', 1, wait=True),
        client.resolve_offset(name, rbs.Offset.FIRST),
    )
    for call in calls:
        with pytest.raises(rbs.StreamDoesNotExist, match=f"^'{name}' is a super stream.*'{name}-0"):
            await call
    assert not await client.stream_exists(name)
    assert await client.super_stream(name).partitions() == (f'{name}-0',)


async def test_super_stream_without_partitions(client: rbs.StreamsClient, name: str) -> None:
    await client.super_stream(name).create(partitions=1)
    await client.delete_stream(f'{name}-0')
    with pytest.raises(rbs.StreamDoesNotExist, match=f"^super stream '{name}' has no partitions"):
        await client.super_stream(name).partitions()


async def test_raw_arguments(client: rbs.StreamsClient, name: str, stream_name: str) -> None:
    await client.super_stream(name).create(partitions=1, arguments={'max-age': '1h'})
    await client.create_stream(stream_name, arguments={'max-age': '3600s', 'unknown': 'x'})
    await client.create_stream(stream_name, max_age=timedelta(hours=1))
    with pytest.raises(rbs.ProtocolError, match='max-age=2h'):
        await client.create_stream(stream_name, arguments={'max-age': '2h'})


@pytest.mark.parametrize(
    ('given', 'error', 'text'),
    [
        ({}, ValueError, 'pass either partitions or binding_keys'),
        ({'partitions': 1, 'binding_keys': ['a']}, ValueError, 'pass either'),
        ({'partitions': 0}, ValueError, 'partitions must be from 1 to 10000, not 0'),
        ({'partitions': 10_001}, ValueError, 'partitions must be from 1 to 10000'),
        ({'partitions': '3'}, TypeError, 'partitions must be int, not str'),
        ({'binding_keys': 'emea'}, TypeError, "binding_keys must be a sequence of str, not 'emea'"),
        ({'binding_keys': {'emea'}}, TypeError, "binding_keys must be a sequence of str, not {'em"),
        ({'binding_keys': 3}, TypeError, 'binding_keys must be Iterable, not int'),
        ({'binding_keys': [1]}, TypeError, 'binding_keys must be str, not int'),
        ({'binding_keys': []}, ValueError, 'number of binding_keys must be from 1 to 10000'),
        ({'binding_keys': ['a', 'b', 'a']}, ValueError, "different: 'a' occurs twice$"),
        ({'binding_keys': ['a\n']}, ValueError, 'line breaks'),
        ({'partitions': 1, 'max_length_bytes': 0}, ValueError, 'max_length_bytes'),
        ({'partitions': 1, 'arguments': {'max-age': 1}}, TypeError, "'max-age' must be str"),
        (
            {'partitions': 1, 'max_length_bytes': 9, 'arguments': {'max-length-bytes': '8'}},
            ValueError,
            "'max-length-bytes' is passed twice",
        ),
    ],
    ids=str,
)
async def test_wrong_arguments(given: dict[str, Any], error: type[Exception], text: str) -> None:
    client = rbs.streams_client('rabbitmq-stream://localhost:1/')
    with pytest.raises(error, match=text):
        await client.super_stream('orders').create(**given)


async def test_long_name_of_a_partition() -> None:
    client = rbs.streams_client('rabbitmq-stream://localhost:1/')
    with pytest.raises(ValueError, match='the file system of a broker allows only'):
        await client.super_stream('x' * 231).create(partitions=101)


async def test_leaders_are_on_all_nodes() -> None:
    async with (
        StreamBroker(nodes=3) as broker,
        rbs.streams_client(broker.uri) as client,
    ):
        await client.super_stream('orders').create(partitions=6)
        leaders = [broker.leader(item) for item in await client.super_stream('orders').partitions()]
        await client.super_stream('here').create(partitions=3, leader_locator='client-local')
        local = {broker.leader(item) for item in await client.super_stream('here').partitions()}
    assert sorted(leaders) == [0, 0, 1, 1, 2, 2]
    assert len(local) == 1


async def test_partition_that_is_bound_twice() -> None:
    async with StreamBroker() as broker, rbs.streams_client(broker.uri) as client:
        broker.create_super_stream('orders', binding_keys=['a', 'b'])
        broker.create_stream('more')
        broker.bind('orders', 'orders-a', 'c')
        broker.bind('orders', 'more', 'c')
        assert await client.super_stream('orders').partitions() == ('orders-a', 'orders-b', 'more')
        found = await query_partitions(cluster_of(client), 'orders')
        assert found == ('orders-a', 'orders-b', 'orders-a', 'more')
        assert await query_route(cluster_of(client), 'orders', 'c') == ('more', 'orders-a')


async def test_user_without_permission(own_broker: RabbitMQ) -> None:
    user, name = f'user-{uuid4()}', f'test-{uuid4()}'
    own_broker.ctl('add_user', user, 'secret')
    try:
        own_broker.ctl('set_permissions', user, '', '', '')
        uri = own_broker.uri.replace('guest:guest@', f'{user}:secret@')
        async with rbs.streams_client(uri) as client:
            calls = (
                client.super_stream(name).create(partitions=2),
                client.super_stream(name).delete(),
            )
            for call in calls:
                with pytest.raises(rbs.ProtocolError, match='permission') as caught:
                    await call
                assert caught.value.code == rbs.ResponseCode.ACCESS_REFUSED
    finally:
        own_broker.ctl('delete_user', user)


@pytest.mark.broker
async def test_any_exchange_exists_as_a_super_stream(own_broker: RabbitMQ, name: str) -> None:
    """As the documentation says: the protocol does not distinguish them."""

    def with_exchange(exists: bool) -> None:
        with pika.BlockingConnection(pika.URLParameters(str(own_broker.amqp_uri))) as connection:
            channel = connection.channel()
            if exists:
                channel.exchange_declare(name, 'fanout')
            else:
                channel.exchange_delete(name)

    async with rbs.streams_client(own_broker.uri) as client:
        orders = client.super_stream(name)
        assert not await orders.exists()
        await asyncio.to_thread(with_exchange, True)
        try:
            assert await orders.exists()
            with pytest.raises(rbs.StreamDoesNotExist, match='has no partitions'):
                await orders.partitions()
        finally:
            await asyncio.to_thread(with_exchange, False)
