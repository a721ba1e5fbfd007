"""A codec may decode a body to any object: none of them ends an iteration or changes on its way."""

from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

import rbfly.streams as rbs

VALUES: list[Any] = [
    None,
    (),
    (1, 2),
    [],
    StopIteration,
    StopIteration('one'),
    StopIteration(1, 2),
    StopAsyncIteration(),
    ValueError('three'),
    ValueError,
    GeneratorExit(),
    b'bytes',
]
CODEC: rbs.Codec[Any] = rbs.Codec(
    encode=lambda value: bytes([next(i for i, known in enumerate(VALUES) if known is value)]),
    decode=lambda data: VALUES[data[0]],
)
FROM_START: Any = {'offset': rbs.Offset.FIRST, 'until': 'now', 'codec': CODEC}


@pytest_asyncio.fixture
async def stored(client: rbs.StreamsClient, stream: str) -> AsyncIterator[str]:
    """A stream with each of the values."""
    async with client.publisher(stream, codec=CODEC) as publisher:
        await publisher.send_many(VALUES)
    yield stream


def same(found: list[Any]) -> bool:
    return len(found) == len(VALUES) and all(map(lambda a, b: a is b, found, VALUES))


@pytest.mark.parametrize('in_handler', [False, True])
async def test_bodies(client: rbs.StreamsClient, stored: str, in_handler: bool) -> None:
    found: list[Any] = []
    async with client.subscribe(stored, **FROM_START) as messages:
        if in_handler:
            try:
                raise KeyError
            except KeyError:
                found = [body async for body in messages]
        else:
            found = [body async for body in messages]
    assert same(found)


async def test_anext(client: rbs.StreamsClient, stored: str) -> None:
    async with client.subscribe(stored, **FROM_START) as messages:
        assert same([await anext(messages) for _ in VALUES])


async def test_nested_iterations(client: rbs.StreamsClient, stored: str) -> None:
    outer: list[Any] = []
    async with client.subscribe(stored, **FROM_START) as messages:
        async for body in messages:
            async with client.subscribe(stored, **FROM_START) as others:
                assert same([other async for other in others])
            outer.append(body)
    assert same(outer)
