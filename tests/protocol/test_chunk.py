"""Chunks: header, CRC, entries, and wrong sizes."""

import random
import struct
import zlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rbfly.error import RbFlyError
from rbfly.protocol._chunk import Chunk, ChunkQueue
from rbfly.streams.error import ChunkError
from tests.cursors import Cursor, drain
from tests.sizes import sized
from tests.stream_wire import chunk, data_batch, message, plain_chunk, sub_batch

# Captured from RabbitMQ 4.0.5: a Deliver frame without key, version and subscription id.
CAPTURED = bytes.fromhex(
    '5000000100000001000001a1fb90d2c30000000000000001000000000000000181e73f52'
    '00000005000000000000000000000001' + '78'
)


# -- header


def test_captured_chunk() -> None:
    found = Chunk.parse(CAPTURED, 7)
    found.verify()
    assert found.type == 0
    assert found.entries == 1
    assert found.records == 1
    assert found.timestamp == 0x1A1FB90D2C3
    assert found.epoch == 1
    assert found.offset == 1
    assert found.committed_chunk_id == 7
    assert found.messages() == [b'x']


def test_tests_write_chunks_like_the_captured_one() -> None:
    assert chunk([message(b'x')], 1, offset=1, timestamp=0x1A1FB90D2C3) == CAPTURED


@pytest.mark.parametrize('size', range(48))
def test_cut_header_is_refused(size: int) -> None:
    with pytest.raises(ChunkError):
        Chunk.parse(CAPTURED[:size])


@pytest.mark.parametrize('size', range(48, len(CAPTURED)))
def test_cut_data_is_refused(size: int) -> None:
    with pytest.raises(ChunkError, match='5 bytes of data'):
        Chunk.parse(CAPTURED[:size])


@pytest.mark.parametrize('magic', [0x00, 0x40, 0x51, 0x5F, 0x60, 0xD0])
def test_wrong_magic_is_refused(magic: int) -> None:
    with pytest.raises(ChunkError, match=f'0x{magic:02x}'):
        Chunk.parse(chunk([], 0, magic=magic))


def test_extremes_of_the_header() -> None:
    found = Chunk.parse(
        chunk([], 0xFFFFFFFF, offset=2**64 - 1, timestamp=-1, epoch=2**64 - 1, kind=2, bloom=255)
    )
    assert found.records == 0xFFFFFFFF
    assert found.offset == 2**64 - 1
    assert found.timestamp == -1
    assert found.epoch == 2**64 - 1
    assert found.type == 2
    assert found.committed_chunk_id is None


def test_trailer_after_the_data_is_ignored() -> None:
    data = chunk([message(b'a')], 1, trailer=14, bloom=16) + bytes(14)
    found = Chunk.parse(data)
    found.verify()
    assert found.messages() == [b'a']


def test_frame_need_not_contain_the_trailer_and_the_bloom_filter() -> None:
    found = Chunk.parse(chunk([message(b'a')], 1, trailer=14, bloom=16))
    assert found.messages() == [b'a']


# -- CRC


def test_wrong_crc_is_refused() -> None:
    found = Chunk.parse(chunk([message(b'a')], 1, offset=42, crc=5))
    with pytest.raises(ChunkError, match='offset 42'):
        found.verify()


@pytest.mark.parametrize('at', range(48, len(CAPTURED)))
def test_any_damaged_byte_of_the_data_raises(at: int) -> None:
    data = bytearray(CAPTURED)
    data[at] ^= 0x10
    with pytest.raises(ChunkError):
        Chunk.parse(bytes(data)).verify()


@pytest.mark.parametrize('size', [*range(150), *range(245, 390), 1000, 4095, 29_000])
def test_crc_of_data_of_any_length(size: int, rng: random.Random) -> None:
    entry = message(rng.randbytes(size))
    data = bytearray(chunk([entry], 1, crc=zlib.crc32(entry)))
    Chunk.parse(bytes(data)).verify()
    data[48 + rng.randrange(len(entry))] ^= 1
    with pytest.raises(ChunkError, match=f'0x{zlib.crc32(entry):08x}'):
        Chunk.parse(bytes(data)).verify()


def test_crc_covers_the_data_only() -> None:
    Chunk.parse(chunk([message(b'a')], 1, crc=zlib.crc32(message(b'a'))) + b'behind').verify()


def test_crc_of_nothing() -> None:
    Chunk.parse(chunk([], 0, crc=0)).verify()


# -- entries


def test_messages_and_sub_batches_keep_their_order() -> None:
    entries = [message(b'a'), sub_batch([b'b', b'', b'c']), message(b''), sub_batch([b'd'])]
    assert Chunk.parse(chunk(entries, 6)).messages() == [b'a', b'b', b'', b'c', b'', b'd']


@pytest.mark.parametrize(
    'entries',
    [
        [sub_batch([]), message(b'a')],
        [message(b'a'), sub_batch([])],
        [sub_batch([]), sub_batch([]), message(b'a'), sub_batch([]), sub_batch([])],
        [sub_batch([b'a']), sub_batch([])],
        [message(b'a'), data_batch(b'junk', 0, 0, 4, compression=7)],
    ],
)
def test_sub_batch_without_records(entries: list[bytes]) -> None:
    data = chunk(entries, 1, offset=5)
    assert Chunk.parse(data).messages() == [b'a']
    for start in (0, 5):
        cursor = Cursor()
        cursor.resume(start)
        cursor.push(data)
        assert drain(cursor) == [(5, b'a')]
        assert cursor.consumed == [5]


def test_chunk_with_only_an_empty_sub_batch() -> None:
    cursor = Cursor()
    cursor.resume(9)
    cursor.push(chunk([sub_batch([])], 0, offset=3))
    cursor.push(plain_chunk([b'a'], 9))
    assert drain(cursor) == [(9, b'a')]
    assert cursor.consumed == [3, 9]


def test_sub_batch_may_hold_65535_messages() -> None:
    found = Chunk.parse(chunk([sub_batch([b''] * 65535)], 65535)).messages()
    assert len(found) == 65535


WRONG_SIZES = {
    'message longer than the chunk': ([struct.pack('>I', 2) + b'a'], 1),
    'message much longer than the chunk': ([struct.pack('>I', 0x7FFFFFFF) + b'a'], 1),
    'message shorter than the chunk': ([struct.pack('>I', 0) + b'a'], 1),
    'message length cut': ([b'\0\0\0'], 1),
    'more records than messages': ([message(b'a')], 2),
    'far more records than messages': ([message(b'a')], 0xFFFFFFFF),
    'fewer records than messages': ([message(b'a'), message(b'b')], 1),
    'no records': ([message(b'a')], 0),
    'records but no data': ([], 1),
    'batch: header cut': ([sub_batch([b'a'])[:10]], 1),
    'batch: fewer records than messages': ([sub_batch([b'a', b'b'], records=1)], 1),
    'batch: no records but bytes': ([sub_batch([b'a'], records=0)], 0),
    'batch: more records than messages': ([sub_batch([b'a'], records=2)], 2),
    'batch: more records than the chunk': ([sub_batch([b'a', b'b'])], 1),
    'batch: most records': ([sub_batch([b'a'], records=65535)], 65535),
    'batch: stored too long by one': ([sub_batch([b'a'], plain=6, stored=6)], 1),
    'batch: stored much too long': ([sub_batch([b'a'], plain=2**32 - 1, stored=2**32 - 1)], 1),
    'batch: stored too short by one': ([sub_batch([b'a'], plain=4, stored=4)], 1),
    'batch: stored nothing': ([sub_batch([b'a'], plain=0, stored=0)], 1),
    'batch: plain above stored': ([sub_batch([b'a'], plain=6)], 1),
    'batch: plain below stored': ([sub_batch([b'a'], plain=4)], 1),
    'batch: message longer than it': ([data_batch(struct.pack('>I', 2) + b'a', 1, 5, 5)], 1),
    'batch: message huge': ([data_batch(struct.pack('>I', 2**32 - 1) + b'a', 1, 5, 5)], 1),
    'batch: message shorter': ([data_batch(struct.pack('>I', 0) + b'a', 1, 5, 5)], 1),
    'batch: message length cut': ([data_batch(b'\0\0\0', 1, 3, 3)], 1),
}


@pytest.mark.parametrize(('entries', 'records'), WRONG_SIZES.values(), ids=WRONG_SIZES)
def test_wrong_sizes_raise(entries: list[bytes], records: int) -> None:
    # AddressSanitizer detects reads past the end of the data.
    data = chunk(entries, records)
    with pytest.raises(ChunkError):
        Chunk.parse(data).messages()


@pytest.mark.parametrize(('entries', 'records'), WRONG_SIZES.values(), ids=WRONG_SIZES)
def test_cursor_continues_after_a_chunk_with_wrong_sizes(
    entries: list[bytes], records: int
) -> None:
    cursor = Cursor()
    cursor.push(chunk(entries, records, offset=10))
    cursor.push(plain_chunk([b'good'], 20))
    errors = 0
    found = []
    while True:
        try:
            if not cursor.advance():
                break
            found.append(cursor.take())
        except ChunkError:
            errors += 1
    # The chunk skips a damaged batch by its stated size, which may also be wrong.
    assert errors in (1, 2)
    assert found[-1] == b'good'
    assert cursor.consumed == [10, 20]


@pytest.mark.parametrize(
    ('name', 'text'),
    [
        ('message longer than the chunk', 'message is missing, or longer than its chunk'),
        ('batch: stored too long by one', 'batch is longer than its chunk'),
        ('batch: message longer than it', 'longer than its sub-entry batch'),
    ],
)
def test_error_names_the_size_that_is_too_large(name: str, text: str) -> None:
    # The size is checked before any byte past the end is read.
    entries, records = WRONG_SIZES[name]
    with pytest.raises(ChunkError, match=text):
        Chunk.parse(chunk(entries, records)).messages()


@given(
    data=st.binary(max_size=80),
    records=st.integers(0, 9) | st.integers(0, 2**32 - 1),
    start=st.integers(0, 12),
)
@settings(max_examples=sized(100, 400))
def test_any_entries_yield_messages_or_a_chunk_error(data: bytes, records: int, start: int) -> None:
    cursor = Cursor()
    cursor.resume(start)
    cursor.push(chunk([data], records))
    try:
        found = drain(cursor)
    except ChunkError:
        found = []
    assert sum(len(body) for _, body in found) <= len(data)
    while True:
        try:
            if not cursor.advance():
                break
            cursor.take()
        except ChunkError:
            pass
    assert cursor.consumed == [0]


# -- queue


def test_queue_wakes_once() -> None:
    calls = []
    queue = ChunkQueue(lambda: calls.append(len(queue.chunks)))
    for _ in range(3):
        queue.push(Chunk.parse(CAPTURED))
    assert calls == [1]
    queue.chunks.clear()
    queue.push(Chunk.parse(CAPTURED))
    assert calls == [1, 1]


def test_chunk_error_is_an_rbfly_error() -> None:
    assert issubclass(ChunkError, RbFlyError)
