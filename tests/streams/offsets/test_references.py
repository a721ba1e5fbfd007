"""The references under which a stream has stored offsets."""

from collections.abc import AsyncIterator
from typing import Any
from uuid import uuid4

import pytest
import pytest_asyncio

import rbfly.streams as rbs
from rbfly.protocol._chunk import Chunk
from rbfly.protocol.chunks import message, write_chunk
from rbfly.streams._offsets import references
from rbfly.streams._offsets.last_messages import chunks_from
from rbfly.streams.error import ChunkError, StreamDoesNotExist
from tests.super_streams import super_stream_of

SEGMENT = 1_000_000  # bytes


async def test_references(client: rbs.StreamsClient, stream: str) -> None:
    """Stored in chunks of their own, with messages, and more than once."""
    assert await client.references(stream) == {}
    await client.write_offset(stream, 'early', 7, wait=True)
    assert await client.references(stream) == {'early': 7}
    async with client.publisher(stream, name='shop') as publisher:
        for number in range(5):
            await publisher.send(number)
            await client.write_offset(stream, 'żółw', number)
            await client.write_offset(stream, f'ref-{number}', number)
            await publisher.send(number)
    assert await client.read_offset(stream, 'ref-4') == 4  # all are stored
    expected = {'early': 7, 'żółw': 4} | {f'ref-{number}': number for number in range(5)}
    assert await client.references(stream) == expected


async def fill(client: rbs.StreamsClient, stream: str, size: int) -> None:
    async with client.publisher(stream, amqp=False) as publisher:
        for _ in range(size // 50_000):
            await publisher.send_many([bytes(1000)] * 50)


@pytest_asyncio.fixture
async def segments(client: rbs.StreamsClient, stream_name: str) -> str:
    """A stream with small segments."""
    await client.create_stream(stream_name, segment_size=SEGMENT, max_length_bytes=3 * SEGMENT)
    return stream_name


async def test_references_stored_long_ago(client: rbs.StreamsClient, segments: str) -> None:
    """Retention has removed the chunk in which an offset was stored first."""
    await client.write_offset(segments, 'early', 10**6, wait=True)
    expected = {'early': 10**6}
    for number in range(4):
        await fill(client, segments, 2 * SEGMENT)
        await client.write_offset(segments, f'ref-{number}', 10**6 + number, wait=True)
        expected[f'ref-{number}'] = 10**6 + number
        assert await client.references(segments) == expected
    await fill(client, segments, 3 * SEGMENT)
    first = (await client.stream_stats(segments)).first_chunk_id
    assert first is not None
    assert first > 0
    assert await client.references(segments) == expected


async def test_only_the_last_segments_are_read(
    client: rbs.StreamsClient, stream_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    await client.create_stream(stream_name, segment_size=SEGMENT)
    await client.write_offset(stream_name, 'early', 10**6, wait=True)
    await fill(client, stream_name, 8 * SEGMENT)
    starts: list[Any] = []

    def record(cluster: Any, stream: str, offset: rbs.Offset, *args: Any) -> AsyncIterator[Chunk]:
        starts.append(offset.value)
        return chunks_from(cluster, stream, offset, *args)

    monkeypatch.setattr('rbfly.streams._offsets.references.chunks_from', record)
    monkeypatch.setattr(references, 'STEP', 100)
    assert await client.references(stream_name) == {'early': 10**6}
    assert starts == sorted(starts, reverse=True)
    assert starts[-1] > 3000  # of 8,000 messages


async def test_references_of_all_steps(
    client: rbs.StreamsClient, stream: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a snapshot, RbFly reads back to the first message."""
    monkeypatch.setattr(references, 'STEP', 2)
    expected = {f'ref-{number}': number for number in range(10)}
    async with client.publisher(stream) as publisher:
        for name, number in expected.items():
            await client.write_offset(stream, name, number, wait=True)
            await publisher.send(number)
    assert await client.references(stream) == expected


async def test_missing_stream(client: rbs.StreamsClient) -> None:
    with pytest.raises(StreamDoesNotExist, match='no-such-stream'):
        await client.references(f'no-such-stream-{uuid4()}')


async def test_super_stream(client: rbs.StreamsClient) -> None:
    async with super_stream_of(client, 2) as name:
        with pytest.raises(StreamDoesNotExist, match='super stream'):
            await client.references(name)


def chunk_of(data: bytes, kind: int) -> Chunk:
    return Chunk.parse(write_chunk([message(data)], offset=5, timestamp=0, epoch=1, type=kind))


@pytest.mark.parametrize('kind', [1, 2])
@pytest.mark.parametrize('data', [b'\1', b'\1\4ref', b'\1\3ref\0\0', b'\3\3ref' + bytes(8)])
def test_damaged_chunk(data: bytes, kind: int) -> None:
    with pytest.raises(ChunkError, match='offset 5'):
        list(references.names_in(chunk_of(data, kind)))


def test_snapshot_has_times_of_publishing_ids() -> None:
    data = b'\0\4shop' + bytes(16) + b'\1\3ref' + bytes(8) + b'\2\4time' + bytes(8)
    assert list(references.names_in(chunk_of(data, 2))) == ['ref']
