"""A subscription that starts after the end of its stream reports that as a gap."""

import asyncio
from typing import Any

import pytest

import rbfly.streams as rbs
from rbfly.streams import events
from rbfly.streams.error import OffsetGapError
from tests.brokers import until
from tests.group_members import HANG, NewClient, OwnOffsets, publish

END, START = 20, 50


@pytest.mark.parametrize('grouped', [True, False])
@pytest.mark.parametrize('start', ['offset', 'function', 'reference'])
async def test_start_after_the_end_is_a_gap(
    clients: NewClient, stream: str, group: str, start: str, grouped: bool
) -> None:
    client, own = clients(), OwnOffsets()
    await publish(client, stream, range(END))
    own.offsets[stream] = START
    offset: Any = {'offset': rbs.Offset.offset(START), 'function': own.start}.get(start)
    if start == 'reference':
        await client.write_offset(stream, group, START - 1, wait=True)
        offset = rbs.Offset.reference(group)
    reported = client.events()
    async with client.subscribe(
        stream, group=group if grouped else None, offset=offset, on_gap='raise', timeout=HANG
    ) as messages:
        with pytest.raises(OffsetGapError, match='deleted and created again') as caught:
            await anext(messages)
        assert caught.value.wanted == START
        assert END <= caught.value.first <= END + 1  # a stored offset takes up one
        waiting = asyncio.ensure_future(anext(messages))  # reported once, then it waits
        await until(lambda: messages.active, 'the subscription is open')
        await publish(client, stream, range(END, 2 * START))
        assert await waiting >= START - 2
    await client.disconnect()
    gaps = [item async for item in reported if isinstance(item, events.OffsetGap)]
    assert [item.first_missing for item in gaps] == [START]


@pytest.mark.parametrize('grouped', [True, False])
async def test_start_at_the_end_is_no_gap(
    clients: NewClient, stream: str, group: str, grouped: bool
) -> None:
    client = clients()
    await publish(client, stream, range(END))
    end = await client.resolve_offset(stream, rbs.Offset.NEXT)
    own = OwnOffsets()
    own.offsets[stream] = end
    async with client.subscribe(
        stream,
        group=group if grouped else None,
        offset=own.start,
        on_gap='raise',
        timeout=HANG,
    ) as messages:
        waiting = asyncio.ensure_future(anext(messages))
        await until(lambda: messages.active, 'the subscription is open')
        await publish(client, stream, range(END, 2 * END))
        assert await waiting == END
