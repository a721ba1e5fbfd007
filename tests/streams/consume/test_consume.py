"""Consuming messages of other protocols and clients, with offsets, credit and filters.

More tests: offsets in test_subscribe.py, stored offsets in test_tracking.py, compressed chunks in
tests/protocol/test_decompression.py.  RabbitMQ converts MQTT and STOMP messages, which reach a
stream through an exchange.
"""

import asyncio
import gc
import gzip
import socket
import struct
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Any
from urllib.parse import urlsplit
from uuid import UUID

import cramjam
import pika
import pytest
import rstream

import rbfly.streams as rbs
from brokers import BrokerError, RabbitMQ
from brokers import wire as raw
from brokers.state import free_ports
from proofs.foreign import write_mqtt
from rbfly.amqp import AMQPHeader, AMQPProperties, encode_amqp_bytes
from rbfly.protocol import commands
from rbfly.streams import MessageCtx
from rbfly.streams.error import ChunkError, FrameError, MessageTimeout, StreamDoesNotExist
from rbfly.types import Symbol
from tests import fake_broker as wire
from tests.brokers import until
from tests.fake_broker import FakeBroker, Frame
from tests.fake_broker import FakeConnection as Peer
from tests.fake_stream import FakeStream
from tests.inside import cursor_of
from tests.streams.test_interop import pika_messages

HANG = 20.0  # seconds; only a safeguard
FREE_IDS = 256


async def publish(client: rbs.StreamsClient, stream: str, *bodies: Any, **arguments: Any) -> None:
    """Publish as one batch: usually one chunk, or few."""
    async with client.publisher(stream, **arguments) as publisher:
        for body in bodies:
            publisher.batch(body)
        await publisher.flush()


async def take(messages: Any, n: int) -> list[Any]:
    return [await anext(messages) for _ in range(n)]


def first(client: rbs.StreamsClient, stream: str, **arguments: Any) -> rbs.Subscription:
    defaults: dict[str, Any] = {'offset': rbs.Offset.FIRST, 'timeout': HANG}
    found: rbs.Subscription = client.subscribe(stream, **(defaults | arguments))
    return found


def entry(messages: Sequence[bytes], code: int | None = None) -> bytes:
    """An entry of a Publish frame: one message, or a sub-entry batch in a codec."""
    data = b''.join(struct.pack('>I', len(item)) + item for item in messages)
    if code is None:
        return data
    packed = {
        0: lambda: data,
        1: lambda: gzip.compress(data),
        2: lambda: bytes(cramjam.snappy.compress(data)),
        3: lambda: bytes(cramjam.lz4.compress(data)),
        4: lambda: bytes(cramjam.zstd.compress(data)),
    }[code]()
    return struct.pack('>BHII', 0x80 | code << 4, len(messages), len(data), len(packed)) + packed


def write_entries(broker: RabbitMQ, stream: str, entries: Sequence[bytes]) -> None:
    """Publish entries in one frame, unchanged; return when they are confirmed."""
    connection = raw.Connection(broker.uri)
    try:
        connection.declare_publisher(stream)
        body = struct.pack('>BI', 0, len(entries))
        body += b''.join(struct.pack('>Q', i) + data for i, data in enumerate(entries))
        connection.socket.sendall(wire.frame(wire.PUBLISH, body))
        confirmed = 0
        while confirmed < len(entries):
            confirmed += connection.read_confirms()
    finally:
        connection.close()


# -- AMQP 0.9.1, in both directions

COUNT = 1000


def properties_of(i: int) -> dict[str, Any]:
    return {
        'content_type': 'application/json',
        'content_encoding': 'identity',
        'delivery_mode': 2,
        'priority': i % 10,
        'correlation_id': f'correlation {i}',
        'reply_to': 'answers',
        'expiration': '60000',
        'message_id': f'message {i}',
        'timestamp': 1_700_000_000 + i,
        'type': 'order',
        'user_id': 'guest',
        'app_id': 'shop',
    }


def headers_of(i: int) -> dict[str, Any]:
    return {
        'text': f'zażółć {i}',
        'number': i,
        'big': 2**40 + i,
        'yes': True,
        'nothing': None,
        'bytes': bytes([i % 256]),
    }


def write_amqp091(broker: RabbitMQ, stream: str) -> None:
    with pika.BlockingConnection(pika.URLParameters(str(broker.amqp_uri))) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        for i in range(COUNT):
            properties = pika.BasicProperties(headers=headers_of(i), **properties_of(i))
            channel.basic_publish('', stream, b'body %d' % i, properties, mandatory=True)


async def test_amqp091_to_stream(
    own_broker: RabbitMQ, own_client: rbs.StreamsClient, own_stream: str
) -> None:
    await asyncio.to_thread(write_amqp091, own_broker, own_stream)
    async with first(own_client, own_stream) as messages:
        contexts = aiter(messages.messages())
        for i in range(COUNT):
            ctx = await anext(contexts)
            assert ctx.body == b'body %d' % i
            assert ctx.header.durable
            assert ctx.header.priority == i % 10
            assert ctx.header.ttl == 60_000
            found = ctx.properties
            assert found.message_id == f'message {i}'
            assert found.correlation_id == f'correlation {i}'
            # 4.3 makes it an address of AMQP 1.0
            assert (found.reply_to or '').removeprefix('/queues/') == 'answers'
            assert str(found.content_type) == 'application/json'
            assert str(found.content_encoding) == 'identity'
            assert found.user_id == b'guest'
            assert found.creation_time == datetime.fromtimestamp(1_700_000_000 + i, UTC)
            assert found.group_id == 'shop'
            assert ctx.app_properties.items() >= headers_of(i).items()


async def test_every_kind_of_header(
    own_broker: RabbitMQ, own_client: rbs.StreamsClient, own_stream: str
) -> None:
    """RabbitMQ stores tables and arrays only under names that begin with `x-`."""
    written = datetime(2023, 11, 14, 22, 13, 20, tzinfo=UTC)
    simple = {
        'text': 'zażółć',
        'nul': 'a\0b',
        'long': 'x' * 5000,
        'number': 1,
        'negative': -5,
        'big': 2**40,
        'smallest': -(2**63),
        'no': False,
        'nothing': None,
        'bytes': b'\xff\x00',
        'time': written,
    }
    kept = {
        'x-text': 'bar',
        'x-list': [1, 'a', [2], None],
        'x-table': {'k': 'v', 'inner': {'yes': True}},
        'x-stream-filter-value': 'fv',
    }
    dropped = {'list': [1, 'a'], 'table': {'k': 1}}
    headers = {**simple, **kept, **dropped, 'CC': ['nowhere']}
    identity = UUID('f81d4fae-7dec-11d0-a765-00a0c91e6bf6')

    def write() -> None:
        with pika.BlockingConnection(pika.URLParameters(str(own_broker.amqp_uri))) as connection:
            properties = pika.BasicProperties(
                headers=headers, message_id=f'urn:uuid:{identity}', type='order'
            )
            connection.channel().basic_publish('', own_stream, b'body', properties)

    await asyncio.to_thread(write)
    async with first(own_client, own_stream) as messages:
        ctx = await anext(aiter(messages.messages()))
    # RabbitMQ stores a long text, or one with a NUL, as binary
    expected = simple | {'nul': b'a\0b', 'long': b'x' * 5000}
    assert ctx.app_properties == expected
    assert ctx.properties.message_id == identity
    assert not ctx.header.durable
    found = {str(key): value for key, value in ctx.annotations.items()}
    inner = found.pop('x-table')
    assert {str(key): value for key, value in inner.items() if str(key) == 'k'} == {'k': 'v'}
    assert {str(key): value for key, value in inner[Symbol('inner')].items()} == {'yes': True}
    del kept['x-table']
    assert found.items() >= kept.items()
    assert found['x-basic-type'] == 'order'
    assert found['x-cc'] == ['nowhere']
    assert (found['x-exchange'], found['x-routing-key']) == ('', own_stream)


async def test_stream_to_amqp091(
    own_broker: RabbitMQ, own_client: rbs.StreamsClient, own_stream: str
) -> None:
    bodies = [
        rbs.stream_message_ctx(
            b'body %d' % i,
            header=AMQPHeader(durable=True, priority=i % 10),
            properties=AMQPProperties(
                message_id=f'message {i}',
                correlation_id=f'correlation {i}',
                content_type='application/json',
                creation_time=datetime.fromtimestamp(1_700_000_000 + i, UTC),
                user_id=b'guest',
            ),
            app_properties={'text': f'zażółć {i}', 'number': i, 'yes': True},
        )
        for i in range(COUNT)
    ]
    await publish(own_client, own_stream, *bodies)
    found = await asyncio.to_thread(pika_messages, own_broker, own_stream, COUNT)
    for i, (properties, body) in enumerate(found):
        assert body == b'body %d' % i
        assert properties.message_id == f'message {i}'
        assert properties.correlation_id == f'correlation {i}'
        assert properties.content_type == 'application/json'
        assert properties.timestamp == 1_700_000_000 + i
        assert properties.user_id == 'guest'
        assert (properties.priority or 4 if i % 10 else properties.priority) == i % 10
        assert properties.headers['text'] == f'zażółć {i}'
        assert properties.headers['number'] == i
        assert properties.headers['yes'] is True


# -- MQTT and STOMP


@pytest.fixture(scope='module')
def broker_with_plugins() -> Iterator[tuple[RabbitMQ, int, int]]:
    """A broker with the MQTT and STOMP plugins, and their ports."""
    mqtt, stomp = free_ports(2)
    broker = RabbitMQ.private(
        plugins=['rabbitmq_mqtt', 'rabbitmq_stomp'],
        config=[
            f'mqtt.listeners.tcp.1 = 127.0.0.1:{mqtt}',
            f'stomp.listeners.tcp.1 = 127.0.0.1:{stomp}',
        ],
    )
    try:
        broker.start()
    except BrokerError as ex:
        pytest.fail(f'no RabbitMQ with the plugins for MQTT and STOMP: {ex}')
    yield broker, mqtt, stomp
    broker.stop(orderly=False)


def write_stomp(port: int, destination: str, payloads: Sequence[bytes]) -> None:
    with socket.create_connection(('127.0.0.1', port), timeout=HANG) as peer:
        file = peer.makefile('rwb')

        def send(command: str, body: bytes, headers: dict[str, str]) -> str:
            head = ''.join(f'{key}:{value}\n' for key, value in headers.items())
            file.write(f'{command}\n{head}\n'.encode() + body + b'\0')
            file.flush()
            answer = b''
            while not answer.endswith(b'\0'):
                answer += file.read(1)
            return answer.decode().strip('\n\0')

        login = {'accept-version': '1.2', 'login': 'guest', 'passcode': 'guest'}
        assert send('CONNECT', b'', login).startswith('CONNECTED')
        for i, payload in enumerate(payloads):
            headers = {'destination': destination, 'receipt': str(i), 'kind': f'message {i}'}
            answer = send('SEND', payload, headers)
            assert answer.startswith('RECEIPT')


def bind(broker: RabbitMQ, stream: str, exchange: str, key: str) -> None:
    with pika.BlockingConnection(pika.URLParameters(str(broker.amqp_uri))) as connection:
        connection.channel().queue_bind(stream, exchange, key)


@pytest.mark.rabbitmq
@pytest.mark.parametrize('protocol', ['mqtt', 'stomp'])
async def test_other_protocols_to_stream(
    broker_with_plugins: tuple[RabbitMQ, int, int], protocol: str
) -> None:
    broker, mqtt, stomp = broker_with_plugins
    stream = f'test-{protocol}'
    payloads = [b'', b'text', 'zażółć'.encode(), bytes(range(100))]
    async with rbs.streams_client(broker.uri) as client:
        await client.create_stream(stream)
        await asyncio.to_thread(bind, broker, stream, 'amq.topic', 'shop.orders')
        if protocol == 'mqtt':
            await asyncio.to_thread(write_mqtt, mqtt, 'shop/orders', payloads)
        else:
            await asyncio.to_thread(write_stomp, stomp, '/topic/shop.orders', payloads[:3])
        async with first(client, stream) as messages:
            contexts = aiter(messages.messages())
            for i, payload in enumerate(payloads if protocol == 'mqtt' else payloads[:3]):
                ctx = await anext(contexts)
                assert ctx.body == payload
                if protocol == 'stomp':
                    assert ctx.app_properties['kind'] == f'message {i}'
        await client.delete_stream(stream)


# -- sub-entries of every codec


async def test_every_codec_in_one_chunk(
    broker: RabbitMQ, client: rbs.StreamsClient, stream: str
) -> None:
    entries: list[bytes] = []
    expected: list[str] = []
    for code in (None, 0, 1, 2, 3, 4, None, 4, 3, 2, 1, 0):
        count = 1 if code is None else 7
        bodies = [f'{code} {len(expected) + i}' for i in range(count)]
        entries.append(entry([encode_amqp_bytes(body) for body in bodies], code))
        expected += bodies
    await asyncio.to_thread(write_entries, broker, stream, entries)
    async with first(client, stream) as messages:
        assert await take(messages, len(expected)) == expected
    async with first(client, stream) as messages:
        contexts = await take(aiter(messages.messages()), len(expected))
        assert [ctx.body for ctx in contexts] == expected
        assert [ctx.stream_offset for ctx in contexts] == list(range(len(expected)))
    async with first(client, stream) as messages:
        found: list[Any] = []
        async for batch in messages.batches():
            assert list(batch.offsets) == list(range(len(found), len(found) + len(batch)))
            found += batch
            if len(found) == len(expected):
                break
        assert found == expected


@pytest.mark.parametrize('compression', ['No', 'Gzip'])
async def test_sub_entries_of_rstream(
    broker: RabbitMQ, client: rbs.StreamsClient, stream: str, compression: str
) -> None:
    address = urlsplit(broker.uri)
    async with rstream.Producer(
        str(address.hostname), int(address.port or 5552), username='guest', password='guest'
    ) as producer:
        for i in range(10):
            batch = [rstream.AMQPMessage(body=f'{i} {j}'.encode()) for j in range(100)]
            kind = getattr(rstream.CompressionType, compression)
            await producer.send_sub_entry(stream, batch, compression_type=kind)
        async with first(client, stream) as messages:
            for i in range(10):
                for j in range(100):
                    assert await anext(messages) == f'{i} {j}'.encode()
                    assert rbs.get_message_ctx().stream_offset == 100 * i + j


# -- a chunk whose CRC is wrong


@pytest.mark.parametrize('kind', ['bodies', 'messages', 'batches'])
async def test_damaged_chunk_raises_and_is_skipped(kind: str) -> None:
    stream = FakeStream()
    stream.append(b'0')
    damaged = bytearray(wire.chunk(1, [b'1']))
    damaged[-1] ^= 1
    stream.append_chunk(bytes(damaged), 1)
    stream.append(b'2')
    async with FakeBroker(on=stream.handlers()) as fake, rbs.streams_client(fake.uri) as client:
        async with first(client, 'test', amqp=False) as messages:
            found = aiter(messages if kind == 'bodies' else getattr(messages, kind)())
            await anext(found)
            with pytest.raises(ChunkError, match='CRC of the chunk at offset 1'):
                await anext(found)
            last = await anext(found)
            body = {
                'bodies': lambda: last,
                'messages': lambda: last.body,
                'batches': lambda: last[0],
            }
            assert body[kind]() == b'2'
        assert len(stream.readers) == 1


# -- offsets


async def test_offsets_in_filtered_chunks(client: rbs.StreamsClient, stream: str) -> None:
    def extract(ctx: MessageCtx) -> str:
        return str(ctx.body)[0]

    bodies = [f'{"ab"[i % 2]}{i}' for i in range(1000)]
    await publish(client, stream, *bodies, filter_extract=extract)
    only = rbs.MessageFilter(extract, {'b'})
    expected = [(i, body) for i, body in enumerate(bodies) if body[0] == 'b']
    async with first(client, stream, filter=only) as messages:
        found = []
        for _ in expected:
            body = await anext(messages)
            found.append((rbs.get_message_ctx().stream_offset, body))
        assert found == expected
    async with first(client, stream, filter=only) as messages:
        found = []
        async for batch in messages.batches(max_messages=70):
            found += zip(batch.offsets, batch, strict=True)
            if len(found) == len(expected):
                break
        assert found == expected


async def test_offsets_over_gaps(broker: RabbitMQ, client: rbs.StreamsClient, stream: str) -> None:
    """Stored offsets use up offsets between those of messages."""
    expected = []
    for i in range(5):
        await client.write_offset(stream, f'reader {i}', 0)
        assert await client.read_offset(stream, f'reader {i}') == 0
        await asyncio.to_thread(
            write_entries, broker, stream, [entry([encode_amqp_bytes(str(i))] * 3, 1)]
        )
        expected += [str(i)] * 3
    async with first(client, stream) as messages:
        contexts = await take(aiter(messages.messages()), 15)
    assert [ctx.body for ctx in contexts] == expected
    offsets = [ctx.stream_offset for ctx in contexts]
    assert offsets == sorted(set(offsets))
    assert offsets[-1] > 14
    for i in (1, 4, 8, 14):
        async with first(client, stream, offset=rbs.Offset.offset(offsets[i])) as messages:
            assert await take(messages, 15 - i) == expected[i:]


# -- a start within a chunk, and within a sub-entry


@pytest.mark.parametrize('code', [0, 1, 2, 3, 4])
async def test_start_within_a_sub_entry(
    broker: RabbitMQ, client: rbs.StreamsClient, stream: str, code: int
) -> None:
    data = [entry([encode_amqp_bytes(10 * i + j) for j in range(10)], code) for i in range(5)]
    await asyncio.to_thread(write_entries, broker, stream, data)
    for start in (0, 1, 9, 10, 25, 49):
        offset = rbs.Offset.offset(start)
        async with first(client, stream, offset=offset) as messages:
            assert await take(messages, 50 - start) == list(range(start, 50))
            assert rbs.get_message_ctx().stream_offset == 49


# -- both versions of Deliver


@pytest.mark.parametrize('version', [1, 2])
async def test_version_of_deliver(version: int) -> None:
    def subscribe(connection: Peer, request: Frame) -> None:
        connection.answer(request)
        head = struct.pack('>B', request.body[4])
        if version == 2:
            head += struct.pack('>Q', 7)
        chunk = wire.chunk(5, [b'a', b'b'])
        connection.send(wire.frame(wire.DELIVER, head + chunk, version))

    async with (
        FakeBroker(on={wire.SUBSCRIBE: subscribe}) as fake,
        rbs.streams_client(fake.uri) as client,
        first(client, 'test', amqp=False) as messages,
    ):
        assert await anext(messages) == b'a'
        assert await anext(messages) == b'b'
        assert rbs.get_message_ctx().stream_offset == 6


# -- where a subscription starts; see also test_subscribe.py


@pytest.mark.parametrize('offset', [rbs.Offset.FIRST, rbs.Offset.LAST, rbs.Offset.NEXT])
async def test_start_in_an_empty_stream(
    client: rbs.StreamsClient, stream: str, offset: rbs.Offset
) -> None:
    async with first(client, stream, offset=offset) as messages:
        waiting = asyncio.ensure_future(anext(messages))
        connection = await client.get_protocol()
        await until(
            lambda: len(connection.subscription_ids) == FREE_IDS - 1, 'the client has subscribed'
        )
        await client.stream_exists(stream)
        await publish(client, stream, 'one', 'two')
        assert await waiting == 'one'
        assert await anext(messages) == 'two'


async def test_start_after_the_end_waits(client: rbs.StreamsClient, stream: str) -> None:
    await publish(client, stream, *range(5))
    async with first(client, stream, offset=rbs.Offset.offset(7)) as messages:
        waiting = asyncio.ensure_future(anext(messages))
        connection = await client.get_protocol()
        await until(
            lambda: len(connection.subscription_ids) == FREE_IDS - 1, 'the client has subscribed'
        )
        await publish(client, stream, 5, 6)
        await publish(client, stream, 7)
        assert await waiting == 7


# -- the end of the stream, and credit


@pytest.mark.parametrize('credit', [1, 2, 3, 10, 100])
async def test_any_credit_reaches_the_end_of_the_stream(
    client: rbs.StreamsClient, stream: str, credit: int
) -> None:
    async with client.publisher(stream) as publisher:
        for i in range(50):
            await publisher.send(i)  # one chunk each
        async with first(client, stream, initial_credit=credit) as messages:
            assert await take(messages, 50) == list(range(50))
            for i in range(50, 70):
                await publisher.send(i)
                assert await anext(messages) == i


@pytest.mark.parametrize('credit', [1, 2, 5, 10])
async def test_all_credit_is_returned_before_a_wait(credit: int) -> None:
    stream = FakeStream()
    async with (
        FakeBroker(on=stream.handlers()) as fake,
        rbs.streams_client(fake.uri) as client,
        first(client, 'test', amqp=False, initial_credit=credit) as messages,
    ):
        for i in range(30):
            stream.append(b'%d' % i)
        for i in range(30):
            assert await anext(messages) == b'%d' % i
            assert stream.reader.sent <= credit + stream.reader.granted
        waiting = asyncio.ensure_future(anext(messages))
        await until(lambda: stream.reader.credit == credit, 'all credit is returned')
        stream.append(b'last')
        assert await waiting == b'last'


async def test_broker_keeps_to_the_credit(client: rbs.StreamsClient, stream: str) -> None:
    """So the client may close the connection of a broker that does not."""
    credit = 3
    async with (
        client.publisher(stream) as publisher,
        first(client, stream, initial_credit=credit) as messages,
    ):
        for i in range(500):
            await publisher.send(i)
        for i in range(500):
            assert await anext(messages) == i
            assert len(cursor_of(messages).queue.chunks) <= credit


async def test_broker_that_ignores_credit() -> None:
    """The client closes the connection instead of filling memory, and reading raises an error."""
    found: list[Any] = []

    def subscribe(peer: Peer, request: Frame) -> None:
        peer.respond(request)
        for i in range(100):
            peer.send(wire.deliver(0, wire.chunk(i, [b'%d' % i])))

    async def read() -> None:
        async for body in messages:
            found.append(body)

    async with (
        FakeBroker(on={wire.SUBSCRIBE: subscribe}) as fake,
        rbs.streams_client(fake.uri) as client,
        first(client, 'test', amqp=False, initial_credit=3) as messages,
    ):
        with pytest.raises(FrameError, match='more than 6 chunks exceed the credit'):
            await read()
        await until(lambda: fake.connection.transport.is_closing(), 'the connection is closed')
    assert found == [b'%d' % i for i in range(len(found))]
    assert len(found) <= 6


@pytest.mark.parametrize('credit', [0, -1, 65536, True, 1.5])
def test_credit_out_of_range(credit: Any) -> None:
    client = rbs.streams_client('rabbitmq-stream://localhost/')
    with pytest.raises((TypeError, ValueError)):
        client.subscribe('test', initial_credit=credit)


# -- several subscriptions on one connection


async def test_other_subscriptions_continue_when_one_closes(
    client: rbs.StreamsClient, stream: str
) -> None:
    await publish(client, stream, *range(10))
    subscriptions = [first(client, stream) for _ in range(5)]
    for messages in subscriptions:
        assert await take(messages, 10) == list(range(10))
    await subscriptions.pop(2).aclose()
    await publish(client, stream, 10)
    for messages in subscriptions:
        assert await anext(messages) == 10
    connection = await client.get_protocol()
    assert len(connection.subscription_ids) == FREE_IDS - 4
    for messages in subscriptions:
        await messages.aclose()


async def test_chunk_delivered_during_a_close_is_dropped() -> None:
    """It reaches neither the closed subscription nor the next one."""
    stream = FakeStream()
    stream.append(b'0')
    held: list[tuple[Peer, Frame]] = []
    handlers = stream.handlers()
    ending = handlers[wire.UNSUBSCRIBE]
    handlers[wire.UNSUBSCRIBE] = lambda c, f: held.append((c, f))
    async with FakeBroker(on=handlers) as fake, rbs.streams_client(fake.uri) as client:
        messages = first(client, 'test', amqp=False)
        assert await anext(messages) == b'0'
        closing = asyncio.ensure_future(messages.aclose())
        await until(lambda: bool(held), 'the subscription unsubscribes')
        stream.append(b'in flight')
        async with first(
            client, 'test', amqp=False, offset=rbs.Offset.NEXT, timeout=HANG
        ) as second:
            waiting = asyncio.ensure_future(anext(second))
            await until(lambda: len(stream.readers) == 2, 'the next subscription exists')
            assert stream.readers[0].id != stream.readers[1].id  # the id is not free yet
            ending(*held.pop())
            await closing
            stream.append(b'2')
            assert await waiting == b'2'
            fake.handlers[wire.UNSUBSCRIBE] = ending
        with pytest.raises(StopAsyncIteration):
            await anext(messages)


async def test_subscription_ids_are_reused() -> None:
    stream = FakeStream()
    stream.append(b'0')
    async with FakeBroker(on=stream.handlers()) as fake, rbs.streams_client(fake.uri) as client:
        for _ in range(2 * FREE_IDS):
            async with first(client, 'test', amqp=False) as messages:
                assert await anext(messages) == b'0'
        assert {reader.id for reader in stream.readers} <= set(range(FREE_IDS))
        assert len(fake.connections) == 1


# -- a slow or suspended consumer


async def test_slow_consumer_limits_the_broker_and_delays_no_other() -> None:
    """The slow consumer skips no message, and its connection stays alive by heartbeats."""
    beats = 0

    def heartbeat(connection: Peer, request: Frame) -> None:
        nonlocal beats
        beats += 1
        connection.send(wire.frame(wire.HEARTBEAT, b''))

    stream = FakeStream()
    handlers = stream.handlers() | {wire.HEARTBEAT: heartbeat}
    async with FakeBroker(on=handlers, tune=(0, 1)) as fake:
        async with (
            rbs.streams_client(fake.uri) as client,
            first(client, 'test', amqp=False, initial_credit=4) as slow,
            first(client, 'test', amqp=False, initial_credit=4) as fast,
        ):
            for i in range(100):
                stream.append(b'%d' % i)
            assert await anext(slow) == b'0'
            assert await take(fast, 100) == [b'%d' % i for i in range(100)]
            assert stream.readers[0].sent <= 4
            await until(lambda: beats >= 5, 'the client has sent five heartbeats')
            assert await take(slow, 99) == [b'%d' % i for i in range(1, 100)]
        assert len(fake.connections) == 1


async def test_iteration_continues_after_break(client: rbs.StreamsClient, stream: str) -> None:
    found: list[Any] = []
    async with first(client, stream) as messages:
        for start in range(0, 100, 10):
            await publish(client, stream, *range(start, start + 10))
            async for body in messages:
                found.append(body)
                if len(found) % 7 == 0:
                    break
        async for body in messages:
            found.append(body)
            if body == 99:
                break
    assert found == list(range(100))


async def test_fast_consumer_lets_other_tasks_run() -> None:
    stream = FakeStream()
    turns = 0

    async def other() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    async with (
        FakeBroker(on=stream.handlers()) as fake,
        rbs.streams_client(fake.uri) as client,
        first(client, 'test', amqp=False) as messages,
    ):
        for i in range(1000):
            stream.append(b'%d' % i)
        task = asyncio.create_task(other())
        assert await take(messages, 1000) == [b'%d' % i for i in range(1000)]
        task.cancel()
        assert turns >= 1000 / 10


# -- credit of an unknown subscription


async def test_credit_of_an_unknown_subscription_does_no_harm(
    client: rbs.StreamsClient, stream: str
) -> None:
    connection = await client.get_protocol()
    connection.write(commands.credit(77, 1))
    await publish(client, stream, 1)
    async with first(client, stream) as messages:
        assert await anext(messages) == 1
    assert await client.get_protocol() is connection


# -- release of subscriptions


@pytest.mark.parametrize('how', ['break', 'cancel', 'timeout', 'error', 'aclose', 'generator'])
@pytest.mark.parametrize('kind', ['bodies', 'messages', 'batches'])
async def test_every_end_of_an_iteration_releases_the_subscription(
    client: rbs.StreamsClient, stream: str, how: str, kind: str
) -> None:
    await publish(client, stream, 'x')
    connection = await client.get_protocol()

    def iterate(**arguments: Any) -> Any:
        messages = first(client, stream, **arguments)
        return messages if kind == 'bodies' else getattr(messages, kind)()

    async def read(**arguments: Any) -> None:
        async for _ in iterate(**arguments):
            if how == 'error':
                raise KeyError('mine')

    if how == 'break':
        async for _ in iterate():
            break
    elif how == 'cancel':
        task = asyncio.create_task(read())
        await until(
            lambda: len(connection.subscription_ids) == FREE_IDS - 1, 'the client has subscribed'
        )
        task.cancel()
        await asyncio.wait([task])
        del task
    elif how == 'timeout':
        with pytest.raises(MessageTimeout):
            await read(timeout=0.05)
    elif how == 'error':
        with pytest.raises(KeyError):
            await read()
    elif how == 'aclose':
        async with first(client, stream) as messages:
            await anext(messages)
    else:

        async def generate() -> Any:
            async for item in iterate():
                yield item

        generator = generate()
        await anext(generator)
        await generator.aclose()
        del generator
    gc.collect()
    await until(lambda: len(connection.subscription_ids) == FREE_IDS, 'the subscription id is free')
    assert not connection.registrations


# -- filters


def kind_of(ctx: MessageCtx) -> str | None:
    value = ctx.app_properties.get('kind')
    return None if value is None else str(value)


async def publish_kinds(
    client: rbs.StreamsClient, stream: str, kinds: Sequence[str | None]
) -> None:
    """Publish one chunk of three messages for each kind."""
    for kind in kinds:
        async with client.publisher(stream, filter_extract=kind_of) as publisher:
            for i in range(3):
                properties = {} if kind is None else {'kind': kind}
                publisher.batch(rbs.stream_message_ctx(f'{kind} {i}', app_properties=properties))
            await publisher.flush()


FILTERS: dict[str, tuple[set[str], bool, list[str | None]]] = {
    'one value': ({'a'}, False, ['a', 'a']),
    'several values': ({'a', 'ż'}, False, ['a', 'ż', 'a']),
    'not ASCII': ({'ż'}, False, ['ż']),
    'a value of no message': ({'x'}, False, []),
    'a value, and messages without one': ({'a'}, True, ['a', None, '', 'a']),
    'the empty value': ({''}, False, [None, '']),
    'all': ({'a', 'b', 'ż', ''}, True, ['a', 'b', None, 'ż', '', 'a']),
}


@pytest.mark.parametrize(('values', 'unfiltered', 'expected'), FILTERS.values(), ids=FILTERS)
@pytest.mark.parametrize('kind', ['bodies', 'batches'])
async def test_filter_returns_the_messages_with_its_values(
    client: rbs.StreamsClient,
    stream: str,
    values: set[str],
    unfiltered: bool,
    expected: list[str | None],
    kind: str,
) -> None:
    """Values are compared by their bytes; `match_unfiltered` adds messages without a value."""
    await publish_kinds(client, stream, ['a', 'b', None, 'ż', '', 'a'])
    wanted = rbs.MessageFilter(kind_of, values, unfiltered)
    n = 3 * len(expected)
    bodies = [f'{kind} {i}' for kind in expected for i in range(3)]
    found: list[Any] = []
    async with first(client, stream, filter=wanted, timeout=1 if n == 0 else HANG) as messages:
        if kind == 'bodies':
            found = await take(messages, n)
        else:
            batches = aiter(messages.batches())
            while len(found) < n:
                found += await anext(batches)
        if n == 0:
            with pytest.raises(MessageTimeout):
                await anext(messages)
    assert found == bodies


async def test_credit_of_chunks_without_a_match_is_returned() -> None:
    stream = FakeStream()
    wanted = rbs.MessageFilter(lambda ctx: str(ctx.body), {str(b'yes')})
    async with FakeBroker(on=stream.handlers()) as fake:
        async with (
            rbs.streams_client(fake.uri) as client,
            first(client, 'test', amqp=False, filter=wanted, initial_credit=2) as messages,
        ):
            for i in range(40):
                stream.append(b'no', b'yes' if i % 20 == 19 else b'no', b'no')
            assert await take(messages, 2) == [b'yes', b'yes']
            assert rbs.get_message_ctx().stream_offset == 39 * 3 + 1
        assert stream.reader.sent == 40
        assert stream.reader.granted >= 38


async def test_subscribe_contains_the_filter_values() -> None:
    stream = FakeStream()
    stream.append(b'x')
    async with FakeBroker(on=stream.handlers()) as fake, rbs.streams_client(fake.uri) as client:
        for values, unfiltered, expected in (
            ({'zażółć', ''}, False, {'filter.0': '', 'filter.1': 'zażółć'}),
            ({'a'}, True, {'filter.0': 'a', 'match-unfiltered': 'true'}),
        ):
            value = max(values)
            wanted = rbs.MessageFilter(lambda ctx, value=value: value, values, unfiltered)  # type: ignore[misc]
            async with first(client, 'test', amqp=False, filter=wanted) as messages:
                await anext(messages)
            assert stream.reader.properties == expected


# -- filter size of a stream


@pytest.mark.parametrize('size', [16, 17, 255])
async def test_stream_has_the_filter_size_given(
    broker: RabbitMQ, client: rbs.StreamsClient, stream_name: str, size: int
) -> None:
    await client.create_stream(stream_name, filter_size=size)
    await publish_kinds(client, stream_name, ['a'])

    def bloom_size() -> int:
        connection = raw.Connection(broker.uri)
        try:
            connection.subscribe(stream_name)
            return connection.read(wire.DELIVER)[1 + 44]
        finally:
            connection.close()

    assert await asyncio.to_thread(bloom_size) == size
    wanted = rbs.MessageFilter(kind_of, {'a'})
    async with first(client, stream_name, filter=wanted) as messages:
        assert await take(messages, 3) == ['a 0', 'a 1', 'a 2']


# -- wrong arguments


def test_arguments_are_checked() -> None:
    client = rbs.streams_client('rabbitmq-stream://localhost/')
    with pytest.raises(ValueError, match='on_decode_error'):
        client.subscribe('test', on_decode_error='ignore')  # type: ignore[call-overload]
    with pytest.raises(ValueError, match="commit must be 'auto', 'manual' or 'off'"):
        client.subscribe('test', commit='reader')  # type: ignore[call-overload]
    with pytest.raises(TypeError, match='commit'):
        client.subscribe('test', commit=True)  # type: ignore[call-overload]
    for limit in (0, -1, 2**31):
        with pytest.raises(ValueError, match='max_messages'):
            client.subscribe('test').batches(limit)
    for wrong in (1.5, '1', True):
        with pytest.raises(TypeError, match='max_messages'):
            client.subscribe('test').batches(wrong)  # type: ignore[arg-type]


# -- existence and statistics


async def test_stream_exists_and_stats(client: rbs.StreamsClient, stream_name: str) -> None:
    assert not await client.stream_exists(stream_name)
    with pytest.raises(StreamDoesNotExist):
        await client.stream_stats(stream_name)
    await client.create_stream(stream_name)
    assert await client.stream_exists(stream_name)
    stats = await client.stream_stats(stream_name)
    assert (stats.first_chunk_id, stats.last_chunk_id, stats.committed_chunk_id) == (None,) * 3
    await publish(client, stream_name, *range(10))
    await publish(client, stream_name, 10)
    stats = await client.stream_stats(stream_name)
    assert stats.first_chunk_id == 0
    assert stats.committed_chunk_id == stats.last_chunk_id == 10
    assert stats.committed_offset in (None, 10)
