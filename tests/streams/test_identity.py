"""A subscription recognizes a stream that was deleted and created again, and starts over.

On a real broker, and on the scripted one what that shows seldom; what decides is in
`tests/protocol/test_last_chunk.py`.
"""

import asyncio
import struct
from typing import Any
from unittest.mock import Mock

import pytest

import rbfly.streams as rbs
from rbfly.streams.error import StreamConnectionError, StreamDoesNotExist
from tests import fake as wire
from tests.brokers import until
from tests.fake_stream import FakeStream
from tests.reading import filled, reading

HANG = 20.0  # a guard only


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


async def anew(client: rbs.StreamsClient, stream: str, new: list[Any], lost: bool = False) -> None:
    """Delete the stream, create it, publish; the connections of its readers may be lost then."""
    await client.delete_stream(stream)
    await client.create_stream(stream)
    await publish(client, stream, new, single=True)
    if lost:
        await cut(client)


async def waited(messages: rbs.Subscription, delivered: bool) -> None:
    """Wait for a message that does not come, until it is subscribed."""
    waiting = asyncio.ensure_future(anext(messages))
    queue, registration = messages._session.cursor.queue, messages._session.registration
    await until(lambda: registration.is_open, 'subscribed')
    if delivered:
        await until(
            lambda: messages._session.cursor.position is not None and not queue.chunks, 'delivered'
        )
    waiting.cancel()
    await asyncio.wait([waiting])


@pytest.mark.parametrize('lost', [False, True])
@pytest.mark.parametrize(
    ('old', 'single', 'new'),
    [(20, False, 5), (20, False, 30), (100, True, 200), (5, True, 10), (5, True, 5), (5, True, 3)],
)
async def test_messages_of_a_stream_created_anew(
    client: rbs.StreamsClient, stream: str, old: int, single: bool, new: int, lost: bool
) -> None:
    await publish(client, stream, list(range(old)), single)
    async with client.subscribe(stream, offset=rbs.Offset.FIRST, timeout=HANG) as messages:
        assert await take(messages, old) == list(range(old))
        await anew(client, stream, list(range(1000, 1000 + new)), lost)
        with pytest.raises(StreamDoesNotExist, match='created again'):
            await anext(messages)
        assert await take(messages, new) == list(range(1000, 1000 + new))
        assert rbs.get_message_ctx().stream_offset == new - 1


@pytest.mark.parametrize('read', [0, 2])
@pytest.mark.parametrize('lost', [False, True])
async def test_stream_created_anew_at_next(
    client: rbs.StreamsClient, stream: str, read: int, lost: bool
) -> None:
    await publish(client, stream, list(range(50)), single=True)
    async with client.subscribe(stream, timeout=HANG) as messages:
        await waited(messages, delivered=True)
        await publish(client, stream, list(range(read)), single=True)
        assert await take(messages, read) == list(range(read))
        await anew(client, stream, list(range(1000, 1030)), lost)
        with pytest.raises(StreamDoesNotExist, match='created again'):
            await anext(messages)
        assert await take(messages, 30) == list(range(1000, 1030))


async def test_stream_created_anew_while_waiting_at_next(
    client: rbs.StreamsClient, stream: str
) -> None:
    await publish(client, stream, list(range(50)), single=True)
    async with client.subscribe(stream, timeout=HANG) as messages:
        await waited(messages, delivered=True)
        waiting = asyncio.ensure_future(anext(messages))
        await asyncio.sleep(0)
        await anew(client, stream, list(range(1000, 1030)))
        with pytest.raises(StreamDoesNotExist):  # its absence may be seen, or the new one
            await waiting
        assert await take(messages, 30) == list(range(1000, 1030))


async def test_stream_created_anew_behind_a_stored_offset(
    client: rbs.StreamsClient, stream: str
) -> None:
    """A program that has caught up, was started again, and has read nothing since."""
    await publish(client, stream, list(range(20)), single=True)
    await client.write_offset(stream, 'reader', 19)
    offset = rbs.Offset.reference('reader')
    async with client.subscribe(stream, offset=offset, timeout=HANG) as messages:
        await waited(messages, delivered=False)
        await asyncio.sleep(0.1)
        await anew(client, stream, list(range(1000, 1010)))
        with pytest.raises(StreamDoesNotExist, match='created again'):
            await anext(messages)
        assert await take(messages, 10) == list(range(1000, 1010))


async def test_stream_that_ends_with_stored_offsets(client: rbs.StreamsClient, stream: str) -> None:
    """They take offsets, and are not delivered; a reader at `NEXT` starts behind them."""
    await publish(client, stream, [0, 1, 2], single=True)
    for i in range(3):
        await client.write_offset(stream, 'reader', i)
    async with client.subscribe(stream, timeout=HANG) as messages:
        await waited(messages, delivered=True)
        await publish(client, stream, [3], single=True)
        assert await anext(messages) == 3
        await client.write_offset(stream, 'reader', 6)
        await cut(client)
        await publish(client, stream, [4], single=True)
        assert await anext(messages) == 4


# -- what a real broker shows seldom


def moved(stream: FakeStream) -> None:
    """Its reader is gone: the stream was moved, or deleted."""
    stream.reader.live = False
    body = struct.pack('>H', 0x06) + wire.string('test')
    stream.reader.peer.send(wire.frame(wire.METADATA_UPDATE, body))


async def test_new_stream_has_no_chunk_where_the_last_one_lay() -> None:
    """A stored offset lies there: nothing comes from before, nor from there."""
    stream = filled(3, 1)
    async with reading(stream) as messages:
        await take(messages, 4)
        moved(stream)
        stream.recreate()
        stream.append(b'a', b'b', b'c')
        stream.skip()
        stream.append(b'd')
        with pytest.raises(StreamDoesNotExist, match='created again'):
            await anext(messages)
        assert await take(messages, 4) == [b'a', b'b', b'c', b'd']


async def test_retention_has_removed_the_last_chunk() -> None:
    stream = filled(3, 1)
    async with reading(stream) as messages:
        await take(messages, 4)
        moved(stream)
        stream.skip(6)
        stream.append(b'10', b'11')
        del stream.chunks[:2]
        assert await take(messages, 2) == [b'10', b'11']


@pytest.mark.parametrize('new', [2, 9])
async def test_old_broker_that_does_not_tell_how_far_its_stream_goes(new: int) -> None:
    stream = filled(1, 1, 1, 1)
    async with reading(stream, '3.10.8') as messages:
        await take(messages, 4)
        moved(stream)
        stream.recreate()
        waiting = asyncio.ensure_future(anext(messages))
        await until(lambda: len(stream.readers) == 2, 'subscribed again')
        for i in range(new):
            stream.append(b'new%d' % i)
        with pytest.raises(StreamDoesNotExist, match='created again'):
            await waiting
        assert await take(messages, new) == [b'new%d' % i for i in range(new)]


@pytest.mark.parametrize('new', [2, 9])
async def test_stream_created_anew_read_through_a_filter(new: int) -> None:
    """The broker leaves out what does not match; what does is never lost."""
    stream = filled(1, 1, 1, 1)
    stream.wants = lambda reader, data: data[-1:] in b'1379'
    only = rbs.MessageFilter(lambda ctx: str(ctx.body)[-2:-1], set('1379'))
    async with reading(stream, filter=only) as messages:
        assert await take(messages, 2) == [b'1', b'3']
        moved(stream)
        stream.recreate()
        for i in range(new):
            stream.append(b'new%d' % i)
        waiting = asyncio.ensure_future(anext(messages))
        await until(lambda: len(stream.readers) == 2, 'subscribed again')
        stream.append(b'new9')
        with pytest.raises(StreamDoesNotExist, match='created again'):
            await waiting
        expected = [b'new1'] if new == 2 else [b'new1', b'new3', b'new7']
        assert await take(messages, len(expected) + 1) == [*expected, b'new9']


async def test_filter_at_next_whose_last_chunk_never_comes() -> None:
    stream = filled(1, 1)
    stream.wants = lambda reader, data: data[-1:] == b'x'
    only = rbs.MessageFilter(lambda ctx: str(ctx.body), {str(b'x')})
    async with reading(stream, filter=only, offset=rbs.Offset.NEXT) as messages:
        waiting = asyncio.ensure_future(anext(messages))
        await until(lambda: len(stream.readers) == 1, 'subscribed')
        moved(stream)
        await until(lambda: len(stream.readers) == 2, 'subscribed again')
        stream.append(b'x')
        assert await waiting == b'x'
        moved(stream)
        stream.append(b'x')
        assert await anext(messages) == b'x'


async def test_stream_that_was_gone_before_it_was_subscribed() -> None:
    """Where the first one ended says nothing about the next, which was written since."""
    stream = filled(1, 1, 1)
    stream.on_subscribe = lambda reader: 0x02
    async with reading(stream, offset=rbs.Offset.NEXT) as messages:
        with pytest.raises(StreamDoesNotExist):
            await anext(messages)
        stream.recreate()
        stream.append(b'old')
        stream.on_subscribe = lambda reader: wire.OK
        waiting = asyncio.ensure_future(anext(messages))
        await until(lambda: len(stream.readers) == 2, 'subscribed')
        stream.append(b'new')
        assert await waiting == b'old'
        assert await anext(messages) == b'new'


# -- stored offsets


def stored(stream: FakeStream) -> int:
    peers = stream.reader.peer.broker.connections
    return sum(peer.commands().count(wire.STORE_OFFSET) for peer in peers)


async def test_offset_is_not_stored_before_the_stream_is_known(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Neither by time nor when it is closed: it may be another, empty one."""
    stream = filled(1, 1, 1, 1)
    tracking = rbs.OffsetTracking('reader', every=0, interval=0.01)
    async with reading(stream, auto_offset=tracking) as messages:
        await take(messages, 4)
        await until(lambda: stored(stream) == 1, 'stored')
        moved(stream)
        stream.recreate()
        waiting = asyncio.ensure_future(anext(messages))
        await until(lambda: len(stream.readers) == 2, 'subscribed again')
        store = Mock(wraps=messages._session._tracker.store)  # type: ignore[union-attr]
        monkeypatch.setattr(messages._session._tracker, 'store', store)
        await until(lambda: store.call_count > 2, 'it is time')
        waiting.cancel()
        await asyncio.wait([waiting])
        monkeypatch.undo()
    assert stored(stream) == 1


async def test_offset_is_stored_when_the_stream_is_known() -> None:
    stream = filled(1, 1)
    tracking = rbs.OffsetTracking('reader', every=0, interval=0.01)
    async with reading(stream, auto_offset=tracking) as messages:
        await take(messages, 2)
        await until(lambda: stored(stream) == 1, 'stored')
        moved(stream)
        waiting = asyncio.ensure_future(anext(messages))
        await until(lambda: stored(stream) == 2, 'stored')
        waiting.cancel()
        await asyncio.wait([waiting])
