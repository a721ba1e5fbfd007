"""Publishing ids of the application: however they are given, the broker drops those it has."""

from collections.abc import Callable

import pytest

import rbfly.streams as rbs


def assigned(body: str, publish_id: int | None) -> rbs.MessageCtx:
    ctx = rbs.MessageCtx(body)
    ctx.stream_publish_id = publish_id
    return ctx


WAYS: dict[str, Callable[[str, int | None], rbs.MessageCtx]] = {
    'factory': lambda body, publish_id: rbs.stream_message_ctx(body, publish_id=publish_id),
    'constructor': lambda body, publish_id: rbs.MessageCtx(body, stream_publish_id=publish_id),
    'attribute': assigned,
}


@pytest.mark.parametrize('way', WAYS.values(), ids=list(WAYS))
async def test_id_that_the_broker_has(
    client: rbs.StreamsClient, stream: str, way: Callable[[str, int | None], rbs.MessageCtx]
) -> None:
    async with client.publisher(stream, name='app') as publisher:
        await publisher.send(way('first', 10))
    async with client.publisher(stream, name='app') as publisher:
        await publisher.send(way('again', 10))
        await publisher.send(way('next', None))
        assert publisher.message_id == 12
    async with client.subscribe(stream, offset=rbs.Offset.FIRST, timeout=10) as messages:
        assert [await anext(messages) for _ in range(2)] == ['first', 'next']
