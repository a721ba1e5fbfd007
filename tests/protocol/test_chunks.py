"""Written chunks: compared with chunks read back, built with `struct`, and recorded."""

import gzip
import struct
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rbfly.error import ArgumentError, FrameError
from rbfly.protocol import message_frames
from rbfly.protocol._chunk import Chunk
from rbfly.protocol._entry import SubEntry
from rbfly.protocol._publish import PublishWindow
from rbfly.protocol.chunks import (
    ENTRIES_MAX,
    HEADER,
    PublishEntry,
    message,
    read_entry,
    records,
    write_chunk,
)
from rbfly.protocol.compression import Compression, compressor
from rbfly.protocol.fields import Reader
from tests import stream_wire as wire
from tests.protocol.test_publish_window import add, take_all
from tests.raw_client import decode_frame


def split_entries(data: bytes) -> list[bytes]:
    """Split the data of a chunk into entries."""
    reader = Reader(data)
    entries = []
    while not reader.at_end:
        entries.append(read_entry(reader))
    return entries


def read(data: bytes) -> list[bytes]:
    """Read the messages of a chunk as a consumer does."""
    chunk = Chunk.parse(data)
    chunk.verify()
    return chunk.messages()


def sub_entry(messages: Sequence[bytes], compression: str) -> bytes:
    plain = b''.join(map(wire.message, messages))
    data = gzip.compress(plain) if compression == 'gzip' else plain
    code = Compression(compression).code
    return wire.data_batch(data, len(messages), len(plain), len(data), code)


MESSAGES = st.lists(st.binary(max_size=30), max_size=6)
ENTRIES = st.lists(
    st.one_of(
        st.builds(lambda data: ([data], message(data)), st.binary(max_size=30)),
        st.builds(
            lambda messages, code: (messages, sub_entry(messages, code)),
            MESSAGES.filter(bool),
            st.sampled_from(['none', 'gzip']),
        ),
    ),
    max_size=6,
)


@given(
    ENTRIES,
    st.integers(0, 2**62),
    st.integers(-(2**63), 2**63 - 1),
    st.integers(0, 2**64 - 1),
    st.integers(0, 2),
)
def test_written_chunk_is_read_back(
    entries: list[tuple[list[bytes], bytes]], offset: int, timestamp: int, epoch: int, kind: int
) -> None:
    parts = [data for _, data in entries]
    messages = [data for found, _ in entries for data in found]
    data = write_chunk(parts, offset=offset, timestamp=timestamp, epoch=epoch, type=kind)
    assert data == wire.chunk(
        parts, len(messages), offset=offset, timestamp=timestamp, epoch=epoch, kind=kind
    )
    chunk = Chunk.parse(data)
    assert (chunk.offset, chunk.timestamp, chunk.epoch, chunk.type) == (
        offset,
        timestamp,
        epoch,
        kind,
    )
    assert (chunk.entries, chunk.records) == (len(parts), len(messages))
    assert read(data) == messages
    assert split_entries(data[HEADER.size :]) == parts


def test_delivered_chunk_has_only_the_sizes_of_filter_and_trailer() -> None:
    parts = [message(b'a'), message(b'b')]
    data = write_chunk(parts, offset=7, timestamp=8, filter=b'f' * 16, trailer=b'trailer')
    assert data == wire.chunk(parts, 2, offset=7, timestamp=8, bloom=16, trailer=7)
    assert read(data) == [b'a', b'b']
    stored = write_chunk(
        parts, offset=7, timestamp=8, filter=b'f' * 16, trailer=b'trailer', stored=True
    )
    assert stored == data[:48] + b'f' * 16 + data[48:] + b'trailer'


def test_limit_of_entries_per_chunk() -> None:
    entries = [message(b'')] * ENTRIES_MAX
    assert len(read(write_chunk(entries, offset=0, timestamp=0))) == ENTRIES_MAX
    with pytest.raises(ArgumentError, match='65535 entries, not 65536'):
        write_chunk([*entries, message(b'')], offset=0, timestamp=0)


@pytest.mark.parametrize('compression', ['none', 'gzip', 'snappy', 'lz4', 'zstd'])
@pytest.mark.parametrize('size', [1, 3])
def test_published_entries_become_a_chunk(compression: str, size: int) -> None:
    kind = Compression(compression)
    block = SubEntry(size, kind.code, compressor(kind)) if size > 1 else None
    window = PublishWindow(3, 0, 1000, 5, None, False, block)
    messages = [b'message %d' % i for i in range(8)]
    add(window, *messages)
    (data,) = take_all(window)
    frame = decode_frame(2, 1, data[8:])
    assert isinstance(frame, message_frames.Publish)
    assert frame.publisher_id == 3
    assert [entry.publishing_id for entry in frame.entries] == list(
        range(5, 13 if size == 1 else 8)
    )
    assert sum(records(entry.data) for entry in frame.entries) == len(messages)
    chunk = write_chunk([entry.data for entry in frame.entries], offset=100, timestamp=0)
    assert read(chunk) == messages


@given(st.lists(st.tuples(st.integers(0, 2**64 - 1), st.binary(max_size=30)), max_size=6))
def test_publish_frame_is_decoded_and_encoded(entries: list[tuple[int, bytes]]) -> None:
    data = wire.publish(9, entries)
    found = tuple(PublishEntry(i, None, wire.message(body)) for i, body in entries)
    assert decode_frame(2, 1, data[8:]) == message_frames.Publish(9, found)
    assert message_frames.Publish(9, found).encode() == data
    filters = [None if i % 2 else b'f' * (i % 5) for i, _ in entries]
    fields = [b'\xff\xff' if f is None else struct.pack('>H', len(f)) + f for f in filters]
    data = wire.publish(9, entries, fields)
    found = tuple(
        PublishEntry(i, f, wire.message(body))
        for (i, body), f in zip(entries, filters, strict=True)
    )
    assert decode_frame(2, 2, data[8:]) == message_frames.PublishV2(9, found)
    assert message_frames.PublishV2(9, found).encode() == data


def test_truncated_entries_are_refused() -> None:
    data = wire.sub_batch([b'a', b'bc']) + message(b'def')
    assert [records(entry) for entry in split_entries(data)] == [2, 1]
    whole = {0, len(data), len(data) - len(message(b'def'))}
    for size in range(len(data)):
        if size not in whole:
            with pytest.raises(FrameError):
                split_entries(data[:size])


@pytest.mark.parametrize('name', ['life-v2.bin', 'v1-deleted.bin', 'burst.bin.gz'])
def test_chunks_of_recorded_session_are_written_identically(name: str) -> None:
    count = 0
    for key, version, body in wire.split_frames(wire.session(name)):
        found = decode_frame(key, version, body)
        if not isinstance(found, message_frames.Deliver | message_frames.DeliverV2):
            continue
        count += 1
        head = HEADER.unpack_from(found.chunk)
        _, kind, _, _, timestamp, epoch, offset, _, _, trailer, bloom = head
        written = write_chunk(
            split_entries(found.chunk[HEADER.size :]),
            offset=offset,
            timestamp=timestamp,
            epoch=epoch,
            type=kind,
            filter=bytes(bloom),
            trailer=bytes(trailer),
        )
        assert written == found.chunk
        assert read(written) == read(found.chunk)
    assert count > 1
