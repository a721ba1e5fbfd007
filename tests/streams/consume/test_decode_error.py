"""Messages that are not AMQP 1.0, delivered as their bytes."""

import copy
import pickle
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

import rbfly.streams as rbs
from rbfly.amqp import encode_amqp_bytes

HANG = 20.0  # seconds; only a safeguard
NO_SECTION = b'not AMQP'
BAD_BODY = bytes.fromhex('0053775602')  # a bool that is neither true nor false
GOOD: list[Any] = [b'bytes', NO_SECTION, {'id': 1}, b'']
MESSAGES = [
    NO_SECTION,
    *map(encode_amqp_bytes, GOOD[:2]),
    BAD_BODY,
    *map(encode_amqp_bytes, GOOD[2:]),
]
BODIES = [NO_SECTION, *GOOD[:2], BAD_BODY, *GOOD[2:]]
UNDECODED = {0: NO_SECTION, 3: BAD_BODY}


@pytest_asyncio.fixture
async def stored(client: rbs.StreamsClient, stream: str) -> AsyncIterator[str]:
    async with client.publisher(stream, amqp=False) as publisher:
        await publisher.send_many(MESSAGES)
    yield stream


def check(message: rbs.Message, stream: str) -> None:
    """Check that the error tells whether the message could be decoded."""
    expected = UNDECODED.get(message.stream_offset)
    error = message.decode_error
    assert message.body == BODIES[message.stream_offset]
    if expected is None:
        assert error is None
        return
    assert isinstance(error, rbs.AMQPDecoderError)
    assert (error.stream, error.offset, error.data) == (stream, message.stream_offset, expected)


async def test_messages(client: rbs.StreamsClient, stored: str) -> None:
    async with client.subscribe(
        stored, offset=rbs.Offset.FIRST, on_decode_error='raw', until='now', timeout=HANG
    ) as subscription:
        count = 0
        async for message in subscription.messages():
            if message.decode_error is None:
                assert message.properties.to is None  # decodes the sections
            check(message, stored)
            check(copy.copy(message), stored)
            check(pickle.loads(pickle.dumps(message)), stored)
            count += 1
        assert count == len(MESSAGES)


@pytest.mark.parametrize('arguments', [{}, {'max_wait': HANG}, {'max_messages': 2}])
@pytest.mark.parametrize('filtered', [False, True])
async def test_batches(
    client: rbs.StreamsClient, stored: str, arguments: Any, filtered: bool
) -> None:
    every = rbs.MessageFilter(lambda message: '', {''})
    async with client.subscribe(
        stored,
        offset=rbs.Offset.FIRST,
        on_decode_error='raw',
        until='now',
        timeout=HANG,
        filter=every if filtered else None,
    ) as subscription:
        found = []
        async for batch in subscription.batches(**arguments):
            found += [batch.offsets[i] for i in batch.undecoded]
            for message in batch.contexts():
                check(message, stored)
        assert found == [*UNDECODED]


async def test_bytes_that_are_not_decoded_at_all(client: rbs.StreamsClient, stored: str) -> None:
    async with client.subscribe(
        stored, offset=rbs.Offset.FIRST, amqp=False, until='now', timeout=HANG
    ) as subscription:
        async for batch in subscription.batches():
            assert list(batch.undecoded) == []
            assert [message.decode_error for message in batch.contexts()] == [None] * len(batch)


async def test_same_error_as_the_one_that_is_raised(client: rbs.StreamsClient, stored: str) -> None:
    raised: list[str] = []
    async with client.subscribe(
        stored, offset=rbs.Offset.FIRST, until='now', timeout=HANG
    ) as subscription:
        while len(raised) < len(UNDECODED):
            try:
                await anext(subscription)
            except rbs.AMQPDecoderError as ex:
                raised.append(str(ex))
    async with client.subscribe(
        stored, offset=rbs.Offset.FIRST, on_decode_error='raw', until='now', timeout=HANG
    ) as subscription:
        messages = [message async for message in subscription.messages()]
    assert raised == [str(message.decode_error) for message in messages if message.decode_error]
