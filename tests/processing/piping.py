"""Streams of the tests of pipes."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

import rbfly.streams as rbs
from rbfly.processing import PipeProgress, Stream, pipe

HANG = 30.0  # seconds; only a bug makes a test wait that long
T = TypeVar('T')


async def in_time(call: Coroutine[Any, Any, T]) -> T:
    async with asyncio.timeout(HANG):
        return await call


async def stored(client: rbs.StreamsClient, stream: str) -> list[Any]:
    """Return the bodies of a stream."""
    messages = client.subscribe(stream, offset=rbs.Offset.FIRST, until='now')
    return await in_time(bodies(messages))


async def bodies(messages: Any) -> list[Any]:
    return [body async for body in messages]


async def run(
    client: rbs.StreamsClient,
    source: str,
    target: str,
    transform: Callable[[Any], Any],
    **options: Any,
) -> PipeProgress:
    """Pipe the messages that the source has now."""
    settings = {'name': 'job', 'until': 'now'} | options
    ends = Stream(client, source), Stream(client, target)
    return await in_time(pipe(*ends, transform, **settings))


async def until_event(events: rbs.Events, kind: type[rbs.Event]) -> None:
    """Wait for the next event of a kind."""
    async with asyncio.timeout(HANG):
        async for event in events:
            if isinstance(event, kind):
                return
