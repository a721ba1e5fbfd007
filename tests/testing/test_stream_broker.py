"""The public interface of the in-memory broker, in an event loop and in a thread."""

import asyncio
import socket
import ssl
import threading
import time
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import pytest
import pytest_asyncio
import trustme

import rbfly.streams as rbs
from rbfly.error import (
    ArgumentError,
    AuthenticationError,
    EventLoopError,
    StreamDoesNotExist,
    TLSError,
    VirtualHostError,
)
from rbfly.protocol.compression import Compression
from rbfly.protocol.fields import TIME_MAX
from rbfly.testing import StreamBroker
from tests.leaks import Snapshot

HANG = 20.0  # seconds; only a bug makes a test wait that long
CLOCK_MAX = TIME_MAX / 1000


@pytest_asyncio.fixture
async def memory() -> AsyncIterator[StreamBroker]:
    async with StreamBroker() as memory:
        yield memory


@pytest_asyncio.fixture
async def client(memory: StreamBroker) -> AsyncIterator[rbs.StreamsClient]:
    async with rbs.streams_client(memory.uri) as client:
        yield client


async def take(client: rbs.StreamsClient, stream: str, n: int, **options: Any) -> list[Any]:
    arguments: dict[str, Any] = {'offset': rbs.Offset.FIRST, 'timeout': HANG, **options}
    async with client.subscribe(stream, **arguments) as messages:
        return [await anext(messages) for _ in range(n)]


@pytest.mark.both_loops
async def test_publish_consume_and_inspect() -> None:
    before = Snapshot(futures=True)
    async with StreamBroker() as memory, rbs.streams_client(memory.uri) as client:
        await client.create_stream('orders')
        async with client.publisher('orders') as publisher:
            await publisher.send({'id': 1})
            await publisher.send_many({'id': i} for i in range(2, 20_001))
        expected = [{'id': i} for i in range(1, 20_001)]
        assert memory.streams == ['orders']
        assert memory.messages('orders') == expected
        assert memory.published == 20_000
        assert await take(client, 'orders', 20_000) == expected
        assert memory.connections > 0
    assert memory.connections == 0
    assert memory.messages('orders') == expected
    await before.check()


@pytest.mark.both_loops
async def test_stop_with_connected_clients() -> None:
    before = Snapshot(futures=True)
    memory = StreamBroker()
    await memory.__aenter__()
    client = rbs.streams_client(memory.uri)
    await client.create_stream('orders')
    async with client.subscribe('orders', offset=rbs.Offset.FIRST, timeout=HANG) as messages:
        memory.publish('orders', 1)
        assert await anext(messages) == 1
        await memory.__aexit__()
    assert not memory.running
    await client.disconnect()
    await before.check()


async def test_restart_keeps_port_and_streams() -> None:
    memory = StreamBroker()
    uris = []
    for number in range(2):
        async with memory, rbs.streams_client(memory.uri) as client:
            uris.append(memory.uri)
            await client.create_stream('orders')
            async with client.publisher('orders') as publisher:
                await publisher.send(number)
    assert memory.messages('orders') == [0, 1]
    assert uris[0] == uris[1]


async def test_many_brokers_at_once() -> None:
    brokers = [StreamBroker() for _ in range(20)]
    for memory in brokers:
        await memory.__aenter__()
    assert len({memory.port for memory in brokers}) == 20
    for i, memory in enumerate(brokers):
        async with rbs.streams_client(memory.uri) as client:
            await client.create_stream(f'stream-{i}')
        assert memory.streams == [f'stream-{i}']
    for memory in brokers:
        await memory.__aexit__()


async def test_broker_cannot_run_twice(memory: StreamBroker) -> None:
    with pytest.raises(EventLoopError, match='is already running'):
        await memory.__aenter__()
    with pytest.raises(EventLoopError, match='is already running'):
        memory.start()


async def test_port_in_use() -> None:
    with socket.create_server(('127.0.0.1', 0)) as taken:
        memory = StreamBroker(port=taken.getsockname()[1])
        with pytest.raises(OSError, match='in use'):
            await memory.__aenter__()
        with pytest.raises(OSError, match='in use'):
            memory.start()
        assert not memory.running
        memory.stop()


@pytest.mark.parametrize(
    'arguments', [{'port': 70_000}, {'nodes': 0}, {'frame_max': -1}, {'vhosts': ()}]
)
def test_arguments_are_checked(arguments: dict[str, int]) -> None:
    with pytest.raises(ValueError, match=r'must be from|at least one virtual host'):
        StreamBroker(**arguments)  # type: ignore[arg-type]


def test_virtual_hosts_are_not_the_characters_of_a_name() -> None:
    with pytest.raises(rbs.ArgumentTypeError, match="vhosts must be a sequence of str, not 'test'"):
        StreamBroker(vhosts='test')


def test_arguments_of_faults_are_checked() -> None:
    memory = StreamBroker()
    for function, wrong in (
        (memory.cut, 0),
        (memory.publish_error, 1),
        (memory.lose_confirms, 0),
        (memory.damage_chunk, -1),
        (memory.fail_authentication, 0x10000),
        (memory.advance, -1),
    ):
        with pytest.raises(ValueError, match='must be'):
            function(wrong)


@pytest.mark.parametrize(
    ('stream', 'arguments', 'error'),
    [
        ('', {}, rbs.ProtocolError),
        ('amq.x', {}, rbs.ProtocolError),
        ('x', {'stream_filter_size_bytes': '1'}, rbs.ProtocolError),
        ('x', {'max_age': 'old'}, rbs.ArgumentError),
        ('x', {'max_length_bytes': '1GB'}, rbs.ArgumentError),
    ],
)
def test_streams_that_rabbitmq_refuses(
    stream: str, arguments: dict[str, str], error: type[Exception]
) -> None:
    memory = StreamBroker()
    with pytest.raises(error):
        memory.create_stream(stream, **arguments)
    assert memory.streams == []


@pytest.mark.parametrize(
    ('stream', 'arguments', 'error', 'match'),
    [
        (5, {}, rbs.ArgumentTypeError, 'stream must be str, not int'),
        (None, {}, rbs.ArgumentTypeError, 'stream must be str'),
        ('x', {'max_age': 5}, rbs.ArgumentTypeError, 'max_age must be str, not int'),
        ('x', {'max_age': timedelta(hours=1)}, rbs.ArgumentTypeError, 'max_age must be str'),
        ('x', {'segment_size': '1000'}, rbs.ArgumentError, "'segment-size' is no argument"),
        ('x\ud800', {}, rbs.ArgumentError, 'not valid Unicode'),
        ('x', {'max_age': '1h\ud800'}, rbs.ArgumentError, 'not valid Unicode'),
        ('x' * 300, {}, rbs.ArgumentError, 'allows only'),
        ('x' * 234, {}, rbs.ArgumentError, 'allows only'),
    ],
)
def test_streams_that_the_client_refuses(
    stream: Any, arguments: dict[str, Any], error: type[Exception], match: str
) -> None:
    memory = StreamBroker()
    with pytest.raises(error, match=match):
        memory.create_stream(stream, **arguments)
    assert memory.streams == []
    memory.create_stream('x' * 233)


@pytest.mark.parametrize('seconds', [1e18, 1.2e12])
def test_clock_cannot_pass_its_maximum(seconds: float) -> None:
    memory = StreamBroker()
    memory.create_stream('orders')
    memory.advance(1e9)
    with pytest.raises(rbs.ArgumentError, match='clock'):
        memory.advance(seconds)
    memory.publish('orders', 1)
    assert memory.messages('orders') == [1]


async def test_latest_time_of_the_clock(memory: StreamBroker, client: rbs.StreamsClient) -> None:
    memory.create_stream('orders')
    memory.advance(CLOCK_MAX - time.time() - 60)
    memory.publish('orders', 1)
    async with client.subscribe('orders', offset=rbs.Offset.FIRST, timeout=HANG) as messages:
        assert await anext(messages) == 1
        found = rbs.get_message_ctx().stream_timestamp
    assert CLOCK_MAX - 120 < found < CLOCK_MAX


async def test_publish_splits_messages_into_chunks(
    memory: StreamBroker, client: rbs.StreamsClient
) -> None:
    memory.create_stream('orders')
    memory.publish('orders', *range(4096))
    memory.publish('orders', *range(10_000))
    assert memory.messages('orders') == [*range(4096), *range(10_000)]
    async with client.subscribe('orders', offset=rbs.Offset.FIRST, timeout=HANG) as messages:
        sizes: list[int] = []
        while sum(sizes) < 14_096:
            sizes.append(len(await anext(messages.batches())))
    assert sizes == [4096, 8192, 1808]


# -- threads


def test_broker_in_its_own_thread() -> None:
    async def publish(uri: str) -> None:
        async with rbs.streams_client(uri) as client, client.publisher('orders') as publisher:
            await publisher.send_many(range(100))
            await client.write_offset('orders', 'reader', 7)
            await client.read_offset('orders', 'reader')

    before = threading.active_count()
    with StreamBroker() as memory:
        memory.create_stream('orders')
        asyncio.run(publish(memory.uri))
        assert memory.messages('orders') == [*range(100)]
        assert memory.offsets('orders') == {'reader': 7}
    assert threading.active_count() == before
    assert memory.messages('orders') == [*range(100)]
    memory.stop()


async def test_methods_from_other_threads(memory: StreamBroker, client: rbs.StreamsClient) -> None:
    await asyncio.to_thread(memory.create_stream, 'orders')
    async with client.publisher('orders') as publisher:
        await publisher.send('a')
        assert await asyncio.to_thread(memory.messages, 'orders') == ['a']
        with pytest.raises(StreamDoesNotExist):
            await asyncio.to_thread(memory.messages, 'nothing')
        await asyncio.to_thread(memory.cut)
        await publisher.send('b')
    assert memory.messages('orders') == ['a', 'b']


async def test_thread_beside_the_event_loop_of_the_test() -> None:
    with StreamBroker() as memory:
        async with rbs.streams_client(memory.uri) as client:
            await client.create_stream('orders')
            memory.publish('orders', *range(10))
            assert await take(client, 'orders', 10) == [*range(10)]


# -- wait_for


async def publish_slowly(uri: str, count: int) -> None:
    async with rbs.streams_client(uri) as client:
        await client.create_stream('orders')
        async with client.publisher('orders') as publisher:
            for i in range(count):
                await publisher.send(i)


@pytest.mark.both_loops
async def test_wait_for_messages_of_a_stream_that_does_not_exist_yet() -> None:
    before = Snapshot(futures=True)
    async with StreamBroker() as memory:
        program = asyncio.create_task(publish_slowly(memory.uri, 20))
        found = await memory.wait_for('orders', 7, timeout=HANG)
        assert found == [*range(len(found))]
        assert len(found) >= 7
        assert await memory.wait_for('orders', 20, timeout=None) == [*range(20)]
        assert await memory.wait_for('orders', 1) == [*range(20)]  # already stored
        await program
    assert await memory.wait_for('orders', 20) == [*range(20)]  # the broker has stopped
    await before.check()


async def test_wait_for_a_broker_in_a_thread() -> None:
    with StreamBroker() as memory:
        program = asyncio.create_task(publish_slowly(memory.uri, 20))
        assert await memory.wait_for('orders', 20, timeout=HANG) == [*range(20)]
        await program


def test_wait_for_without_a_loop() -> None:
    with StreamBroker() as memory:
        program = threading.Thread(target=lambda: asyncio.run(publish_slowly(memory.uri, 20)))
        program.start()
        assert asyncio.run(memory.wait_for('orders', 20, timeout=HANG)) == [*range(20)]
        program.join()


async def test_wait_for_in_another_loop(memory: StreamBroker) -> None:
    memory.create_stream('orders')
    coro = memory.wait_for('orders', 2, raw=True, timeout=HANG)
    waiting = asyncio.create_task(asyncio.to_thread(asyncio.run, coro))
    memory.publish('orders', b'a')
    await asyncio.sleep(0)
    memory.publish('orders', b'b')
    assert await waiting == memory.messages('orders', raw=True)


async def test_wait_for_times_out(memory: StreamBroker) -> None:
    with pytest.raises(TimeoutError, match=r"0 of 1 message in 'orders' after 0\.01 s"):
        await memory.wait_for('orders', 1, timeout=0.01)
    memory.create_stream('orders')
    memory.publish('orders', 1, 2)
    with pytest.raises(TimeoutError, match='2 of 3 messages'):
        await memory.wait_for('orders', 3, timeout=0.01)
    for wrong in (0, -1, 1.5):
        with pytest.raises((ArgumentError, TypeError)):
            await memory.wait_for('orders', wrong)  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match='virtual host'):
        await memory.wait_for('orders', 1, vhost='other')


def test_wait_for_in_a_loop_that_was_closed() -> None:
    with StreamBroker() as memory:
        memory.create_stream('orders')
        loop = asyncio.new_event_loop()
        waiting = loop.create_task(memory.wait_for('orders', 1))
        loop.run_until_complete(asyncio.sleep(0))
        loop.close()
        memory.publish('orders', 1)
        assert memory.messages('orders') == [1]
        assert not waiting.done()
        waiting._log_destroy_pending = False  # type: ignore[attr-defined]


# -- streams


async def test_create_publish_and_delete_a_stream(
    memory: StreamBroker, client: rbs.StreamsClient
) -> None:
    memory.create_stream('orders', max_age='1h')
    memory.create_stream('orders')
    await client.create_stream('orders', max_age=timedelta(hours=1))
    with pytest.raises(rbs.ProtocolError) as caught:
        await client.create_stream('orders', max_age=timedelta(hours=2))
    assert caught.value.code == 0x11
    memory.publish('orders', 'a', rbs.stream_message_ctx('b', app_properties={'k': 1}))
    async with client.subscribe('orders', offset=rbs.Offset.FIRST, timeout=HANG) as messages:
        assert await anext(messages) == 'a'
        assert await anext(messages) == 'b'
        assert rbs.get_message_ctx().app_properties == {'k': 1}
    memory.delete_stream('orders')
    assert memory.streams == []
    assert memory.published == 2
    assert not await client.stream_exists('orders')


async def test_subscription_waits_for_messages(
    memory: StreamBroker, client: rbs.StreamsClient
) -> None:
    memory.create_stream('orders')
    async with client.subscribe('orders', timeout=HANG) as messages:
        waiting = asyncio.ensure_future(anext(messages))
        async with client.publisher('orders') as publisher:
            await client.stream_stats('orders')
            while not waiting.done():
                await publisher.send('a')
        assert await waiting == 'a'


async def test_unknown_streams(memory: StreamBroker) -> None:
    for function in (memory.messages, memory.offsets, memory.delete_stream, memory.publish):
        with pytest.raises(StreamDoesNotExist):
            function('nothing')


async def test_raw_messages(memory: StreamBroker, client: rbs.StreamsClient) -> None:
    memory.create_stream('orders')
    async with client.publisher('orders', amqp=False) as publisher:
        await publisher.send(b'not AMQP')
    assert memory.messages('orders', raw=True) == [b'not AMQP']
    with pytest.raises(rbs.AMQPDecoderError):
        memory.messages('orders')


@pytest.mark.parametrize('compression', Compression)
async def test_sub_entries_are_stored_unchanged(
    memory: StreamBroker, client: rbs.StreamsClient, compression: Compression
) -> None:
    memory.create_stream('orders')
    async with client.publisher('orders', sub_entry_size=7, compression=compression) as publisher:
        await publisher.send_many(range(1000))
    assert memory.messages('orders') == [*range(1000)]
    assert memory.published == 1000
    assert await take(client, 'orders', 10, offset=rbs.Offset.offset(500)) == [*range(500, 510)]


async def test_users_and_virtual_hosts() -> None:
    async with StreamBroker(users={'a b': 'p@ss/'}, vhosts=('tests/1', '/')) as memory:
        async with rbs.streams_client(memory.uri) as client:
            await client.create_stream('orders')
            memory.create_stream('orders', vhost='/')
            memory.publish('orders', 1, vhost='/')
            assert memory.messages('orders') == []
            assert memory.messages('orders', vhost='/') == [1]
            with pytest.raises(ValueError, match='no virtual host'):
                memory.messages('orders', vhost='nothing')
        address = f'127.0.0.1:{memory.port}'
        with pytest.raises(AuthenticationError) as refused:
            await rbs.streams_client(f'rabbitmq-stream://guest:x@{address}/').get_protocol()
        assert refused.value.code == 0x08
        uri = memory.uri.replace('tests%2F1', 'nothing')
        with pytest.raises(VirtualHostError):
            await rbs.streams_client(uri).get_protocol()


# -- exactly once, filters, offsets


async def test_named_publisher_continues_its_sequence(
    memory: StreamBroker, client: rbs.StreamsClient
) -> None:
    memory.create_stream('orders')
    for start in (0, 5):
        async with client.publisher('orders', name='shop') as publisher:
            await publisher.send_many(range(start, start + 5))
    assert memory.messages('orders') == [*range(10)]


async def test_filters(memory: StreamBroker, client: rbs.StreamsClient) -> None:
    def extract(message: rbs.MessageCtx) -> str | None:
        return str(message.body)[0] if message.body else None

    memory.create_stream('orders')
    async with client.publisher('orders', filter_extract=extract) as publisher:
        for body in ('a1', 'b1', '', 'a2'):
            await publisher.send(body)
    wanted = rbs.MessageFilter(extract, {'a'})
    assert await take(client, 'orders', 2, filter=wanted) == ['a1', 'a2']
    wanted = rbs.MessageFilter(extract, {'a'}, match_unfiltered=True)
    assert await take(client, 'orders', 3, filter=wanted) == ['a1', '', 'a2']


async def test_offsets(memory: StreamBroker, client: rbs.StreamsClient) -> None:
    memory.create_stream('orders')
    async with client.publisher('orders') as publisher:
        for i in range(5):
            await publisher.send(i)
            memory.advance(3600)
    assert await take(client, 'orders', 1, offset=rbs.Offset.LAST) == [4]
    assert await take(client, 'orders', 2, offset=rbs.Offset.offset(3)) == [3, 4]
    async with client.subscribe('orders', offset=rbs.Offset.FIRST, timeout=HANG) as messages:
        times = []
        for _ in range(5):
            await anext(messages)
            times.append(rbs.get_message_ctx().stream_timestamp)
    assert [round((time - times[0]) / 3600) for time in times] == [0, 1, 2, 3, 4]
    assert await take(client, 'orders', 3, offset=rbs.Offset.timestamp(times[2])) == [2, 3, 4]


async def test_retention_by_age_and_size(memory: StreamBroker, client: rbs.StreamsClient) -> None:
    await client.create_stream('old', max_age=timedelta(hours=1))
    await client.create_stream('large', max_length_bytes=100_000)
    for stream in ('old', 'large'):
        async with client.publisher(stream) as publisher:
            for i in range(10):
                await publisher.send(bytes([i]) * 30_000)
    memory.advance(1800)
    async with client.publisher('old') as publisher:
        await publisher.send('new')
    assert len(memory.messages('old')) == 11
    memory.advance(1801)
    assert memory.messages('old') == ['new']
    assert [body[0] for body in memory.messages('large')] == [7, 8, 9]
    assert [body[0] for body in await take(client, 'large', 3)] == [7, 8, 9]
    stats = await client.stream_stats('large')
    assert stats.first_chunk_id == 7
    assert stats.committed_offset == 9
    assert memory.published == 21


# -- TLS


@pytest.fixture(scope='module')
def authority() -> trustme.CA:
    return trustme.CA()


def server_side(authority: trustme.CA, verify: ssl.VerifyMode = ssl.CERT_NONE) -> ssl.SSLContext:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert('127.0.0.1').configure_cert(context)
    authority.configure_trust(context)
    context.verify_mode = verify
    return context


def client_side(authority: trustme.CA, user: str = '') -> ssl.SSLContext:
    context = ssl.create_default_context()
    authority.configure_trust(context)
    if user:
        # Python 3.13 and newer reject a certificate with a common name only
        authority.issue_cert('client.test', common_name=user).configure_cert(context)
    return context


@pytest.mark.both_loops
async def test_tls(authority: trustme.CA) -> None:
    before = Snapshot(futures=True)
    async with (
        StreamBroker(ssl=server_side(authority), nodes=2) as memory,
        rbs.streams_client(memory.uris, ssl=client_side(authority)) as client,
    ):
        assert all(uri.startswith('rabbitmq-stream+tls://') for uri in memory.uris)
        await client.create_stream('orders')
        async with client.publisher('orders') as publisher:
            memory.split(50)
            await publisher.send(0)
            memory.heal()
            memory.cut(after=20_000)
            await publisher.send_many(range(1, 10_000))
            memory.stop_node(memory.leader('orders'))
            await publisher.send(10_000)
        assert {*await take(client, 'orders', memory.published)} == {*range(10_001)}
    await before.check()


async def test_tls_broker_refuses_plain_tcp(authority: trustme.CA) -> None:
    async with StreamBroker(ssl=server_side(authority)) as memory:
        uri = memory.uri.replace('+tls', '')
        async with rbs.streams_client(uri, connect_timeout=0.5) as client:
            with pytest.raises(rbs.StreamConnectionError):
                await client.create_stream('orders')
        async with rbs.streams_client(memory.uri) as client:
            with pytest.raises(TLSError):  # the authority is unknown
                await client.create_stream('orders')
        async with rbs.streams_client(memory.uri, ssl=client_side(authority)) as client:
            await client.create_stream('orders')


@pytest.mark.both_loops
async def test_stop_while_a_client_is_silent(authority: trustme.CA) -> None:
    async with StreamBroker(ssl=server_side(authority)) as memory:
        with socket.create_connection(('127.0.0.1', memory.port)):
            async with rbs.streams_client(memory.uri, ssl=client_side(authority)) as client:
                await client.create_stream('orders')
            async with asyncio.timeout(9):  # the broker waits 10 s for a TLS handshake
                await memory.__aexit__()


async def test_external(authority: trustme.CA) -> None:
    async with StreamBroker(
        ssl=server_side(authority, ssl.CERT_OPTIONAL), users={'shop': ''}
    ) as memory:
        for user, known in [('shop', True), ('other', False), ('', False)]:
            async with rbs.streams_client(
                memory.uri, rbs.AuthMechanism.EXTERNAL, client_side(authority, user)
            ) as client:
                if known:
                    await client.create_stream('orders')
                    continue
                with pytest.raises(AuthenticationError) as caught:
                    await client.create_stream('orders')
                assert caught.value.code == 0x08
    assert memory.streams == ['orders']


async def test_tls_context_for_clients(authority: trustme.CA) -> None:
    with pytest.raises(ArgumentError, match='for servers'):
        StreamBroker(ssl=client_side(authority))


def test_methods_while_the_broker_stops() -> None:
    """A method called while the broker stops returns."""
    for _ in range(50):
        memory = StreamBroker()
        memory.start()
        asking = threading.Thread(target=lambda: [memory.published for _ in range(200)])  # noqa: B023
        asking.start()
        memory.stop()
        asking.join(HANG)
        assert not asking.is_alive()


async def test_external_needs_tls(memory: StreamBroker) -> None:
    async with rbs.streams_client(memory.uri, rbs.AuthMechanism.EXTERNAL) as client:
        with pytest.raises(AuthenticationError, match='EXTERNAL'):
            await client.create_stream('orders')
