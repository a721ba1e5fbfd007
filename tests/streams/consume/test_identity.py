"""A subscription recognizes a stream that was deleted and created again, and starts over.

The scripted broker shows what RabbitMQ rarely does.  `tests/protocol/test_last_chunk.py` tests how
the client recognizes a stream.
"""

import asyncio
import struct
from typing import Any
from unittest.mock import Mock

import pytest

import rbfly.streams as rbs
from rbfly.streams.error import StreamConnectionError, StreamDoesNotExist
from tests import fake_broker as wire
from tests.brokers import until
from tests.fake_stream import FakeStream
from tests.fake_subscription import stream_of_chunks, subscribe_to_fake
from tests.inside import cursor_of, session_of

HANG = 20.0  # seconds; only a safeguard


async def publish(client: rbs.StreamsClient, stream: str, bodies: list[Any], single: bool) -> None:
    async with client.publisher(stream) as publisher:
        if single:  # a chunk each
            for body in bodies:
                await publisher.send(body)
        else:
            await publisher.send_many(bodies)


async def take(messages: rbs.Subscription, n: int) -> list[Any]:
    return [await anext(messages) for _ in range(n)]


async def cut(client: rbs.StreamsClient) -> None:
    (await client.get_protocol()).abort(StreamConnectionError('cut by the test'))


async def recreate(
    client: rbs.StreamsClient, stream: str, new: list[Any], lost: bool = False
) -> None:
    """Delete the stream, create and fill it again; perhaps cut the connection of its reader."""
    await client.delete_stream(stream)
    await client.create_stream(stream)
    await publish(client, stream, new, single=True)
    if lost:
        await cut(client)


async def wait_briefly(messages: rbs.Subscription, delivered: bool) -> None:
    """Start waiting for a message; stop when the client has subscribed or read the last chunk."""
    waiting = asyncio.ensure_future(anext(messages))
    queue, registration = cursor_of(messages).queue, session_of(messages).registration
    await until(lambda: registration.is_open, 'the client has subscribed')
    if delivered:
        await until(
            lambda: cursor_of(messages).position is not None and not queue.chunks,
            'the last chunk is read',
        )
    waiting.cancel()
    await asyncio.wait([waiting])


@pytest.mark.parametrize('lost', [False, True])
@pytest.mark.parametrize(
    ('old', 'single', 'new'),
    [(20, False, 5), (20, False, 30), (100, True, 200), (5, True, 10), (5, True, 5), (5, True, 3)],
)
async def test_recreated_stream_is_read_from_its_first_message(
    client: rbs.StreamsClient, stream: str, old: int, single: bool, new: int, lost: bool
) -> None:
    await publish(client, stream, list(range(old)), single)
    async with client.subscribe(stream, offset=rbs.Offset.FIRST, timeout=HANG) as messages:
        assert await take(messages, old) == list(range(old))
        await recreate(client, stream, list(range(1000, 1000 + new)), lost)
        with pytest.raises(StreamDoesNotExist, match='created again'):
            await anext(messages)
        assert await take(messages, new) == list(range(1000, 1000 + new))
        assert rbs.get_message_ctx().stream_offset == new - 1


@pytest.mark.parametrize('read', [0, 2])
@pytest.mark.parametrize('lost', [False, True])
async def test_recreated_stream_at_next(
    client: rbs.StreamsClient, stream: str, read: int, lost: bool
) -> None:
    await publish(client, stream, list(range(50)), single=True)
    async with client.subscribe(stream, timeout=HANG) as messages:
        await wait_briefly(messages, delivered=True)
        await publish(client, stream, list(range(read)), single=True)
        assert await take(messages, read) == list(range(read))
        await recreate(client, stream, list(range(1000, 1030)), lost)
        with pytest.raises(StreamDoesNotExist, match='created again'):
            await anext(messages)
        assert await take(messages, 30) == list(range(1000, 1030))


async def test_stream_recreated_while_a_task_waits_at_next(
    client: rbs.StreamsClient, stream: str
) -> None:
    await publish(client, stream, list(range(50)), single=True)
    async with client.subscribe(stream, timeout=HANG) as messages:
        await wait_briefly(messages, delivered=True)
        waiting = asyncio.ensure_future(anext(messages))
        await asyncio.sleep(0)
        await recreate(client, stream, list(range(1000, 1030)))
        with pytest.raises(StreamDoesNotExist):  # the client sees no stream or the new one
            await waiting
        assert await take(messages, 30) == list(range(1000, 1030))


async def test_stream_recreated_after_a_restart_from_a_stored_offset(
    client: rbs.StreamsClient, stream: str
) -> None:
    """The program had read the whole stream, and no message since its restart."""
    await publish(client, stream, list(range(20)), single=True)
    await client.write_offset(stream, 'reader', 19)
    offset = rbs.Offset.reference('reader')
    async with client.subscribe(stream, offset=offset, timeout=HANG) as messages:
        await wait_briefly(messages, delivered=False)
        cursor = cursor_of(messages)
        await until(
            lambda: bool(cursor.queue.chunks) or cursor.position is not None,
            'the last chunk, which identifies the stream, has arrived',
        )
        await recreate(client, stream, list(range(1000, 1010)))
        with pytest.raises(StreamDoesNotExist, match='created again'):
            await anext(messages)
        assert await take(messages, 10) == list(range(1000, 1010))


async def test_next_starts_after_stored_offsets(client: rbs.StreamsClient, stream: str) -> None:
    """Chunks of stored offsets use up offsets and are not delivered."""
    await publish(client, stream, [0, 1, 2], single=True)
    for i in range(3):
        await client.write_offset(stream, 'reader', i)
    async with client.subscribe(stream, timeout=HANG) as messages:
        await wait_briefly(messages, delivered=True)
        await publish(client, stream, [3], single=True)
        assert await anext(messages) == 3
        await client.write_offset(stream, 'reader', 6)
        await cut(client)
        await publish(client, stream, [4], single=True)
        assert await anext(messages) == 4


# -- what RabbitMQ rarely does


def move(stream: FakeStream) -> None:
    """Send a MetadataUpdate to the reader, as if the stream were moved or deleted."""
    stream.reader.live = False
    body = struct.pack('>H', 0x06) + wire.string('test')
    stream.reader.peer.send(wire.frame(wire.METADATA_UPDATE, body))


async def test_recreated_stream_without_a_chunk_at_the_old_offset() -> None:
    """It has a stored offset there, which is not delivered."""
    stream = stream_of_chunks(3, 1)
    async with subscribe_to_fake(stream) as messages:
        await take(messages, 4)
        move(stream)
        stream.recreate()
        stream.append(b'a', b'b', b'c')
        stream.skip()
        stream.append(b'd')
        with pytest.raises(StreamDoesNotExist, match='created again'):
            await anext(messages)
        assert await take(messages, 4) == [b'a', b'b', b'c', b'd']


async def test_stream_whose_last_chunk_was_removed_by_retention_is_the_same() -> None:
    stream = stream_of_chunks(3, 1)
    async with subscribe_to_fake(stream) as messages:
        await take(messages, 4)
        move(stream)
        stream.skip(6)
        stream.append(b'10', b'11')
        del stream.chunks[:2]
        assert await take(messages, 2) == [b'10', b'11']


@pytest.mark.parametrize('new', [2, 9])
async def test_recreated_stream_on_a_broker_without_stream_stats(new: int) -> None:
    stream = stream_of_chunks(1, 1, 1, 1)
    async with subscribe_to_fake(stream, '3.10.8') as messages:
        await take(messages, 4)
        move(stream)
        stream.recreate()
        waiting = asyncio.ensure_future(anext(messages))
        await until(lambda: len(stream.readers) == 2, 'the client has resubscribed')
        for i in range(new):
            stream.append(b'new%d' % i)
        with pytest.raises(StreamDoesNotExist, match='created again'):
            await waiting
        assert await take(messages, new) == [b'new%d' % i for i in range(new)]


@pytest.mark.parametrize('new', [2, 9])
async def test_recreated_stream_read_through_a_filter(new: int) -> None:
    """No matching message is lost, though the broker omits chunks."""
    stream = stream_of_chunks(1, 1, 1, 1)
    stream.wants = lambda reader, data: data[-1:] in b'1379'
    only = rbs.MessageFilter(lambda ctx: str(ctx.body)[-2:-1], set('1379'))
    async with subscribe_to_fake(stream, filter=only) as messages:
        assert await take(messages, 2) == [b'1', b'3']
        move(stream)
        stream.recreate()
        for i in range(new):
            stream.append(b'new%d' % i)
        waiting = asyncio.ensure_future(anext(messages))
        await until(lambda: len(stream.readers) == 2, 'the client has resubscribed')
        stream.append(b'new9')
        with pytest.raises(StreamDoesNotExist, match='created again'):
            await waiting
        expected = [b'new1'] if new == 2 else [b'new1', b'new3', b'new7']
        assert await take(messages, len(expected) + 1) == [*expected, b'new9']


async def test_filter_that_omits_the_last_chunk_at_next() -> None:
    stream = stream_of_chunks(1, 1)
    stream.wants = lambda reader, data: data[-1:] == b'x'
    only = rbs.MessageFilter(lambda ctx: str(ctx.body), {str(b'x')})
    async with subscribe_to_fake(stream, filter=only, offset=rbs.Offset.NEXT) as messages:
        waiting = asyncio.ensure_future(anext(messages))
        await until(lambda: len(stream.readers) == 1, 'the client has subscribed')
        move(stream)
        await until(lambda: len(stream.readers) == 2, 'the client has resubscribed')
        stream.append(b'x')
        assert await waiting == b'x'
        move(stream)
        stream.append(b'x')
        assert await anext(messages) == b'x'


async def test_stream_deleted_before_the_client_subscribed() -> None:
    """The client reads all of the new stream, regardless of where the old one ended."""
    stream = stream_of_chunks(1, 1, 1)
    stream.on_subscribe = lambda reader: 0x02
    async with subscribe_to_fake(stream, offset=rbs.Offset.NEXT) as messages:
        with pytest.raises(StreamDoesNotExist):
            await anext(messages)
        stream.recreate()
        stream.append(b'old')
        stream.on_subscribe = lambda reader: wire.OK
        waiting = asyncio.ensure_future(anext(messages))
        await until(lambda: len(stream.readers) == 2, 'the client has subscribed')
        stream.append(b'new')
        assert await waiting == b'old'
        assert await anext(messages) == b'new'


# -- stored offsets


def stored(stream: FakeStream) -> int:
    peers = stream.reader.peer.broker.connections
    return sum(peer.commands().count(wire.STORE_OFFSET) for peer in peers)


async def test_no_offset_is_stored_until_the_stream_is_recognized(
    monkeypatch: pytest.MonkeyPatch, endless_turns: None
) -> None:
    """Neither the interval nor the close stores one: the stream may be a new, empty one."""
    stream = stream_of_chunks(1, 1, 1, 1)
    tracking = rbs.OffsetTracking('reader', every=0, interval=0.01)
    async with subscribe_to_fake(stream, commit=tracking) as messages:
        await take(messages, 4)
        await until(lambda: stored(stream) == 1, 'an offset is stored')
        move(stream)
        stream.recreate()
        waiting = asyncio.ensure_future(anext(messages))
        await until(lambda: len(stream.readers) == 2, 'the client has resubscribed')
        store = Mock(wraps=session_of(messages).offsets.store)
        monkeypatch.setattr(session_of(messages).offsets, 'store', store)
        await until(lambda: store.call_count > 2, 'the interval has passed twice')
        waiting.cancel()
        await asyncio.wait([waiting])
        monkeypatch.undo()
    assert stored(stream) == 1


async def test_offset_is_stored_once_the_stream_is_recognized() -> None:
    stream = stream_of_chunks(1, 1)
    tracking = rbs.OffsetTracking('reader', every=0, interval=0.01)
    async with subscribe_to_fake(stream, commit=tracking) as messages:
        await take(messages, 2)
        await until(lambda: stored(stream) == 1, 'an offset is stored')
        move(stream)
        waiting = asyncio.ensure_future(anext(messages))
        await until(lambda: stored(stream) == 2, 'another offset is stored')
        waiting.cancel()
        await asyncio.wait([waiting])
