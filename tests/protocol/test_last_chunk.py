"""The last chunk read identifies a stream: it has to come again after a reconnect."""

from typing import Any

import pytest

from rbfly.streams.error import ChunkError
from tests.cursors import Cursor, drain
from tests.stream_wire import chunk, message

OLD = {'timestamp': 1000, 'epoch': 2}
END = 13  # offset after the last chunk read, which has the id 10


class Replaced(Exception):
    pass


class Reader(Cursor):
    def on_replaced(self) -> None:
        raise Replaced


def piece(offset: int, records: int, **values: Any) -> bytes:
    data = [message(b'%d' % i) for i in range(offset, offset + records)]
    return chunk(data, records, **({'offset': offset} | OLD | values))


def reader(first: int | None = 0, committed: int | None = 100) -> Reader:
    """Return a cursor that has read two chunks, before it resubscribes."""
    found = Reader()
    found.push(piece(7, 3, timestamp=2000))
    found.push(piece(10, 3))
    assert len(drain(found)) == 6
    found.resume(END)
    found.last_chunk.seek(first, committed)
    return found


def offsets(cursor: Cursor) -> list[int]:
    return [offset for offset, _ in drain(cursor)]


def test_same_chunk_is_dropped_and_reading_continues() -> None:
    cursor = reader()
    assert cursor.last_chunk.unverified
    cursor.push(piece(10, 3))
    assert drain(cursor) == []
    assert not cursor.last_chunk.unverified
    cursor.push(piece(13, 2, timestamp=1, epoch=1))  # of a later leader with a wrong clock
    assert offsets(cursor) == [13, 14]
    assert cursor.consumed == [7, 10, 10, 13]


@pytest.mark.parametrize('other', [{'timestamp': 1001}, {'timestamp': 999}, {'epoch': 1}])
def test_chunk_with_another_timestamp_or_epoch_is_of_another_stream(other: dict[str, int]) -> None:
    cursor = reader()
    cursor.push(piece(10, 3, **other))
    with pytest.raises(Replaced):
        drain(cursor)


def test_chunk_with_other_data_is_of_another_stream() -> None:
    cursor = reader()
    cursor.push(chunk([message(b'x')] * 3, 3, offset=10, **OLD))
    with pytest.raises(Replaced):
        drain(cursor)


@pytest.mark.parametrize('offset', [8, 9, 11, 12])
@pytest.mark.parametrize('first', [0, None, 50])
def test_chunk_that_overlaps_the_last_one_is_of_another_stream(
    offset: int, first: int | None
) -> None:
    """Chunks of one stream do not overlap, wherever the stream begins."""
    cursor = reader(first)
    cursor.push(piece(offset, 3, timestamp=1))
    with pytest.raises(Replaced):
        drain(cursor)


@pytest.mark.parametrize(
    ('first', 'replaced'), [(10, True), (-1, False), (13, False), (None, False)]
)
@pytest.mark.parametrize('offset', [13, 20])
def test_missing_chunk_means_another_stream_unless_retention_removed_it(
    first: int | None, replaced: bool, offset: int
) -> None:
    """Retention cannot have removed the chunk if the stream begins before it.

    A stream without chunks may be a replica that has none yet.
    """
    cursor = reader(first)
    cursor.push(piece(offset, 2))
    if replaced:
        with pytest.raises(Replaced):
            drain(cursor)
    else:
        assert offsets(cursor) == [offset, offset + 1]


def test_lagging_replica_is_the_same_stream() -> None:
    cursor = reader(committed=5)
    cursor.push(piece(5, 2, timestamp=500, epoch=1))
    cursor.push(piece(7, 3, timestamp=2000))
    assert drain(cursor) == []
    assert cursor.last_chunk.unverified
    assert cursor.position == END
    cursor.push(piece(10, 3))
    cursor.push(piece(13, 1))
    assert offsets(cursor) == [13]


@pytest.mark.parametrize('other', [{'timestamp': 2001}, {'epoch': 3}])
def test_earlier_chunk_with_a_later_timestamp_or_epoch_is_of_another_stream(
    other: dict[str, int],
) -> None:
    cursor = reader(committed=5)
    cursor.push(piece(5, 2, **other))
    with pytest.raises(Replaced):
        drain(cursor)


def test_gap_after_earlier_chunks_means_another_stream() -> None:
    """This holds even if the first chunk of the stream is unknown."""
    cursor = reader(None, None)
    cursor.push(piece(7, 3))
    cursor.push(piece(13, 3))
    with pytest.raises(Replaced):
        drain(cursor)


def test_damaged_copy_raises_but_is_of_the_same_stream() -> None:
    """Damage raises an error and does not indicate another stream."""
    cursor = reader()
    cursor.push(piece(10, 3, crc=0))
    cursor.push(piece(13, 1))
    with pytest.raises(ChunkError):
        cursor.advance()
    assert cursor.position == END
    assert offsets(cursor) == [13]


def test_damaged_chunk_does_not_identify_the_stream() -> None:
    cursor = Reader()
    cursor.push(piece(10, 3))
    cursor.push(piece(13, 3, crc=0))
    with pytest.raises(ChunkError):
        drain(cursor)
    assert cursor.last_chunk.seek(0, 100) == 10
    assert cursor.position == 13


@pytest.mark.parametrize(
    ('committed', 'offset'), [(None, 10), (100, 10), (10, 10), (9, 9), (0, 0), (-1, -1)]
)
def test_resubscribing_starts_at_the_last_chunk_or_the_committed_one(
    committed: int | None, offset: int
) -> None:
    assert reader().last_chunk.seek(0, committed) == offset


def at_next(after: int = 10) -> Reader:
    """Return a cursor at `NEXT`, which knows only the id of the last chunk."""
    cursor = Reader()
    cursor.resume(0, after)
    cursor.last_chunk.assume(after)
    return cursor


def test_last_chunk_at_next_is_dropped_and_identifies_the_stream() -> None:
    cursor = at_next()
    cursor.push(piece(10, 3, timestamp=9000))
    assert drain(cursor) == []
    assert cursor.position == END
    cursor.resume(END, 10)
    cursor.last_chunk.seek(0, 100)
    cursor.push(piece(10, 3, timestamp=9001))
    with pytest.raises(Replaced):
        drain(cursor)


def test_last_chunk_at_next_precedes_chunks_that_are_not_delivered() -> None:
    cursor = at_next(12)
    cursor.push(piece(5, 3))
    assert drain(cursor) == []
    assert cursor.last_chunk.id == 5


@pytest.mark.parametrize('timestamp', [0, 2**62])
@pytest.mark.parametrize(('offset', 'replaced'), [(10, False), (7, False), (8, True)])
def test_connection_lost_before_the_last_chunk_at_next_arrived(
    offset: int, replaced: bool, timestamp: int
) -> None:
    """Only a chunk that overlaps its id is certainly of another stream."""
    cursor = at_next()
    cursor.last_chunk.seek(0, 100)
    cursor.push(piece(offset, 3, timestamp=timestamp))
    if replaced:
        with pytest.raises(Replaced):
            drain(cursor)
    else:
        assert drain(cursor) == []
        assert cursor.position == (END if offset == 10 else None)


def test_filter_that_omits_the_last_chunk_at_next() -> None:
    """The broker omits the last chunk: the first chunk delivered is after it, in any stream."""
    cursor = at_next()
    cursor.last_chunk.seek(0, 100)
    cursor.push(piece(20, 2, timestamp=9000))
    assert offsets(cursor) == [20, 21]


@pytest.mark.parametrize('again', [[7], [10], [7, 10], [10, 7], [10, 10]])
def test_chunk_sent_again_on_the_same_connection_is_dropped(again: list[int]) -> None:
    """Each message is returned once, but the credit of each copy is returned."""
    cursor = Reader()
    for offset in (7, 10, *again, 20, 20):
        cursor.push(piece(offset, 3))
    assert offsets(cursor) == [*range(7, 13), 20, 21, 22]
    assert cursor.consumed == [7, 10, *again, 20, 20]
    assert cursor.position == 23
    assert cursor.last_chunk.id == 20


def test_intact_copy_of_a_damaged_chunk_is_read() -> None:
    cursor = Reader()
    cursor.push(piece(7, 3))
    cursor.push(piece(10, 3, crc=0))
    cursor.push(piece(10, 3))
    for _ in range(3):
        assert cursor.advance()
        cursor.take()
    with pytest.raises(ChunkError):
        cursor.advance()
    assert offsets(cursor) == [10, 11, 12]


def test_start_over_accepts_any_stream() -> None:
    cursor = reader()
    cursor.start_over()
    assert not cursor.last_chunk.unverified
    cursor.push(piece(0, 2))
    assert offsets(cursor) == [0, 1]


def test_missing_chunk_is_of_another_stream_if_it_was_read() -> None:
    """If only its id is known, it may be a chunk of stored offsets, which is not delivered."""
    cursor = reader()
    assert cursor.last_chunk.is_replaced(None)
    cursor.last_chunk.forget()
    cursor.last_chunk.assume(10)
    cursor.last_chunk.seek(0, None)
    assert not cursor.last_chunk.is_replaced(None)
