"""What tells a stream created again from the old one: the last chunk that was read comes again."""

from typing import Any

import pytest

from rbfly.streams.error import ChunkError
from tests.cursors import Cursor, drain
from tests.stream_wire import chunk, message

OLD = {'timestamp': 1000, 'epoch': 2}
END = 13  # offset behind the last chunk that was read, which has the id 10


class Replaced(Exception):
    pass


class Reader(Cursor):
    def on_replaced(self) -> None:
        raise Replaced


def piece(offset: int, records: int, **values: Any) -> bytes:
    data = [message(b'%d' % i) for i in range(offset, offset + records)]
    return chunk(data, records, **({'offset': offset} | OLD | values))


def reader(first: int | None = 0, committed: int | None = 100) -> Reader:
    """One that has read two chunks, and subscribes again."""
    found = Reader()
    found.push(piece(7, 3, timestamp=2000))
    found.push(piece(10, 3))
    assert len(drain(found)) == 6
    found.resume(END)
    found.last_chunk.seek(first, committed)
    return found


def offsets(cursor: Cursor) -> list[int]:
    return [offset for offset, _ in drain(cursor)]


def test_the_same_chunk_again() -> None:
    cursor = reader()
    assert cursor.last_chunk.unverified
    cursor.push(piece(10, 3))
    assert drain(cursor) == []
    assert not cursor.last_chunk.unverified
    cursor.push(piece(13, 2, timestamp=1, epoch=1))  # a later leader, whose clock is wrong
    assert offsets(cursor) == [13, 14]
    assert cursor.consumed == [7, 10, 10, 13]


@pytest.mark.parametrize('other', [{'timestamp': 1001}, {'timestamp': 999}, {'epoch': 1}])
def test_another_chunk_in_its_place(other: dict[str, int]) -> None:
    cursor = reader()
    cursor.push(piece(10, 3, **other))
    with pytest.raises(Replaced):
        drain(cursor)


def test_other_bytes_in_its_place() -> None:
    cursor = reader()
    cursor.push(chunk([message(b'x')] * 3, 3, offset=10, **OLD))
    with pytest.raises(Replaced):
        drain(cursor)


@pytest.mark.parametrize('offset', [8, 9, 11, 12])
@pytest.mark.parametrize('first', [0, None, 50])
def test_chunk_that_begins_elsewhere(offset: int, first: int | None) -> None:
    """Wherever the stream begins: a chunk of the same one does not lie across another."""
    cursor = reader(first)
    cursor.push(piece(offset, 3, timestamp=1))
    with pytest.raises(Replaced):
        drain(cursor)


@pytest.mark.parametrize(
    ('first', 'replaced'), [(10, True), (-1, False), (13, False), (None, False)]
)
@pytest.mark.parametrize('offset', [13, 20])
def test_chunk_behind_it(first: int | None, replaced: bool, offset: int) -> None:
    """It is missing: retention may have removed it, unless the stream begins before.

    One that is empty may be a replica that has nothing yet.
    """
    cursor = reader(first)
    cursor.push(piece(offset, 2))
    if replaced:
        with pytest.raises(Replaced):
            drain(cursor)
    else:
        assert offsets(cursor) == [offset, offset + 1]


def test_replica_that_lags_behind() -> None:
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
def test_chunk_before_it_that_was_not_read(other: dict[str, int]) -> None:
    cursor = reader(committed=5)
    cursor.push(piece(5, 2, **other))
    with pytest.raises(Replaced):
        drain(cursor)


def test_it_is_missing_behind_those_before_it() -> None:
    """Though its first chunk is not known."""
    cursor = reader(None, None)
    cursor.push(piece(7, 3))
    cursor.push(piece(13, 3))
    with pytest.raises(Replaced):
        drain(cursor)


def test_damaged_in_its_place() -> None:
    """That is told; it is no sign of another stream."""
    cursor = reader()
    cursor.push(piece(10, 3, crc=0))
    cursor.push(piece(13, 1))
    with pytest.raises(ChunkError):
        cursor.advance()
    assert cursor.position == END
    assert offsets(cursor) == [13]


def test_damaged_chunk_is_not_what_it_is_told_by() -> None:
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
def test_where_to_seek(committed: int | None, offset: int) -> None:
    assert reader().last_chunk.seek(0, committed) == offset


def presumed(after: int = 10) -> Reader:
    """At `NEXT`: nothing is known of the last chunk but its id."""
    cursor = Reader()
    cursor.resume(0, after)
    cursor.last_chunk.assume(after)
    return cursor


def test_the_last_chunk_at_next_is_dropped_and_known_from_then_on() -> None:
    cursor = presumed()
    cursor.push(piece(10, 3, timestamp=9000))
    assert drain(cursor) == []
    assert cursor.position == END
    cursor.resume(END, 10)
    cursor.last_chunk.seek(0, 100)
    cursor.push(piece(10, 3, timestamp=9001))
    with pytest.raises(Replaced):
        drain(cursor)


def test_the_last_chunk_at_next_lies_before_what_is_not_delivered() -> None:
    cursor = presumed(12)
    cursor.push(piece(5, 3))
    assert drain(cursor) == []
    assert cursor.last_chunk.id == 5


@pytest.mark.parametrize('timestamp', [0, 2**62])
@pytest.mark.parametrize(('offset', 'replaced'), [(10, False), (7, False), (8, True)])
def test_lost_before_the_last_chunk_at_next_came(
    offset: int, replaced: bool, timestamp: int
) -> None:
    """Only a chunk that lies across its id is certainly of another stream."""
    cursor = presumed()
    cursor.last_chunk.seek(0, 100)
    cursor.push(piece(offset, 3, timestamp=timestamp))
    if replaced:
        with pytest.raises(Replaced):
            drain(cursor)
    else:
        assert drain(cursor) == []
        assert cursor.position == (END if offset == 10 else None)


def test_what_a_filter_gives_first_at_next() -> None:
    """The broker left out the last chunk: what comes is behind it, in one stream or another."""
    cursor = presumed()
    cursor.last_chunk.seek(0, 100)
    cursor.push(piece(20, 2, timestamp=9000))
    assert offsets(cursor) == [20, 21]


@pytest.mark.parametrize('again', [[7], [10], [7, 10], [10, 7], [10, 10]])
def test_chunk_that_is_sent_again_on_the_same_connection(again: list[int]) -> None:
    """Each message is delivered once, and the chunk's credit returned each time."""
    cursor = Reader()
    for offset in (7, 10, *again, 20, 20):
        cursor.push(piece(offset, 3))
    assert offsets(cursor) == [*range(7, 13), 20, 21, 22]
    assert cursor.consumed == [7, 10, *again, 20, 20]
    assert cursor.position == 23
    assert cursor.last_chunk.id == 20


def test_intact_copy_of_a_damaged_chunk() -> None:
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


def test_first_chunk_that_is_only_looked_at() -> None:
    """It is not read, nor is what follows: the caller subscribes elsewhere."""

    class Probe(Cursor):
        probed = 0

        def on_probed(self) -> None:
            self.probed += 1

    cursor = Probe()
    found = []
    cursor.resume(probe=lambda chunk: found.append(chunk.offset))
    cursor.push(piece(10, 3, crc=0))
    cursor.push(piece(13, 3))
    assert drain(cursor) == []
    assert (cursor.probed, found) == (1, [10])
    assert cursor.position is None
    cursor.push(piece(7, 3))
    assert offsets(cursor) == [7, 8, 9]


def test_start_over_forgets() -> None:
    cursor = reader()
    cursor.start_over()
    assert not cursor.last_chunk.unverified
    cursor.push(piece(0, 2))
    assert offsets(cursor) == [0, 1]
