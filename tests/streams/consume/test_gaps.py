"""Messages that retention removes before a subscription reads them."""

import asyncio
import itertools
import logging
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest
import pytest_asyncio

import rbfly.streams as rbs
from rbfly.net.observer import Observer
from rbfly.streams.error import OffsetGapError, StreamConnectionError, StreamDoesNotExist
from tests import fake_broker as wire
from tests.fake_stream import FakeStream
from tests.fake_subscription import stream_of_chunks, subscribe_to_fake
from tests.inside import cluster_of

HANG = 20.0  # seconds; only a safeguard
SIZE = 10_000  # bytes of a message: a segment has two
SEGMENT = 2 * SIZE


class Gaps(Observer):
    """Records the gaps of a client."""

    def __init__(self, client: rbs.StreamsClient) -> None:
        self.found: list[tuple[str, int, int]] = []
        cluster_of(client).observers.add(self)

    def on_gap(self, stream: str, wanted: int, first: int) -> None:
        self.found.append((stream, wanted, first))


@pytest_asyncio.fixture
async def short(client: rbs.StreamsClient, stream_name: str) -> AsyncIterator[str]:
    """A stream of which the broker keeps a few messages."""
    await client.create_stream(stream_name, max_length_bytes=3 * SEGMENT, segment_size=SEGMENT)
    yield stream_name


def odd_or_even(ctx: rbs.MessageCtx) -> str:
    body: Any = ctx.body
    return 'odd' if body[0] % 2 else 'even'


async def publish(
    client: rbs.StreamsClient,
    stream: str,
    count: int = 1,
    *,
    removed: int = -1,
    values: Sequence[int] = (0, 1),
) -> int:
    """Publish large messages, a chunk each; return the first offset of the stream.

    :param count: number of messages.
    :param removed: then go on until retention has removed this offset.
    :param values: first byte of the messages, in turn.
    """
    async with client.publisher(stream, filter_extract=odd_or_even) as publisher:
        for i in itertools.count(1):
            await publisher.send(bytes([values[(i - 1) % len(values)]]) * SIZE)
            first = (await client.stream_stats(stream)).first_chunk_id
            assert first is not None
            if i >= count and first > removed:
                return first
    raise AssertionError


async def store(client: rbs.StreamsClient, stream: str, value: int) -> None:
    """Store an offset that retention has removed; a new segment drops those of the last one."""
    stored = None
    while stored is None:
        before = await client.stream_stats(stream)
        await client.write_offset(stream, 'reader', value)
        while await client.stream_stats(stream) == before:
            pass
        stored = await client.read_offset(stream, 'reader')


def offset() -> Any:
    return rbs.get_message_ctx().stream_offset


async def cut(client: rbs.StreamsClient) -> None:
    (await client.get_protocol()).abort(StreamConnectionError('cut by the test'))


async def test_lag_counts_no_messages_that_retention_has_removed(
    client: rbs.StreamsClient, short: str
) -> None:
    await publish(client, short, removed=7)
    await store(client, short, 4)
    first: int | None = -1
    before: int | None = None
    while first != before:  # retention still removes messages
        before = (await client.stream_stats(short)).first_chunk_id
        assert before is not None
        at_first = await client.lag(short, position=before)
        after_first = await client.lag(short, position=before + 1)
        below = await client.lag(short, position=5)
        stored = await client.lag(short, 'reader')
        first = (await client.stream_stats(short)).first_chunk_id
    assert at_first
    assert (below, stored, after_first) == (at_first, at_first, at_first - 1)


@pytest.mark.parametrize('start', ['offset', 'reference', 'default'])
async def test_warning_at_the_start(
    client: rbs.StreamsClient, short: str, start: str, caplog: pytest.LogCaptureFixture
) -> None:
    first = await publish(client, short, removed=7)
    if start == 'reference':
        await store(client, short, 4)
    wanted = {
        'offset': rbs.Offset.offset(5),
        'reference': rbs.Offset.reference('reader'),
        'default': rbs.Offset.reference('other', rbs.Offset.offset(5)),
    }[start]
    gaps = Gaps(client)
    async with client.subscribe(short, offset=wanted, timeout=HANG) as messages:
        await anext(messages)
        assert offset() >= first
    [(stream, missing, now)] = gaps.found
    assert (stream, missing) == (short, 5)
    assert now >= first
    lines = [record for record in caplog.records if record.name == 'rbfly.streams']
    [line] = lines
    assert line.levelno == logging.WARNING
    assert f'begins at offset {now}' in line.getMessage()
    assert f'removed offsets 5 to {now - 1} ' in line.getMessage()


async def start_at_5(stream: str) -> rbs.Offset:
    return rbs.Offset.offset(5)


@pytest.mark.parametrize('group', [None, 'group'])
@pytest.mark.parametrize('start', [rbs.Offset.offset(5), start_at_5])
async def test_error_at_the_start(
    client: rbs.StreamsClient, short: str, start: Any, group: str | None
) -> None:
    first = await publish(client, short, removed=5)
    gaps = Gaps(client)
    async with client.subscribe(
        short, offset=start, on_gap='raise', timeout=HANG, group=group
    ) as messages:
        with pytest.raises(OffsetGapError) as caught:
            await anext(messages)
        errors = [caught.value]
        assert errors[0].first >= first
        while True:
            try:
                await anext(messages)
                break
            except OffsetGapError as ex:  # retention has removed more messages since
                errors.append(ex)
        assert offset() >= errors[-1].first
        await anext(messages)
    wanted = [5, *(error.first for error in errors)]
    assert gaps.found == [(short, *gap) for gap in itertools.pairwise(wanted)]
    assert gaps.found == [(error.stream, error.wanted, error.first) for error in errors]


@pytest.mark.parametrize('group', [None, 'group'])
async def test_gap_can_be_ignored(
    client: rbs.StreamsClient, short: str, group: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    first = await publish(client, short, removed=5)
    gaps = Gaps(client)
    start = rbs.Offset.offset(5)
    async with client.subscribe(
        short, offset=start, on_gap='ignore', timeout=HANG, group=group
    ) as messages:
        await anext(messages)
        assert offset() >= first
    assert gaps.found == []
    assert not [record for record in caplog.records if record.name == 'rbfly.streams']


async def test_gap_after_a_reconnect(client: rbs.StreamsClient, short: str) -> None:
    """Retention overtakes a subscription while it has no connection."""
    await publish(client, short, 2)
    start = rbs.Offset.FIRST
    async with client.subscribe(
        short, offset=start, on_gap='raise', timeout=HANG, initial_credit=1
    ) as messages:
        await anext(messages)
        assert offset() == 0
        wanted = 1
        await cut(client)
        await publish(client, short, removed=7)
        error = None
        while error is None:
            try:
                await anext(messages)  # perhaps a message that has arrived before
            except OffsetGapError as ex:
                error = ex
            else:
                wanted = offset() + 1
        assert error.wanted == wanted
        await anext(messages)
        assert offset() >= error.first
        last = (await client.stream_stats(short)).last_chunk_id
        assert last is not None
        while offset() < last - 1:  # retention may still remove others, but not the last ones
            await anext(messages)
        before = offset()
        await cut(client)  # no other gap
        await anext(messages)
        assert offset() == before + 1


@pytest.mark.parametrize(
    'start',
    [rbs.Offset.FIRST, rbs.Offset.LAST, rbs.Offset.timestamp(0), rbs.Offset.reference('none')],
)
async def test_no_gap_without_an_exact_start(
    client: rbs.StreamsClient, short: str, start: rbs.Offset
) -> None:
    await publish(client, short, removed=5)
    gaps = Gaps(client)
    async with client.subscribe(short, offset=start, on_gap='raise', timeout=HANG) as messages:
        await anext(messages)
    assert gaps.found == []


async def test_stored_offsets_are_no_gap(client: rbs.StreamsClient, stream: str) -> None:
    """They take up offsets."""
    gaps = Gaps(client)
    async with (
        client.publisher(stream) as publisher,
        client.subscribe(
            stream, offset=rbs.Offset.offset(0), on_gap='raise', timeout=HANG
        ) as messages,
    ):
        for i in range(3):
            for _ in range(3):
                stats = await client.stream_stats(stream)
                await client.write_offset(stream, 'reader', i)
                while await client.stream_stats(stream) == stats:
                    pass
            await publisher.send(i)
            assert await anext(messages) == i
            await cut(client)
        assert offset() >= 8
    assert gaps.found == []


async def test_filtered_chunks_are_no_gap(client: rbs.StreamsClient, short: str) -> None:
    """The broker has skipped them, and retention removes them afterwards."""
    gaps = Gaps(client)
    wanted = rbs.MessageFilter(odd_or_even, {'odd'})
    async with client.subscribe(
        short, offset=rbs.Offset.FIRST, filter=wanted, on_gap='raise', timeout=HANG
    ) as messages:
        await publish(client, short, 2)
        await anext(messages)
        assert offset() == 1
        waiting = asyncio.ensure_future(anext(messages))
        await publish(client, short, removed=7, values=(0,))
        await cut(client)
        await publish(client, short, values=(1,))
        await waiting
    assert gaps.found == []


# -- on the scripted broker


def remove(stream: FakeStream, chunks: int) -> None:
    del stream.chunks[:chunks]


async def test_each_gap_is_reported_once() -> None:
    stream = stream_of_chunks(1, 1, 1, 1, 1)
    remove(stream, 2)
    refused = iter([0x06, 0x06])
    stream.on_subscribe = lambda reader: next(refused, wire.OK)
    async with subscribe_to_fake(stream, offset=rbs.Offset.offset(1), on_gap='raise') as messages:
        with pytest.raises(OffsetGapError, match='has removed offset 1 before'):
            await anext(messages)
        assert await anext(messages) == b'2'
        assert len(stream.readers) == 3


async def test_wider_gap_is_reported_from_the_last_one() -> None:
    stream = stream_of_chunks(1, 1, 1, 1, 1)
    remove(stream, 2)
    async with subscribe_to_fake(stream, offset=rbs.Offset.offset(0), on_gap='raise') as messages:
        with pytest.raises(OffsetGapError) as caught:
            await anext(messages)
        assert (caught.value.wanted, caught.value.first) == (0, 2)
        remove(stream, 1)
        with pytest.raises(OffsetGapError) as caught:
            await anext(messages)
        assert (caught.value.wanted, caught.value.first) == (2, 3)
        assert await anext(messages) == b'3'


async def test_replica_that_has_the_messages_delivers_them() -> None:
    """Each replica removes segments on its own."""
    stream = stream_of_chunks(1, 1, 1)
    first, *stream.chunks = stream.chunks
    async with subscribe_to_fake(stream, offset=rbs.Offset.offset(0), on_gap='raise') as messages:
        with pytest.raises(OffsetGapError):
            await anext(messages)
        stream.chunks.insert(0, first)
        assert [await anext(messages) for _ in range(3)] == [b'0', b'1', b'2']


async def test_broker_without_statistics_reports_no_gap() -> None:
    stream = stream_of_chunks(1, 1)
    remove(stream, 1)
    async with subscribe_to_fake(stream, '3.10.0', offset=rbs.Offset.offset(0)) as messages:
        assert await anext(messages) == b'1'


async def test_stream_created_again_has_its_own_error() -> None:
    stream = stream_of_chunks(1, 1, 1)
    async with subscribe_to_fake(stream, on_gap='raise') as messages:
        assert [await anext(messages) for _ in range(3)] == [b'0', b'1', b'2']
        stream.recreate()
        stream.append(b'new')
        stream.reader.peer.transport.abort()
        with pytest.raises(StreamDoesNotExist, match='created again'):
            await anext(messages)
        assert await anext(messages) == b'new'
