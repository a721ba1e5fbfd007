"""Bodies that the program has dropped become those of later messages; the others never change."""

import gc
import random
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest

from rbfly.amqp import decode_amqp, encode_amqp_bytes
from rbfly.protocol._cursor import KINDS
from rbfly.streams._consume._iteration import FastSubscription, MessageIterator
from rbfly.streams.error import SubscriptionError
from tests.cursors import Cursor
from tests.stream_wire import chunk, message, sub_batch

BATCH = KINDS['batch']
SIZES = (0, 1, 2, 7, 8, 10, 16, 17, 32, 33, 255, 256, 300)

Bodies = list[bytes]


def body(number: int, size: int) -> bytes:
    return random.Random(number).randbytes(size)


def push(cursor: Cursor, offset: int, bodies: Bodies, amqp: bool, per_entry: int = 1) -> None:
    messages = [encode_amqp_bytes(item) if amqp else item for item in bodies]
    entries = [
        sub_batch(messages[i : i + per_entry]) if per_entry > 1 else message(messages[i])
        for i in range(0, len(messages), per_entry)
    ]
    cursor.push(chunk(entries, len(messages), offset=offset))


def read(cursor: Cursor) -> Any:
    assert cursor.advance(BATCH)
    return cursor.take(BATCH)


KEEP: dict[str, Callable[[Any], Any]] = {
    'nothing': lambda _batch: [],
    'all': list,
    'batch': lambda batch: batch,
    'iterator': iter,
    'some': lambda batch: batch[::3],
    'views': lambda batch: [memoryview(item) for item in batch[1::2]],
    'keys': lambda batch: dict.fromkeys(batch[::2]),
    'last': lambda batch: batch[-1:],
}
SEEN: dict[str, Callable[[Bodies], Bodies]] = {
    'nothing': lambda _bodies: [],
    'some': lambda bodies: bodies[::3],
    'views': lambda bodies: bodies[1::2],
    'keys': lambda bodies: list(dict.fromkeys(bodies[::2])),
    'last': lambda bodies: bodies[-1:],
}


@pytest.mark.parametrize('amqp', [True, False])
@pytest.mark.parametrize('per_entry', [1, 5])
@pytest.mark.parametrize('size', [*SIZES, None])
def test_bodies_of_batches_never_change(
    amqp: bool, per_entry: int, size: int | None, rng: random.Random
) -> None:
    cursor = Cursor(amqp)
    kept: list[tuple[Any, Bodies]] = []
    number = 0
    for _ in range(40):
        count = rng.choice((1, 5, 20, 21, 100))
        sizes = [rng.choice(SIZES) if size is None else size for _ in range(count)]
        bodies = [body(number + i, n) for i, n in enumerate(sizes)]
        push(cursor, number, bodies, amqp, per_entry)
        number += count
        batch = read(cursor)
        assert list(batch) == bodies
        assert set(batch) == set(bodies)  # their hashes are not those of other bodies
        way = rng.choice(sorted(KEEP))
        kept.append((KEEP[way](batch), SEEN.get(way, list)(bodies)))
        if len(kept) > 5:
            found, expected = kept.pop(rng.randrange(5))
            assert list(found) == expected
    for found, expected in kept:
        assert list(found) == expected


async def test_a_loop_over_batches_reuses_bodies() -> None:
    cursor = Cursor(True)
    iterator = MessageIterator(FastSubscription(cursor, cursor), BATCH, 1000)
    for i in range(10):
        push(cursor, 10 * i, [body(10 * i + j, 20) for j in range(10)], True)
    number = 0
    async for batch in iterator:
        for item in batch:
            assert item == body(number, 20)
            assert hash(item) == hash(body(number, 20))
            number += 1
    assert number == 100


@pytest.mark.parametrize('size', [*SIZES, 600, 20_000, None])
@pytest.mark.parametrize('every', [1, 2, 3, 1000])
async def test_bodies_of_a_loop_never_change(
    size: int | None, every: int, rng: random.Random
) -> None:
    cursor = Cursor(True)
    sizes = [rng.choice(SIZES) if size is None else size for _ in range(600)]
    bodies = [body(i, n) for i, n in enumerate(sizes)]
    push(cursor, 0, bodies[:300], True)
    push(cursor, 300, bodies[300:], True, 100)
    number = 0
    kept = []
    async for item in FastSubscription(cursor, cursor):
        assert item == bodies[number]
        assert hash(item) == hash(bodies[number])
        if number % every == 0:
            kept.append(item)
        number += 1
    assert number == 600
    assert kept == bodies[::every]


@pytest.mark.parametrize('size', [*SIZES, 600, 20_000, None])
@pytest.mark.parametrize('every', [1, 2, 3, 1000])
@pytest.mark.parametrize('keep', ['body', 'message', 'view'])
def test_bodies_of_decoded_messages_never_change(
    size: int | None, every: int, keep: str, rng: random.Random
) -> None:
    kept: list[tuple[Any, bytes]] = []
    for number in range(200):
        expected = body(number, rng.choice(SIZES) if size is None else size)
        message = decode_amqp(encode_amqp_bytes(expected))
        found = message.body
        assert found == expected
        assert hash(found) == hash(expected)
        assert message.body is found
        if number % every == 0:
            kept.append(
                ({'body': found, 'message': message, 'view': memoryview(found)}[keep], expected)
            )
    for item, expected in kept:
        assert (item.body if keep == 'message' else item) == expected


class ReadingOn:
    """Reads on when it is freed."""

    def __init__(self, cursor: Cursor, found: list[Any]) -> None:
        self.cursor = cursor
        self.found = found

    def __del__(self) -> None:
        self.found.append(list(read(self.cursor)))


def list_of(batch: Any) -> list[Any]:
    """The list that the iterator of a batch shows."""
    items: list[Any] = iter(batch).__reduce__()[1][0]
    return items


@pytest.mark.parametrize('at', [0, 5, 9])
def test_objects_that_a_program_adds_to_a_batch(at: int) -> None:
    cursor = Cursor(True)
    found: list[Any] = []
    chunks = [[body(10 * i + j, 20) for j in range(10)] for i in range(8)]
    for i, bodies in enumerate(chunks):
        push(cursor, 10 * i, bodies, True)
    list_of(read(cursor))[at] = ReadingOn(cursor, found)
    while cursor.has_messages:
        with suppress(SubscriptionError):  # the finalizer has taken the batch
            found.append(list(read(cursor)))
    gc.collect()
    assert sorted(found) == sorted(chunks[1:])


def cycles() -> Iterator[list[Any]]:
    while True:
        cycle: list[Any] = []
        cycle.append(cycle)
        yield cycle


def test_batches_that_the_garbage_collector_frees() -> None:
    cursor = Cursor(True)
    bodies = [[body(10 * i + j, 20) for j in range(10)] for i in range(50)]
    for i, (expected, cycle) in enumerate(zip(bodies, cycles(), strict=False)):
        push(cursor, 10 * i, expected, True)
        batch = read(cursor)
        assert list(batch) == expected
        cycle += [batch, iter(batch)] if i % 2 else [batch]
        del batch, cycle
        if i % 7 == 0:
            gc.collect()
