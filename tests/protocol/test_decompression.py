"""Compressed sub-entries: every codec, false sizes, and the messages after a damaged sub-entry."""

import gc
import gzip
import struct
import sys
import tracemalloc
import zlib
from collections.abc import Callable, Sequence
from typing import Any

import cramjam
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rbfly.protocol._chunk import Chunk
from rbfly.protocol._cursor import KINDS
from rbfly.protocol.compression import BATCH_MAX, CHUNK_MAX
from rbfly.streams.error import ChunkError, CompressionError
from rbfly.streams.types import MessageFilter
from tests.cursors import Cursor, amqp, batches, contexts, drain
from tests.sizes import sized
from tests.stream_wire import chunk, data_batch, message, sub_batch

GZIP, SNAPPY, LZ4, ZSTD = 1, 2, 3, 4
CODES = {'gzip': GZIP, 'snappy': SNAPPY, 'lz4': LZ4, 'zstd': ZSTD}
COMPRESS: dict[int, Callable[[bytes], bytes]] = {
    GZIP: lambda data: gzip.compress(data),
    SNAPPY: lambda data: bytes(cramjam.snappy.compress(data)),
    LZ4: lambda data: bytes(cramjam.lz4.compress(data)),
    ZSTD: lambda data: bytes(cramjam.zstd.compress(data)),
}


def packed(
    messages: Sequence[bytes],
    code: int,
    *,
    records: int | None = None,
    plain: int | None = None,
    stored: bytes | None = None,
) -> bytes:
    """Write a compressed sub-entry; the keywords replace its true counts, sizes and data."""
    data = b''.join(map(message, messages))
    stored = COMPRESS[code](data) if stored is None else stored
    return data_batch(
        stored,
        len(messages) if records is None else records,
        len(data) if plain is None else plain,
        len(stored),
        code,
    )


def crc32c(data: bytes) -> int:
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def snappy_frame(data: bytes) -> bytes:
    """Write the framing format with one uncompressed chunk."""
    crc = crc32c(data)
    masked = ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF
    size = (len(data) + 4).to_bytes(3, 'little')
    return b'\xff\x06\x00\x00sNaPpY\x01' + size + struct.pack('<I', masked) + data


def lz4_frame(data: bytes) -> bytes:
    """Write independent blocks of at most 64 KiB without checksums: one, uncompressed."""
    block = struct.pack('<I', 0x80000000 | len(data)) + data
    return bytes.fromhex('04224d18 6040 82') + block + bytes(4)


def zstd_frame(data: bytes) -> bytes:
    """Write a single segment whose size takes one byte, with one raw block."""
    head = bytes.fromhex('28b52ffd 20') + bytes([len(data)])
    return head + (len(data) << 3 | 1).to_bytes(3, 'little') + data


# Frames by the specifications of the formats, written without the libraries.
BY_HAND: dict[int, Callable[[bytes], bytes]] = {
    SNAPPY: snappy_frame,
    LZ4: lz4_frame,
    ZSTD: zstd_frame,
}


# -- every codec


@pytest.mark.parametrize('code', CODES.values(), ids=CODES)
def test_messages_of_every_codec(code: int) -> None:
    messages = [b'', b'a', b'b' * 100_000, bytes(range(256))]
    entries = [message(b'first'), packed(messages, code), message(b'last')]
    data = chunk(entries, 6, offset=10)
    assert Chunk.parse(data).messages() == [b'first', *messages, b'last']
    cursor = Cursor()
    cursor.push(data)
    assert drain(cursor) == list(zip(range(10, 16), [b'first', *messages, b'last'], strict=True))


@pytest.mark.parametrize('code', BY_HAND)
def test_uncompressed_blocks_of_each_format(code: int) -> None:
    data = message(b'by') + message(b'hand')
    entry = packed([b'by', b'hand'], code, stored=BY_HAND[code](data))
    assert Chunk.parse(chunk([entry], 2)).messages() == [b'by', b'hand']


def test_raw_snappy_block() -> None:
    """Some clients write Snappy without the framing format."""
    stored = bytes(cramjam.snappy.compress_raw(message(b'raw' * 100)))
    entry = packed([b'raw' * 100], SNAPPY, stored=stored)
    assert Chunk.parse(chunk([entry], 1)).messages() == [b'raw' * 100]


def test_all_codecs_in_one_chunk() -> None:
    """The chunk has a sub-entry of each codec, and single messages between them."""
    entries, expected = [], []
    for code in (GZIP, SNAPPY, LZ4, ZSTD, 0):
        bodies = [amqp([code, i]) for i in range(3)]
        entries += [message(amqp(code)), packed(bodies, code) if code else sub_batch(bodies)]
        expected += [code, *([code, i] for i in range(3))]
    data = chunk(entries, 20, offset=100)
    for kind in (drain, contexts, batches):
        cursor = Cursor(amqp=True)
        cursor.push(data)
        found: Any = kind(cursor)
        if kind is drain:
            assert found == list(zip(range(100, 120), expected, strict=True))
        elif kind is contexts:
            assert [ctx.body for ctx in found] == expected
            assert [ctx.stream_offset for ctx in found] == list(range(100, 120))
        else:
            (batch,) = found
            assert list(batch) == expected
            assert list(batch.offsets) == list(range(100, 120))
            assert [ctx.body for ctx in batch.contexts()] == expected
        assert cursor.consumed == [100]


def test_messages_outlive_their_sub_entry() -> None:
    cursor = Cursor(amqp=True)
    bodies = [[bytes([65 + i]) * 1000, bytes([97 + i]) * 1000] for i in range(4)]
    entries = [packed([amqp(body) for body in pair], GZIP) for pair in bodies]
    cursor.push(chunk(entries, 8))
    found = contexts(cursor)
    cursor.resume()
    gc.collect()
    assert [bytes(ctx.body_view()) for ctx in found] == [body for pair in bodies for body in pair]


@pytest.mark.parametrize('start', range(9, 18))
def test_start_inside_a_compressed_sub_entry(start: int) -> None:
    cursor = Cursor()
    cursor.resume(start)
    words = [b'%d' % i for i in range(10, 16)]
    cursor.push(chunk([packed(words[:3], GZIP), packed(words[3:], GZIP)], 6, offset=10))
    cursor.push(chunk([message(b'20')], 1, offset=20))
    expected = [(int(word), word) for word in (*words, b'20') if int(word) >= start]
    assert drain(cursor) == expected


@pytest.mark.parametrize('start', range(12))
def test_batches_end_at_the_same_messages_wherever_reading_starts(start: int) -> None:
    """A batch ends where 16 MiB of a chunk are complete."""
    cursor = Cursor()
    cursor.resume(start)
    cursor.push(chunk([packed([bytes(3 * 2**20)] * 2, GZIP)] * 6, 12))
    found = [batch.next_offset for batch in batches(cursor)]
    assert found == [end for end in (6, 12) if end > start]


def test_sub_entry_below_the_start_is_not_decompressed() -> None:
    cursor = Cursor()
    cursor.resume(12)
    damaged = packed([b'a', b'b'], GZIP, stored=b'no gzip')
    cursor.push(chunk([damaged, packed([b'c'], GZIP)], 3, offset=10))
    assert drain(cursor) == [(12, b'c')]


def test_sub_entry_without_messages_is_not_decompressed() -> None:
    entries = [packed([], code, stored=b'junk', plain=4, records=0) for code in range(1, 8)]
    assert Chunk.parse(chunk([*entries, message(b'a'), *entries], 1)).messages() == [b'a']


# -- false sizes and damaged data


def outcome(entry: bytes, records: int = 1) -> list[Any]:
    """Read a sub-entry between two messages; return its messages with their offsets, and errors."""
    cursor = Cursor()
    data = [message(b'before'), entry, message(b'after')]
    cursor.push(chunk(data, records + 2, offset=100))
    cursor.push(chunk([message(b'next')], 1, offset=200))
    found: list[Any] = []
    while True:
        try:
            if not cursor.advance():
                break
            found.append((cursor.take(), cursor.last.context().stream_offset))
        except ChunkError as ex:
            found.append(str(ex))
    assert found[0] == (b'before', 100)
    assert found[-2:] == [(b'after', 101 + records), (b'next', 200)]
    assert cursor.consumed == [100, 200]
    return found[1:-2]


@pytest.mark.parametrize('code', CODES.values(), ids=CODES)
def test_damaged_sub_entry_raises_and_reading_continues(code: int) -> None:
    (found,) = outcome(packed([b'a', b'b'], code, stored=b'damaged'), 2)
    assert 'at offset 101' in found


@pytest.mark.parametrize('code', CODES.values(), ids=CODES)
@pytest.mark.parametrize('excess', [-1, 1, 1000])
def test_false_size_is_refused(code: int, excess: int) -> None:
    (found,) = outcome(packed([b'x' * 2000], code, plain=2004 + excess))
    assert 'at offset 101' in found


@pytest.mark.parametrize('code', CODES.values(), ids=CODES)
def test_extra_bytes_after_the_compressed_ones_are_refused(code: int) -> None:
    data = message(b'x' * 100)
    (found,) = outcome(packed([b'x' * 100], code, stored=COMPRESS[code](data) + b'more'))
    assert 'at offset 101' in found


@pytest.mark.parametrize('code', [5, 6, 7])
def test_unknown_codec_is_refused(code: int) -> None:
    (found,) = outcome(packed([b'a'], code, stored=b'junk'))
    assert f'unknown compression {code}' in found


def test_impossible_count_is_refused_before_decompression() -> None:
    (found,) = outcome(packed([b''] * 10, GZIP, plain=39, stored=b''), 10)
    assert '10 messages has 39 bytes' in found


def test_bytes_after_the_last_message_are_refused() -> None:
    found = outcome(packed([b'a', b'b', b'c'], GZIP, records=2), 2)
    assert found[:2] == [(b'a', 101), (b'b', 102)]
    assert 'bytes after its last message' in found[2]


def test_message_longer_than_its_sub_entry_is_refused() -> None:
    data = message(b'a') + struct.pack('>I', 100) + b'short'
    found = outcome(packed([], GZIP, records=3, plain=len(data), stored=gzip.compress(data)), 3)
    assert found[0] == (b'a', 101)
    assert 'longer than its sub-entry batch' in found[1]
    assert 'at offset 102' in found[1]


# -- bombs


@pytest.mark.long
@pytest.mark.parametrize('code', CODES.values(), ids=CODES)
def test_decompression_bomb_stops_at_its_declared_size(code: int) -> None:
    stored = COMPRESS[code](bytes(50_000_000))
    assert len(stored) < 5_000_000
    entry = packed([], code, records=1, plain=1000, stored=stored)
    data = chunk([entry], 1)
    tracemalloc.start()
    try:
        with pytest.raises(ChunkError):
            Chunk.parse(data).messages()
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 2 * len(data) + 1_000_000


@pytest.mark.long
@pytest.mark.parametrize('filter', [None, MessageFilter(lambda ctx: 'a', {'a'})])
def test_message_batch_holds_few_large_sub_entries(filter: MessageFilter | None) -> None:
    """Each sub-entry is below its limit, but together they would take twice 400 MB."""
    entry = packed([bytes(4_000_000)] * 5, ZSTD)
    cursor = Cursor(filter=filter)
    cursor.push(chunk([entry] * 20, 100))
    count = 0
    tracemalloc.start()
    try:
        while cursor.advance(KINDS['batch'], 1000):
            batch = cursor.take(KINDS['batch'])
            assert len(batch) % 5 == 0
            count += len(batch)
            del batch
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert count == 100
    assert peak < 150_000_000


def test_sub_entries_of_usual_size_form_one_message_batch() -> None:
    cursor = Cursor()
    cursor.push(chunk([packed([bytes(1000)] * 100, ZSTD)] * 50, 5000))
    assert [len(batch) for batch in batches(cursor, 10_000)] == [5000]


def test_high_compression_ratio_is_accepted_below_the_limit() -> None:
    size = BATCH_MAX - 4
    entry = packed([bytes(size)], ZSTD)
    assert len(entry) < 100_000
    (found,) = Chunk.parse(chunk([entry], 1)).messages()
    assert len(found) == size


def test_size_limit_of_a_sub_entry() -> None:
    (found,) = outcome(packed([b'a'], GZIP, plain=BATCH_MAX + 1))
    assert f'larger than {BATCH_MAX}' in found


def test_size_limit_of_a_chunk() -> None:
    """The declared sizes count, before anything is decompressed."""
    count = CHUNK_MAX // BATCH_MAX
    damaged = packed([b'a'], GZIP, plain=BATCH_MAX, stored=b'junk')
    cursor = Cursor()
    cursor.push(chunk([*[damaged] * count, packed([b'a'], GZIP)], count + 1))
    errors = []
    while True:
        try:
            assert not cursor.advance() or cursor.take()
            break
        except ChunkError as ex:
            errors.append(str(ex))
    assert len(errors) == count + 1
    assert 'is not gzip' in errors[-2]
    assert f'larger than {CHUNK_MAX} bytes' in errors[-1]


# -- libraries


def test_error_names_the_extra_with_the_missing_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, 'cramjam', None)
    for code, name in ((SNAPPY, 'snappy'), (LZ4, 'lz4'), (ZSTD, 'zstd')):
        cursor = Cursor()
        cursor.push(chunk([packed([b'a'], code), packed([b'b'], GZIP)], 2))
        with pytest.raises(CompressionError, match=f'{name}.*extra `compression`'):
            drain(cursor)
        assert drain(cursor) == [(1, b'b')]


@given(
    code=st.sampled_from([GZIP, SNAPPY, LZ4, ZSTD]),
    head=st.sampled_from([b'', b'\xff\x06\x00\x00sNaPpY', b'\x04\x22\x4d\x18', b'\x28\xb5\x2f\xfd'])
    | st.just(b'\x1f\x8b\x08'),
    data=st.binary(max_size=60),
    plain=st.integers(0, 300),
)
@settings(max_examples=sized(75, 300))
def test_any_bytes_yield_messages_or_chunk_error(
    code: int, head: bytes, data: bytes, plain: int
) -> None:
    entry = data_batch(head + data, 1, plain, len(head + data), code)
    try:
        found = Chunk.parse(chunk([entry], 1)).messages()
    except ChunkError:
        return
    assert sum(map(len, found)) == plain - 4


@given(code=st.sampled_from([GZIP, SNAPPY, LZ4, ZSTD]), cut=st.integers(0, 400))
@settings(max_examples=sized(50, 200))
def test_truncated_data_is_refused(code: int, cut: int) -> None:
    data = b''.join(message(zlib.compress(bytes([i])) * 3) for i in range(10))
    stored = COMPRESS[code](data)
    entry = packed([], code, records=10, plain=len(data), stored=stored[:cut])
    if cut >= len(stored):
        assert len(Chunk.parse(chunk([entry], 10)).messages()) == 10
    else:
        with pytest.raises(ChunkError):
            Chunk.parse(chunk([entry], 10)).messages()
