"""Large frames are received where their chunk stays; the memory is used again when it is free."""

import gc
import random
import tracemalloc
import zlib

import pytest

from rbfly.error import ChunkError
from rbfly.protocol._chunk import Chunk
from tests import stream_wire as wire
from tests.cursors import Cursor, amqp, batches, drain
from tests.protocol.test_engine import Recorder, content
from tests.stream_wire import deliver, feed, frame, message, plain_chunk

SIZE = 400_000
BLOCK = 2**18  # bytes of the buffer for all other frames
HEAD = 2**12


def body(number: int, size: int = SIZE) -> bytes:
    return bytes([number]) * size


def large(number: int) -> bytes:
    """A frame with one large message."""
    return deliver(1, plain_chunk([amqp(body(number))], number))


def chunks(engine: Recorder, *numbers: int) -> list[Chunk]:
    queue = engine.subscription(1)
    for number in numbers:
        feed(engine, large(number))
    assert engine.failures == []
    return list(queue.chunks)


def test_views_keep_their_bytes() -> None:
    """Later frames use no memory that a view refers to, whatever else is dropped."""
    cursor = Cursor(amqp=True, copy=False)
    for chunk in chunks(Recorder(), 0, 1, 2):
        cursor.queue.push(chunk)
    del chunk
    views = [view for _, view in drain(cursor)]
    del cursor
    for _ in range(5):
        assert [item.offset for item in chunks(Recorder(), *range(10, 30))] == [*range(10, 30)]
    assert [bytes(view) for view in views] == [body(0), body(1), body(2)]
    assert all(view.readonly for view in views)


def test_memory_is_used_again() -> None:
    engine = Recorder()
    queue = engine.subscription(1)
    frames = [large(i) for i in range(30)]
    for data in frames[:10]:
        feed(engine, data)
    queue.chunks.clear()
    tracemalloc.start()
    try:
        for data in frames[10:]:
            feed(engine, data)
            assert content(queue.chunks.popleft())[0] >= 10
            assert tracemalloc.get_traced_memory()[0] < SIZE
    finally:
        tracemalloc.stop()


def test_spare_memory_is_limited() -> None:
    tracemalloc.start()
    try:
        kept = chunks(Recorder(), *range(50))
        assert tracemalloc.get_traced_memory()[0] > 30 * SIZE
        del kept
        assert tracemalloc.get_traced_memory()[0] < 17 * 2**20
    finally:
        tracemalloc.stop()


def feed_in_parts(engine: Recorder, data: bytes, rng: random.Random) -> None:
    """Pass data to an engine in parts of any size."""
    parts = [*range(1, 90), *(rng.choice((1, 15, 64, 1000, 65_536, 300_000)) for _ in range(200))]
    rng.shuffle(parts)
    while data and parts:
        size = parts.pop()
        feed(engine, data[:size])
        data = data[size:]
    feed(engine, data)


@pytest.mark.parametrize('committed', [None, 7])
@pytest.mark.parametrize('behind', [0, 70])
def test_crc_of_a_chunk_that_arrives_in_parts(
    committed: int | None, behind: int, rng: random.Random
) -> None:
    engine = Recorder()
    queue = engine.subscription(1)
    for number in range(20):
        entries = [message(rng.randbytes(rng.randrange(BLOCK, 3 * BLOCK))) for _ in range(3)]
        data = b''.join(entries)
        crc = zlib.crc32(data)
        sound = wire.chunk(entries, 3, offset=number, crc=crc) + bytes(behind)
        damaged = bytearray(sound)
        damaged[48 + rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        for item in (sound, bytes(damaged), sound):
            feed_in_parts(engine, deliver(1, item, committed), rng)
        first, second, third = queue.chunks
        queue.chunks.clear()
        first.verify()
        with pytest.raises(ChunkError, match=f'not 0x{crc:08x}'):
            second.verify()
        third.verify()
    assert engine.failures == []


def test_last_view_releases_its_chunk() -> None:
    engine, data = Recorder(), large(8)
    engine.subscription(1)
    cursor = Cursor(amqp=True, copy=False)
    cursor.queue.push(chunks(Recorder(), 7)[0])
    [batch] = batches(cursor)
    [view] = batch
    del batch
    cursor.push(plain_chunk([amqp(b'next')], 8))
    drain(cursor)  # else the context of the task keeps the last batch
    del cursor
    gc.collect()  # a cursor refers to itself
    others = chunks(Recorder(), *range(10, 30))  # no memory is spare
    for keeps in (True, False):
        tracemalloc.start()
        if not keeps:
            del view
        feed(engine, data)
        used = tracemalloc.get_traced_memory()[0]
        tracemalloc.stop()
        assert (used > SIZE) is keeps
    assert len(others) == 20


@pytest.mark.parametrize('part', [1, 1000, HEAD - 1, HEAD, HEAD + 1, BLOCK, 10**7])
def test_large_and_small_frames_alternate(part: int) -> None:
    size = BLOCK + 100 if part == 1 else SIZE
    data = b''.join(
        deliver(1, plain_chunk([body(i, size if i % 3 else 50)], i)) + frame(0x17) * (i % 2)
        for i in range(8)
    )
    engine = Recorder()
    queue = engine.subscription(1)
    for at in range(0, len(data), part):
        feed(engine, data[at : at + part])
    found = [content(chunk) for chunk in queue.chunks]
    assert found == [(i, 1, None, [body(i, size if i % 3 else 50)]) for i in range(8)]
    assert engine.frames == [(0x17, 1, b'')] * 4


def test_trailer_of_a_large_chunk() -> None:
    """What follows the entries in the frame belongs to the chunk, but nothing after the frame."""
    data = plain_chunk([body(1)], 5)
    trailer = b'trailer'
    data = data[:40] + len(trailer).to_bytes(4, 'big') + data[44:] + trailer
    engine = Recorder()
    queue = engine.subscription(1)
    feed(engine, deliver(1, data))
    assert queue.chunks[0].trailer == trailer
