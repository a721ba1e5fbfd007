"""Proof of pipes: whenever a process is killed, each output is stored exactly once, in order.

Two processes run one job between two super streams.  One of them is killed at a random moment, and
another one starts.  A message has no output, one, or two: those are an atomic batch.
"""

import asyncio
import logging
import statistics
import time
from array import array
from collections.abc import Sequence
from multiprocessing import get_context
from typing import Any

import uvloop

import rbfly.streams as rbs
from perf.super_stream_wire import partition_of
from rbfly.processing import pipe as run_pipe

from .groups import stranded_after
from .run import ProofError, Run
from .test_bed import Bed, body

JOB = 'proof'
SOURCES, TARGETS = 3, 4  # partitions
KEYS = 1_000
MEMBERS = 2  # processes that run the job
LIFE = 0.3  # maximum seconds between two kills
INTERVAL = 0.2  # seconds between stored positions
CUT = 500_000  # maximum bytes until a connection is cut, after every tenth kill
START = 60.0  # seconds in which the job must go on after a kill
POLL = 0.001
PROCESSES = get_context('forkserver')  # a process starts in milliseconds


def key_of(number: int, total: int) -> str:
    return f'{number % total % KEYS:03d}'


def outputs_of(number: int, total: int) -> list[int]:
    """The numbers of the outputs of a message."""
    if number % 10 == 0:
        return []
    return [number, number + total] if number % 10 == 1 else [number]


def piping(
    uris: Sequence[str], source: str, target: str, total: int, stranded: float, moved: Any
) -> None:
    """Run the job until the process is killed.

    :param stranded: seconds after which the process joins a stuck group again; 0 for never.
    :param moved: its `value` counts the messages that were transformed.
    """
    logging.getLogger('rbfly').addHandler(logging.NullHandler())  # faults are expected
    uvloop.run(piping_all(uris, source, target, total, stranded, moved))


async def piping_all(
    uris: Sequence[str], source: str, target: str, total: int, stranded: float, moved: Any
) -> None:
    def transform(found: bytes) -> list[bytes]:
        moved.value += 1
        return [body(number) for number in outputs_of(int(found), total)]

    route: Any = rbs.by_hash(lambda message: key_of(int(message.body), total))
    async with (
        rbs.streams_client(uris, connection_name='proof-read') as reader,
        rbs.streams_client(uris, connection_name='proof-write') as writer,
    ):
        ends = reader.super_stream(source), writer.super_stream(target)
        await run_pipe(
            *ends,
            transform,
            name=JOB,
            route=route,
            interval=INTERVAL,
            stranded_after=stranded or None,
        )


async def pipe(run: Run, bed: Bed) -> None:
    """Kill one of the processes many times, while the source is written."""
    total, kills = run['messages'], run['kills']
    stranded = stranded_after(bed)
    limit = START + 3 * stranded
    moved = PROCESSES.Value('q', 0, lock=False)
    resumed: list[float] = []
    written = 0
    PROCESSES.set_forkserver_preload([__name__])
    async with (
        bed.super_stream(SOURCES) as (source, _),
        bed.super_stream(TARGETS) as (target, partitions),
        rbs.streams_client(bed.direct, connection_name='proof-fill') as client,
        client.super_stream(source).publisher(
            route=rbs.by_hash(lambda found: key_of(int(found), total))
        ) as publisher,
    ):
        args = bed.uris, source, target, total, stranded, moved

        async def start() -> Any:
            process = PROCESSES.Process(target=piping, args=args, daemon=True)
            await asyncio.to_thread(process.start)
            return process

        members = [await start() for _ in range(MEMBERS)]
        try:
            for kill in range(kills):
                numbers = range(total * kill // kills, total * (kill + 1) // kills)
                before = moved.value
                writing = asyncio.create_task(publisher.send_many(map(body, numbers)))
                begun = time.monotonic()
                while moved.value == before:
                    if time.monotonic() > begun + limit:
                        raise ProofError('the job does not go on after a kill')
                    await asyncio.sleep(POLL)
                resumed.append(time.monotonic() - begun)
                await asyncio.sleep(run.random.random() * LIFE)
                victim = members.pop(run.random.randrange(MEMBERS))
                victim.kill()
                await asyncio.to_thread(victim.join)
                members.append(await start())
                await writing
                if kill % 10 == 9:
                    await bed.call('cut', run.random.randrange(1, CUT))
                written += len(numbers)
                run.done = written
            await finished(run, client.super_stream(source), limit)
        finally:
            for process in members:
                process.kill()
                await asyncio.to_thread(process.join)
        stored: list[array[int]] = []
        for partition in partitions:
            stored.append((await bed.stored(partition))[0])
            run.done += 1  # reading millions of messages takes minutes on a busy machine
    run.found |= {
        'outputs stored': sum(map(len, stored)),
        'messages transformed': moved.value,
        'seconds until the job goes on after a kill': [
            round(value, 3) for value in (statistics.median(resumed), max(resumed))
        ],
    }
    run.check('every message was written', written == total, f'{written:,} of {total:,}')
    run.check_none('each output is stored exactly once', wrong_copies(stored, total))
    run.check_none('in the partition of its key, in order by key', misplaced(stored, total))
    run.check_none('two outputs of a message are together', separated(stored, total))


async def finished(run: Run, source: rbs.SuperStream, limit: float) -> None:
    """Wait until the job has stored a position at the end of the source.

    :param limit: seconds without progress after which the job stands still.
    """
    due = time.monotonic() + limit
    before: object = None
    while True:
        lag = await source.lag(JOB)
        if not any(lag.values()) and None not in lag.values():
            return
        if lag != before:
            before, due = lag, time.monotonic() + limit
            run.done += 1  # or it would seem to be stuck
        if time.monotonic() > due:
            raise ProofError(f'the job stands still: {lag} are left')
        await asyncio.sleep(INTERVAL)


def wrong_copies(stored: Sequence['array[int]'], total: int) -> str:
    """Describe the outputs that are missing, or stored more than once."""
    copies = bytearray(2 * total)
    for numbers in stored:
        for number in numbers:
            copies[number] = min(copies[number] + 1, 255)
    wanted = bytearray(2 * total)
    for number in range(total):
        for output in outputs_of(number, total):
            wanted[output] = 1
    if copies == wanted:
        return ''
    pairs = [*zip(copies, wanted, strict=True)]
    lost = sum(found < due for found, due in pairs)
    return f'{lost:,} lost, {sum(found > due for found, due in pairs):,} repeated'


def misplaced(stored: Sequence['array[int]'], total: int) -> str:
    """Describe an output in the partition of another key, or before an earlier one of its key."""
    last: dict[str, int] = {}
    for index, numbers in enumerate(stored):
        for number in numbers:
            key = key_of(number, total)
            if partition_of(key.encode(), len(stored)) != index:
                return f'{number:,} is in partition {index}'
            place = number % total * 2 + number // total
            if place < last.get(key, -1):
                return f'{number:,} comes too late'
            last[key] = place
    return ''


def separated(stored: Sequence['array[int]'], total: int) -> str:
    """Describe a second output that does not follow the first one."""
    for numbers in stored:
        for i, number in enumerate(numbers):
            if number >= total and (i == 0 or numbers[i - 1] != number - total):
                return f'{number:,} does not follow {number - total:,}'
            if (
                number % 10 == 1
                and number < total
                and numbers[i + 1 : i + 2] != array('q', [number + total])
            ):
                return f'{number + total:,} does not follow {number:,}'
    return ''
