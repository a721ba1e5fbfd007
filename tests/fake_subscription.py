"""A subscription to a stream of the scripted broker."""

import contextlib
from collections.abc import AsyncIterator
from typing import Any

import rbfly.streams as rbs
from tests.fake_broker import FakeBroker
from tests.fake_stream import FakeStream

HANG = 20.0  # seconds; only a bug makes a test wait that long


def stream_of_chunks(*sizes: int) -> FakeStream:
    """Return a stream with chunks of these sizes; its messages are the numbers from 0."""
    stream = FakeStream()
    for size in sizes:
        stream.append(*(b'%d' % (stream.end + i) for i in range(size)))
    return stream


@contextlib.asynccontextmanager
async def subscribe_to_fake(
    stream: FakeStream, version: str = '4.0.5', **arguments: Any
) -> AsyncIterator[rbs.Subscription]:
    """Subscribe to the raw bodies of a stream, by default from its first message."""
    options: dict[str, Any] = {
        'offset': rbs.Offset.FIRST,
        'amqp': False,
        'timeout': HANG,
    } | arguments
    async with (
        FakeBroker(on=stream.handlers(), version=version) as fake,
        rbs.streams_client(fake.uri, connection_name='shop') as client,
        contextlib.aclosing(client.subscribe('test', **options)) as messages,
    ):
        yield messages
