"""A stream that was deleted and created anew is told from the old one, and read from its first message.

On a real broker; `tests/streams/test_identity.py` has the cases that one shows seldom.
"""

import asyncio
from typing import Any

import pytest

import rbfly.streams as rbs
from rbfly.streams.error import StreamConnectionError, StreamDoesNotExist
from tests.brokers import until

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
    queue, feed = messages.queue, messages._feed
    await until(lambda: feed._task is None and feed._connection is not None, 'subscribed')
    if delivered:
        await until(lambda: messages.position is not None and not queue.chunks, 'delivered')
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
        with pytest.raises(StreamDoesNotExist, match='created anew'):
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
        with pytest.raises(StreamDoesNotExist, match='created anew'):
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
        with pytest.raises(StreamDoesNotExist, match='created anew'):
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
