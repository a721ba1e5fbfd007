"""Calls of a client that lose their connection are repeated, within the limits of the client."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from random import Random
from typing import Any

import pytest

import rbfly.streams as rbs
from brokers.proxy import Direction, Proxy
from rbfly.protocol.const import Key
from rbfly.streams.error import OffsetNotStored, ProtocolError, StreamConnectionError
from tests import fake_broker as wire
from tests.brokers import until
from tests.fake_broker import RESETTING, SILENT, FakeBroker, Handler, Step, refuse
from tests.streams.publish.test_publish_recovery import default, missing, once

HANG = 60.0  # seconds; only a safeguard
own_clock = pytest.mark.own_clock


def now() -> float:
    return asyncio.get_running_loop().time()


Call = Callable[[rbs.StreamsClient, str], Awaitable[object]]


async def create_again(client: rbs.StreamsClient, stream: str) -> object:
    await client.create_stream(stream)
    return await client.stream_exists(stream)


async def delete_and_create(client: rbs.StreamsClient, stream: str) -> object:
    await client.create_stream(f'{stream}-deleted')
    await client.delete_stream(f'{stream}-deleted')
    return await client.stream_exists(f'{stream}-deleted')


async def store(client: rbs.StreamsClient, stream: str) -> object:
    await client.write_offset(stream, 'r', 1, wait=True)
    return await client.read_offset(stream, 'r')


CALLS: dict[str, tuple[Call, object]] = {
    'read_offset': (lambda client, stream: client.read_offset(stream, 'stored'), 1),
    'stream_exists': (lambda client, stream: client.stream_exists(stream), True),
    'stream_stats': (lambda client, stream: client.stream_stats(stream), None),
    'resolve_offset': (lambda client, stream: client.resolve_offset(stream, rbs.Offset.FIRST), 0),
    'lag': (lambda client, stream: client.lag(stream, 'stored'), 1),
    'lag of a position': (lambda client, stream: client.lag(stream, position=2), 1),
    'create_stream': (create_again, True),
    'delete_stream': (delete_and_create, False),
    'write_offset': (store, 1),
}


@pytest.mark.parametrize('direction', ['up', 'down'])
@pytest.mark.parametrize('name', CALLS)
async def test_call_is_repeated_after_a_cut(
    name: str,
    direction: Direction,
    client: rbs.StreamsClient,
    stream: str,
    proxy: Proxy,
    rng: Random,
) -> None:
    call, expected = CALLS[name]
    async with client.publisher(stream) as publisher:
        await publisher.send_many(['a', 'b', 'c'])
    await client.write_offset(stream, 'stored', 1, wait=True)
    if name == 'stream_stats':
        expected = await client.stream_stats(stream)
    async with rbs.streams_client(proxy.uri, load_balancer=True) as own:
        await own.stream_exists(stream)
        for _ in range(4):
            proxy.cut_after(rng.randint(1, 60), direction)
            found = await call(own, stream)
            assert found == expected
        assert proxy.cuts >= 1


READ: Call = lambda client, stream: client.read_offset(stream, 'r')  # noqa: E731


@own_clock
@pytest.mark.parametrize('was_connected', [False, True])
async def test_peer_that_closes_every_connection_ends_a_call(was_connected: bool) -> None:
    """The limit is `connect_timeout`, or `reconnect_timeout` if the client was connected."""
    limits: Any = {'connect_timeout': 3, 'reconnect_timeout': 5}
    async with (
        FakeBroker(on={wire.QUERY_OFFSET: RESETTING}) as fake,
        rbs.streams_client(fake.uri, **limits) as client,
    ):
        if was_connected:
            await client.ping(None)
        begin = now()
        with pytest.raises(rbs.ConnectTimeout) as caught:
            await READ(client, 's')
        assert now() - begin == pytest.approx(5 if was_connected else 3, abs=0.1)
        assert 'connection lost' in str(caught.value.__cause__)
        assert (caught.value.stream, caught.value.reference) == ('s', 'r')
        assert 3 < len(fake.connections) < 20


@own_clock
async def test_call_without_a_limit_is_repeated_with_growing_delays() -> None:
    async with FakeBroker() as fake, rbs.streams_client(fake.uri) as client:
        await client.ping(None)
        fake.handlers[wire.QUERY_OFFSET] = RESETTING
        reading = asyncio.ensure_future(READ(client, 's'))
        await asyncio.sleep(1000)
        assert not reading.done()
        assert len(fake.connections) < 80
        fake.handlers.clear()
        assert await reading == 0


@own_clock
async def test_slow_answer_is_no_outage() -> None:
    """Neither `connect_timeout` nor `reconnect_timeout` limits a request."""

    def slow(peer: wire.FakeConnection, request: wire.Frame) -> None:
        asyncio.get_running_loop().call_later(20, default, peer, request)

    limits: Any = {'connect_timeout': 1, 'reconnect_timeout': 1}
    async with (
        FakeBroker(on={wire.CREATE: slow}) as fake,
        rbs.streams_client(fake.uri, **limits) as client,
    ):
        for _ in range(2):
            await client.create_stream('s')
        assert len(fake.connections) == 1


@own_clock
async def test_request_without_an_answer_is_not_repeated() -> None:
    async with (
        FakeBroker(on={wire.QUERY_OFFSET: SILENT}) as fake,
        rbs.streams_client(fake.uri, request_timeout=2) as client,
    ):
        begin = now()
        with pytest.raises(rbs.RequestTimeout) as caught:
            await READ(client, 's')
        assert now() - begin < 2.5
        assert (caught.value.stream, caught.value.reference) == ('s', 'r')


@own_clock
async def test_closing_the_client_ends_a_call_that_is_repeated() -> None:
    async with FakeBroker(on={wire.QUERY_OFFSET: RESETTING}) as fake:
        client = rbs.streams_client(fake.uri)
        reading = asyncio.ensure_future(READ(client, 's'))
        await asyncio.sleep(5)
        fake.handlers[Step.OPEN] = RESETTING
        await asyncio.sleep(5)
        await client.close()
        with pytest.raises(StreamConnectionError):
            await reading


async def test_stream_that_is_not_available_is_asked_for_again() -> None:
    unavailable = refuse(rbs.ResponseCode.STREAM_NOT_AVAILABLE)
    async with (
        FakeBroker(on={wire.QUERY_OFFSET: once(unavailable, default)}) as fake,
        rbs.streams_client(fake.uri) as client,
    ):
        assert await READ(client, 's') == 0
        assert len(fake.connections) == 1


# -- super streams


async def super_partitions(client: rbs.StreamsClient, stream: str) -> object:
    return len(await client.super_stream(stream).partitions())


async def create_from_keys(client: rbs.StreamsClient, stream: str) -> object:
    """The keys come from an iterator, which cannot be read twice."""
    other = client.super_stream(f'{stream}-keys')
    await other.create(binding_keys=iter(['emea', 'apac']))
    found = await other.partitions()
    await other.delete()
    exist = [await client.stream_exists(name) for name in found]
    return await other.exists(), exist


SUPER_CALLS: dict[str, tuple[Call, object]] = {
    'partitions': (super_partitions, 3),
    'exists': (lambda client, stream: client.super_stream(stream).exists(), True),
    'create and delete': (create_from_keys, (False, [False, False])),
}


@pytest.mark.parametrize('direction', ['up', 'down'])
@pytest.mark.parametrize('name', SUPER_CALLS)
async def test_call_of_a_super_stream_is_repeated_after_a_cut(
    name: str, direction: Direction, super_stream: str, proxy: Proxy, rng: Random
) -> None:
    call, expected = SUPER_CALLS[name]
    async with rbs.streams_client(proxy.uri, load_balancer=True) as own:
        await own.ping(None)
        for _ in range(3):
            proxy.cut_after(rng.randint(1, 100), direction)
            assert await call(own, super_stream) == expected
        assert proxy.cuts >= 1


async def test_repeated_delete_of_a_super_stream_waits_until_the_partitions_are_gone() -> None:
    """The broker no longer knows the super stream, but may still be deleting its partitions."""
    deleted: list[str] = []

    def delete(peer: wire.FakeConnection, request: wire.Frame) -> None:
        deleted.append(request.decode().stream)
        default(peer, request)

    def partitions(peer: wire.FakeConnection, request: wire.Frame) -> None:
        peer.respond(request, ('s-0', 's-1'))

    gone = refuse(rbs.ResponseCode.STREAM_DOES_NOT_EXIST)
    handlers: dict[int, Handler] = {
        Key.PARTITIONS: partitions,
        Key.METADATA: missing,
        Key.DELETE_SUPER_STREAM: once(RESETTING, gone),
        Key.DELETE: delete,
    }
    async with FakeBroker(on=handlers) as fake, rbs.streams_client(fake.uri) as client:
        await client.super_stream('s').delete()
        assert deleted == ['s-0', 's-1']


async def test_errors_of_a_super_stream_name_it(client: rbs.StreamsClient) -> None:
    nowhere = client.super_stream('nowhere')
    for call in (nowhere.partitions(), nowhere.lag('r'), nowhere.read_offset('r')):
        with pytest.raises(rbs.StreamDoesNotExist) as caught:
            await call
        assert caught.value.stream == 'nowhere'


async def test_failed_query_of_a_super_stream_leaves_no_task() -> None:
    """The query of another partition, which is not available, would be repeated for ever."""

    def partitions(peer: wire.FakeConnection, request: wire.Frame) -> None:
        peer.respond(request, ('s-0', 's-1'))

    def query(peer: wire.FakeConnection, request: wire.Frame) -> None:
        code = rbs.ResponseCode.STREAM_NOT_AVAILABLE
        if request.decode().stream == 's-1':
            code = rbs.ResponseCode.ACCESS_REFUSED
        refuse(code)(peer, request)

    handlers: dict[int, Handler] = {Key.PARTITIONS: partitions, Key.QUERY_OFFSET: query}
    async with FakeBroker(on=handlers) as fake, rbs.streams_client(fake.uri) as client:
        await client.ping()
        before = asyncio.all_tasks()
        with pytest.raises(ProtocolError, match='0x10'):
            await client.super_stream('s').read_offset('r')
        await until(lambda: asyncio.all_tasks() == before, 'no query is left')


# -- what errors are about


Failing = Callable[[rbs.StreamsClient], Awaitable[object]]
NO_STREAM: dict[str, tuple[Failing, str | None]] = {
    'read_offset': (lambda client: client.read_offset('nowhere', 'r'), 'r'),
    'write_offset': (lambda client: client.write_offset('nowhere', 'r', 1, wait=True), 'r'),
    'lag': (lambda client: client.lag('nowhere', 'r'), 'r'),
    'lag of a position': (lambda client: client.lag('nowhere', position=0), None),
    'resolve_offset': (lambda client: client.resolve_offset('nowhere', rbs.Offset.LAST), None),
    'stream_stats': (lambda client: client.stream_stats('nowhere'), None),
    'publisher': (lambda client: client.publisher('nowhere').__aenter__(), None),
    'subscribe': (lambda client: anext(client.subscribe('nowhere')), None),
    'open': (lambda client: client.subscribe('nowhere').open(), None),
}


@pytest.mark.parametrize('name', NO_STREAM)
async def test_missing_stream_is_named(client: rbs.StreamsClient, name: str) -> None:
    call, reference = NO_STREAM[name]
    with pytest.raises(rbs.StreamDoesNotExist) as caught:
        await call(client)
    assert (caught.value.stream, caught.value.reference) == ('nowhere', reference)


# Metadata has no code of its own.
@pytest.mark.parametrize('name', [name for name in CALLS if name != 'stream_exists'])
async def test_refused_request_names_its_stream(name: str) -> None:
    keys = (wire.QUERY_OFFSET, wire.STREAM_STATS, wire.SUBSCRIBE, wire.CREATE, wire.DELETE)
    denied = refuse(rbs.ResponseCode.ACCESS_REFUSED)
    async with (
        FakeBroker(on=dict.fromkeys(keys, denied)) as fake,
        rbs.streams_client(fake.uri) as client,
    ):
        with pytest.raises(ProtocolError) as caught:
            await CALLS[name][0](client, 's')
        assert caught.value.stream in ('s', 's-deleted')


async def test_offset_that_is_not_stored_is_named() -> None:
    async with FakeBroker() as fake, rbs.streams_client(fake.uri) as client:
        with pytest.raises(OffsetNotStored) as caught:
            await client.write_offset('s', 'r', 5, wait=True)
        assert (caught.value.stream, caught.value.reference) == ('s', 'r')


async def test_errors_of_waiting_name_the_stream(client: rbs.StreamsClient, stream: str) -> None:
    messages = client.subscribe(stream, timeout=0.01)
    with pytest.raises(rbs.MessageTimeout) as timed_out:
        await anext(messages)
    await messages.aclose()
    with pytest.raises(rbs.SubscriptionClosed) as closed:
        await messages.fetch()
    errors: list[Any] = [timed_out.value, closed.value]
    assert [error.stream for error in errors] == [stream, stream]


async def test_commit_that_cannot_connect_names_stream_and_reference(
    client: rbs.StreamsClient, stream: str, proxy: Proxy
) -> None:
    async with client.publisher(stream) as publisher:
        await publisher.send('a')
    tracking = rbs.OffsetTracking('r', manual=True)
    async with rbs.streams_client(proxy.uri, load_balancer=True, reconnect_timeout=0.2) as own:
        messages = own.subscribe(stream, offset=rbs.Offset.FIRST, commit=tracking)
        assert await anext(messages) == 'a'
        proxy.refuse()
        proxy.cut()
        with pytest.raises(StreamConnectionError) as caught:
            await messages.commit()
        assert (caught.value.stream, caught.value.reference) == (stream, 'r')
        proxy.accept()
        # on a busy machine, one attempt may take longer than `reconnect_timeout`
        async with asyncio.timeout(HANG):
            while True:
                with contextlib.suppress(StreamConnectionError):
                    await messages.commit()
                    break
        assert await client.read_offset(stream, 'r') == 0


async def test_name_in_use_names_the_stream(client: rbs.StreamsClient, stream: str) -> None:
    async with client.publisher(stream, name='shop'):
        with pytest.raises(rbs.PublisherNameInUse) as caught:
            await client.publisher(stream, name='shop')
        assert caught.value.stream == stream
