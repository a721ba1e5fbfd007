"""`async for` raises the error of a chunk or message, then continues with the next one."""

from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

import rbfly.streams as rbs
from rbfly.error import AMQPDecoderError
from rbfly.testing import StreamBroker
from tests.brokers import until
from tests.inside import cursor_of

HANG = 20.0  # seconds; only a safeguard

WAYS: dict[str, Callable[[Any], AsyncIterator[Any]]] = {
    'bodies': aiter,
    'contexts': lambda messages: messages.messages(),
    'batches': lambda messages: messages.batches(),
}


class Refusal(Exception):
    """Raised by the program's filter."""


def refuse(ctx: rbs.MessageCtx) -> str:
    if ctx.body == 1:
        raise Refusal
    return ''


async def read_on(messages: rbs.Subscription, how: str, found: list[Any]) -> None:
    async for item in WAYS[how](messages):
        found += item if how == 'batches' else [item if how == 'bodies' else item.body]
        if 2 in found:
            break


@pytest.mark.both_loops
@pytest.mark.parametrize('how', [*WAYS])
@pytest.mark.parametrize(
    ('kind', 'error'),
    [
        ('damaged', rbs.ChunkError),
        ('corrupt', rbs.ChunkError),
        ('not AMQP', AMQPDecoderError),
        ('refused by the filter', Refusal),
    ],
)
async def test_iteration_raises_the_error_and_continues(
    how: str, kind: str, error: type[Exception]
) -> None:
    options: dict[str, Any] = {'offset': rbs.Offset.FIRST, 'timeout': HANG}
    if kind == 'refused by the filter':
        options['filter'] = rbs.MessageFilter(refuse, {''})
    found: list[Any] = []
    async with (
        StreamBroker() as memory,
        rbs.streams_client(memory.uri) as client,
    ):
        await client.create_stream('orders')
        memory.publish('orders', 0)
        async with client.subscribe('orders', **options) as messages:
            chunks = cursor_of(messages).queue.chunks
            async for item in messages:
                found.append(item)
                break
            if kind == 'damaged':
                memory.damage_chunk()
            elif kind == 'corrupt':
                memory.corrupt_chunk()
            if kind == 'not AMQP':
                async with client.publisher('orders', amqp=False) as publisher:
                    await publisher.send(b'\x00\x53')
            else:
                memory.publish('orders', 1)
            memory.publish('orders', 2)
            await until(lambda: len(chunks) == 2, 'both chunks have arrived')
            with pytest.raises(error):
                await read_on(messages, how, found)
            await read_on(messages, how, found)
    assert found == [0, 2]
