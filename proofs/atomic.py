"""Proof of atomic batches: a publisher that is killed leaves each batch whole, or nothing of it.

A process publishes batches, several at a time, until it is killed; the next process goes on.  The
numbers of a batch follow each other, and its size follows from the seed: the stored messages show
where each batch has to end.
"""

import asyncio
import logging
import random
import time
from collections import Counter
from collections.abc import Sequence
from multiprocessing import get_context
from typing import Any

import uvloop

import rbfly.streams as rbs

from .publish import NAME
from .run import ProofError, Run
from .test_bed import Bed, body

LARGEST = 5_000  # messages of a batch; most are smaller
IN_FLIGHT = 8  # batches
LIFE = 0.1  # maximum seconds from the first batch of a process until it is killed
CUT = 200_000  # maximum bytes until its connection is cut, in every other life
START = 60.0  # seconds in which a process must begin to publish
POLL = 0.001
PROCESSES = get_context('forkserver')  # a process starts in milliseconds


class Batches:
    """The numbers of all batches, in order; the size of each follows from the seed."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._starts = [0]

    def start(self, batch: int) -> int:
        """The number of the first message of a batch."""
        while len(self._starts) <= batch:
            size = random.Random(f'{self._seed} {len(self._starts)}').uniform(0.7, 1) ** 8
            self._starts.append(self._starts[-1] + 2 + int(LARGEST * size))
        return self._starts[batch]

    def numbers(self, batch: int) -> range:
        """The numbers of the messages of a batch."""
        return range(self.start(batch), self.start(batch + 1))


def publish(
    uris: Sequence[str], stream: str, seed: int, named: bool, begun: Any, confirmed: Any
) -> None:
    """Publish batches until the process is killed.

    :param begun: its `value` is the number of batches that were passed to the publisher.
    :param confirmed: its `value` is the number of batches of which the broker has confirmed all.
    """
    logging.getLogger('rbfly').addHandler(logging.NullHandler())  # faults are expected
    uvloop.run(publish_batches(uris, stream, Batches(seed), named, begun, confirmed))


async def publish_batches(
    uris: Sequence[str], stream: str, batches: Batches, named: bool, begun: Any, confirmed: Any
) -> None:
    async with (
        rbs.streams_client(uris, connection_name='proof-publish') as client,
        client.publisher(stream, name=NAME if named else None) as publisher,
    ):
        # a publisher with a name goes on after the last batch that is stored
        batch = publisher.next_publish_id - 1 if named else begun.value
        tasks: list[asyncio.Task[None]] = []
        while True:
            messages = [body(number) for number in batches.numbers(batch)]
            batch += 1
            begun.value = max(begun.value, batch)
            tasks.append(asyncio.create_task(publisher.send_atomic(messages)))
            if len(tasks) == IN_FLIGHT:
                await tasks.pop(0)
                confirmed.value = batch - len(tasks)
            else:
                await asyncio.sleep(0)


async def atomic(run: Run, bed: Bed) -> None:
    """Kill a publishing process many times; compare the stored messages with whole batches."""
    kills, named = run['kills'], not run['unnamed']
    batches = Batches(run.seed)
    begun = PROCESSES.Value('q', 0, lock=False)
    confirmed = PROCESSES.Value('q', 0, lock=False)
    surely: set[int] = set()  # batches that a process knew to be confirmed
    unconfirmed = 0
    PROCESSES.set_forkserver_preload([__name__])
    async with bed.stream() as stream:
        for kill in range(kills):
            before = begun.value
            first = confirmed.value = 0 if named else before
            args = bed.uris, stream, run.seed, named, begun, confirmed
            process = PROCESSES.Process(target=publish, args=args, daemon=True)
            await asyncio.to_thread(process.start)
            try:
                if kill % 2:
                    await cut(bed, run.random.randrange(1, CUT))
                await has_begun(process, begun, before)
                await asyncio.sleep(run.random.random() * LIFE)
            finally:
                process.kill()
                await asyncio.to_thread(process.join)
            surely.update(range(first, confirmed.value))
            unconfirmed += begun.value - max(before, confirmed.value)
            run.done += 1
        numbers, _ = await bed.stored(stream)
    copies, parts = count_batches(batches, numbers)
    run.found |= {
        'batches': begun.value,
        'messages': batches.start(begun.value),
        'unconfirmed at a kill': unconfirmed,
        'stored': copies.total(),
        'messages stored': len(numbers),
    }
    run.check(f'{kills:,} kills', run.done == kills, f'{run.done:,}')
    run.check_none('each batch is stored as a whole, or nothing of it', parts)
    lost = sorted(surely - copies.keys())
    run.check_none('each confirmed batch is stored', f'{len(lost):,} are not' if lost else '')
    if named:
        wrong = [batch for batch, count in copies.items() if count > 1]
        run.check_none(
            'each batch is stored exactly once', f'{len(wrong):,} twice' if wrong else ''
        )
        run.check_none('stored in order', '' if [*copies] == [*range(len(copies))] else 'no')


async def cut(bed: Bed, size: int) -> None:
    """Cut the connection behind this many bytes, mostly within a batch."""
    if bed.proxies:
        bed.proxies[0].cut_after(size)
    else:
        await bed.call('cut', size)


async def has_begun(process: Any, begun: Any, before: int) -> None:
    """Wait until a process publishes its first new batch."""
    limit = time.monotonic() + START
    while begun.value == before:
        if not process.is_alive() or time.monotonic() > limit:
            raise ProofError('a process did not begin to publish')
        await asyncio.sleep(POLL)


def count_batches(batches: Batches, numbers: Sequence[int]) -> tuple[Counter[int], str]:
    """Count the copies of each batch that are stored as a whole, in the order of the first copies;
    also describe the first part that is not, if any."""
    first = {batches.start(0): 0}  # batch by its first number
    known, at = 0, 0
    copies: Counter[int] = Counter()
    while at < len(numbers):
        while numbers[at] > batches.start(known):
            known += 1
            first[batches.start(known)] = known
        batch = first.get(numbers[at])
        wanted = batches.numbers(batch) if batch is not None else range(1)
        if batch is None or [*numbers[at : at + len(wanted)]] != [*wanted]:
            return copies, f'a part of a batch at message {at:,}, number {numbers[at]:,}'
        copies[batch] += 1
        at += len(wanted)
    return copies, ''
