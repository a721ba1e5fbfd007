"""Sub-entries on a real broker: stored, confirmed to each caller, and read by others."""

import asyncio
import gzip
import random
import struct
import sys
from typing import Any

import pytest

import rbfly.streams as rbs
from brokers import RabbitMQ, wire
from rbfly.amqp import decode_amqp
from rbfly.error import AMQPEncoderError
from rbfly.streams import Compression, stream_message_ctx
from rbfly.streams._publish import publisher as publisher_module
from rbfly.streams.error import CompressionError
from tests.entry_reader import read_entry
from tests.streams.publish.test_publish import stored
from tests.streams.test_interop import read_pika, read_rbfly, read_rstream

HANG = 30.0  # seconds; only a safeguard
BODIES = [b'message %d ' % i * (i % 20) for i in range(5000)]


def chunk_entries(uri: str, stream: str, count: int) -> list[tuple[int | None, list[bytes]]]:
    """Compression and messages of each entry in a stream, as stored."""
    connection = wire.Connection(uri)
    entries: list[tuple[int | None, list[bytes]]] = []
    try:
        connection.subscribe(stream)
        while sum(len(messages) for _, messages in entries) < count:
            chunk = connection.read(wire.DELIVER)[1:]
            (number,) = struct.unpack_from('>H', chunk, 2)
            at = 48
            for _ in range(number):
                compression, messages, at = read_entry(chunk, at)
                entries.append((compression, messages))
            assert at == len(chunk)
            connection.socket.sendall(wire.frame(wire.CREDIT, b'\0\0\x01'))
    finally:
        connection.close()
    return entries


async def entries_of(broker: RabbitMQ, stream: str, count: int) -> Any:
    return await asyncio.to_thread(chunk_entries, broker.uri, stream, count)


@pytest.mark.parametrize('compression', list(Compression))
async def test_sub_entries_as_stored(
    broker: RabbitMQ, client: rbs.StreamsClient, stream: str, compression: Compression
) -> None:
    async with client.publisher(
        stream, sub_entry_size=100, compression=compression, amqp=False
    ) as publisher:
        assert await publisher.send_many(BODIES) == 5000
        assert publisher.message_id == 51
    entries = await entries_of(broker, stream, 5000)
    assert [body for _, messages in entries for body in messages] == BODIES
    assert {(code, len(messages)) for code, messages in entries} == {(compression.code, 100)}


@pytest.mark.parametrize(
    ('reader', 'compression'),
    [
        *((read_rbfly, compression) for compression in Compression),
        (read_rstream, 'none'),
        pytest.param(read_pika, 'none', marks=pytest.mark.rabbitmq),
        (read_rstream, 'gzip'),
    ],
)
async def test_other_clients_read_sub_entries(
    broker: RabbitMQ, client: rbs.StreamsClient, stream: str, reader: Any, compression: str
) -> None:
    async with client.publisher(stream, sub_entry_size=64, compression=compression) as publisher:
        await publisher.send_many(BODIES)
    assert await reader(broker, stream, 5000) == BODIES


async def test_messages_of_many_tasks_share_sub_entries(
    broker: RabbitMQ, client: rbs.StreamsClient, stream: str
) -> None:
    async def send(task: int) -> None:
        for i in range(20):
            await publisher.send(b'%d %d' % (task, i))

    async with client.publisher(stream, sub_entry_size=50, amqp=False) as publisher:
        await asyncio.gather(*(send(task) for task in range(200)))
    entries = await entries_of(broker, stream, 4000)
    found = [tuple(map(int, body.split())) for _, messages in entries for body in messages]
    for task in range(200):
        assert [i for t, i in found if t == task] == list(range(20))
    assert len(entries) < 1000


async def test_single_message_is_sent_at_once(client: rbs.StreamsClient, stream: str) -> None:
    async with client.publisher(stream, sub_entry_size=100, amqp=False) as publisher:
        for i in range(5):
            await asyncio.wait_for(publisher.send(b'%d' % i), HANG)
        assert await stored(client, stream) == [b'%d' % i for i in range(5)]


async def test_batches_and_submitted_messages(
    broker: RabbitMQ, client: rbs.StreamsClient, stream: str
) -> None:
    async with client.publisher(stream, sub_entry_size=10, amqp=False) as batch:
        for i in range(25):
            batch.batch(b'%d' % i)
        await batch.flush()
        batch.batch(b'25')
    async with client.publisher(stream, sub_entry_size=10, amqp=False) as publisher:
        confirmations = [await publisher.submit(b'%d' % i) for i in range(26, 46)]
        await asyncio.gather(*confirmations)
        assert [item.publish_id for item in confirmations] == [1] * 10 + [2] * 10
    entries = await entries_of(broker, stream, 46)
    assert [len(messages) for _, messages in entries] == [10, 10, 5, 1, 10, 10]
    assert [body for _, messages in entries for body in messages] == [b'%d' % i for i in range(46)]


async def test_message_without_amqp_form_fails_alone(
    client: rbs.StreamsClient, stream: str
) -> None:
    async with client.publisher(stream, sub_entry_size=10) as publisher:
        outcomes = await asyncio.gather(
            *(publisher.send(object() if i == 7 else i) for i in range(25)),  # type: ignore[arg-type]
            return_exceptions=True,
        )
    assert isinstance(outcomes.pop(7), AMQPEncoderError)
    assert outcomes == [None] * 24
    async with client.subscribe(stream, offset=rbs.Offset.FIRST) as messages:
        assert [await anext(messages) for _ in range(24)] == [i for i in range(25) if i != 7]


async def test_frames_of_sub_entries_stay_below_the_limit(broker: RabbitMQ, stream: str) -> None:
    async with (
        rbs.streams_client(broker.uri, frame_max=4096) as client,
        client.publisher(stream, sub_entry_size=1000, amqp=False) as publisher,
    ):
        bodies = [bytes(n % 4000) for n in range(3000)]
        assert await publisher.send_many(bodies) == 3000
        assert await stored(client, stream) == bodies


async def test_sub_entries_are_deduplicated_as_a_whole(
    broker: RabbitMQ, client: rbs.StreamsClient, stream: str
) -> None:
    async with client.publisher(stream, name='n', sub_entry_size=10, amqp=False) as publisher:
        await publisher.send_many([b'%d' % i for i in range(30)])
    async with client.publisher(stream, name='n', sub_entry_size=10, amqp=False) as publisher:
        assert publisher.message_id == 4
        await publisher.send(stream_message_ctx(b'again', publish_id=2))
        await publisher.send_many([b'%d' % i for i in range(30, 50)])
    assert await stored(client, stream) == [b'%d' % i for i in range(50)]


@pytest.mark.parametrize(
    ('arguments', 'error'),
    [
        ({'sub_entry_size': -1}, ValueError),
        ({'sub_entry_size': 0}, ValueError),
        ({'sub_entry_size': 65536, 'max_unconfirmed': 100_000}, ValueError),
        ({'sub_entry_size': 2.5}, TypeError),
        ({'sub_entry_size': 11, 'max_unconfirmed': 10}, ValueError),
        ({'sub_entry_size': 10, 'compression': 'brotli'}, ValueError),
        ({'sub_entry_size': 10, 'compression': 1}, TypeError),
        ({'compression': 'gzip'}, ValueError),
        ({'sub_entry_size': 10, 'filter_extract': lambda context: None}, ValueError),
    ],
)
async def test_wrong_arguments(arguments: dict[str, Any], error: type[Exception]) -> None:
    client = rbs.streams_client('rabbitmq-stream://127.0.0.1:1/')
    with pytest.raises(error, match=r'sub_entry_size|compression|filter values'):
        async with client.publisher('test', **arguments):
            pytest.fail('the publisher is not opened')


async def test_batch_stops_at_a_full_window(client: rbs.StreamsClient, stream: str) -> None:
    async with client.publisher(stream, sub_entry_size=5, max_unconfirmed=7) as publisher:
        for _ in range(2):
            for number in range(7):
                publisher.batch(b'%d' % number)
            with pytest.raises(rbs.WindowTimeout):
                publisher.batch(b'7')
            await publisher.flush()
    messages = [decode_amqp(message).body for message in await stored(client, stream)]
    assert messages == [b'%d' % number for number in range(7)] * 2


async def test_missing_compression_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, 'cramjam', None)
    client = rbs.streams_client('rabbitmq-stream://127.0.0.1:1/')
    with pytest.raises(CompressionError, match=r'cramjam.*extra'):
        async with client.publisher('test', sub_entry_size=10, compression='zstd'):
            pytest.fail('the publisher is not opened')


async def test_compression_none_by_name(client: rbs.StreamsClient, stream: str) -> None:
    async with client.publisher(stream, compression='none') as publisher:
        await publisher.send('x')
    (message,) = await stored(client, stream)
    assert decode_amqp(message).body == 'x'


async def test_batch_that_failed_to_compress_is_sent_by_the_next_flush(
    client: rbs.StreamsClient, stream: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    failures = [MemoryError('no memory for the compressor')]

    def compress(data: memoryview) -> bytes:
        if failures:
            raise failures.pop()
        return gzip.compress(data)

    monkeypatch.setattr(publisher_module, 'compressor', lambda compression: compress)
    async with client.publisher(
        stream, sub_entry_size=100, compression='gzip', amqp=False
    ) as publisher:
        for i in range(10):
            publisher.batch(b'%d' % i)
        with pytest.raises(MemoryError):
            await publisher.flush()
        publisher.batch(b'10')
        await publisher.flush(timeout=HANG)
    assert await stored(client, stream) == [b'%d' % i for i in range(11)]


@pytest.mark.parametrize('compression', ['none', 'gzip'])
async def test_group_sent_before_the_first_connection_is_split(
    client: rbs.StreamsClient, stream: str, compression: str
) -> None:
    bodies = [random.randbytes(20_000) for _ in range(100)]
    async with client.publisher(
        stream, wait=False, amqp=False, sub_entry_size=100, compression=compression
    ) as publisher:
        assert await publisher.send_many(bodies) == 100
    assert await stored(client, stream) == bodies
