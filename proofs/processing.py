"""Proof that `process` works on each message, in order by key, and repeats only what it must.

Members of a group work on the messages of a super stream, in processes that are killed and started
again.  The work fails, hangs or is slow, depending on the number of the message.
"""

import asyncio
import heapq
import logging
import multiprocessing
import os
import signal
import struct
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, BinaryIO, NamedTuple

import uvloop

import rbfly.streams as rbs
from rbfly.processing import dead_letter, process, retry

from .checker import KEYS, check_stored
from .groups import stranded_after
from .history import CONFIRMED, History, Messages
from .publish import NAME, publisher_to
from .run import Run
from .test_bed import Bed, body

GROUP = 'proof'
DELAYS = (0.01,)  # seconds before the second try, which is the last
HANG = 2.0  # seconds, the limit of the work; other work takes less, even on a busy machine
EVERY = 1_000  # messages after which a member stores its offset
LEAVE = 60.0  # seconds to leave
STUCK = 150.0  # seconds without another message after which the group is stuck
OVERLAP = 5.0  # seconds in which a member notices that it was cut off
STEP = 10_000  # messages that are published at once
TICK = 0.1
FAULTS = ('killed', 'leaves', 'connections cut')

JOINED, DONE, STORED = range(3)
RECORD = struct.Struct('<dBHqq')


class Event(NamedTuple):
    """What a member has noted.

    :ivar kind: JOINED: it can be stopped; DONE: it has finished a message; STORED: the broker has
        stored its offset.

    :ivar partition: index of the partition.
    """

    time: float
    kind: int
    partition: int
    offset: int
    number: int


def fate(number: int, seed: int) -> str:
    """What happens to the work on a message: '' if it succeeds at once."""
    mixed = (number * 2_654_435_761 + seed) % 2**32 % 20_000
    if mixed < 5:
        return 'hangs'
    if mixed < 25:
        return 'fails'
    if mixed < 65:
        return 'fails once'
    return 'is slow' if mixed < 265 else ''


FINAL = ('hangs', 'fails')  # of messages that end in the dead-letter stream


# -- in the process of a member


class Log:
    """What the member notes; unbuffered, so that a killed process loses nothing."""

    def __init__(self, path: Path, partitions: Sequence[str]) -> None:
        self._file = path.open('ab', buffering=0)
        self._index = {name: i for i, name in enumerate(partitions)}

    def note(self, kind: int, partition: str = '', offset: int = 0, number: int = 0) -> None:
        record = RECORD.pack(time.monotonic(), kind, self._index.get(partition, 0), offset, number)
        self._file.write(record)


def note_stored(log: Log) -> None:
    """Note each offset that the broker has stored."""
    commit = rbs.SuperStreamSubscription.commit

    async def noted(
        self: rbs.SuperStreamSubscription, offsets: Mapping[str, int] | None = None
    ) -> None:
        await commit(self, offsets)
        for partition, offset in (offsets or {}).items():
            log.note(STORED, partition, offset)

    rbs.SuperStreamSubscription.commit = noted  # type: ignore[method-assign]


async def take_part(
    log: Log, uris: list[str], stream: str, dead: str, seed: int, stranded: float
) -> None:
    """Work on messages until the proof stops the process.

    :param stranded: seconds after which the member joins a stuck group again; 0 for never.
    """
    failed_once = set[int]()

    async def work(message: rbs.MessageCtx[bytes]) -> None:
        number = int(message.body)
        match fate(number, seed):
            case 'hangs':
                await asyncio.Event().wait()
            case 'fails':
                raise ValueError(f'cannot process {number}')
            case 'fails once' if number not in failed_once:
                failed_once.add(number)
                raise OSError('try again')
            case 'is slow':
                await asyncio.sleep(number % 20 / 1000)
        log.note(DONE, str(message.stream), message.stream_offset, number)

    client = rbs.streams_client(uris, connection_name='proof-member')
    async with client, client.publisher(dead) as letters:
        group = rbs.Group(GROUP, stranded_after=stranded or None)
        messages = client.super_stream(stream).subscribe(group=group, commit='manual')
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, messages.stop)
        log.note(JOINED)
        await process(
            messages,
            work,
            key=lambda message: int(message.body) % KEYS,
            context=True,
            timeout=HANG,
            on_error=retry(DELAYS, then=dead_letter(letters)),
            every=EVERY,
            interval=1,
        )


def run_member(path: Path, partitions: Sequence[str], *args: Any) -> None:
    """The process of a member."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the proof ends the process
    logging.getLogger('rbfly').addHandler(logging.NullHandler())  # faults are expected
    log = Log(path, partitions)
    note_stored(log)

    async def run() -> None:
        parent = multiprocessing.parent_process()
        assert parent is not None
        asyncio.get_running_loop().add_reader(parent.sentinel, os._exit, 1)
        await take_part(log, *args)

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(run())


# -- in the process of the proof


class Member:
    """A member as the proof sees it.

    :ivar excused: it was killed, or cut off while it was leaving, and could not store its offset.
    """

    def __init__(self, path: Path, *args: Any) -> None:
        path.touch()
        self.path = path
        self.excused = False
        self._is_leaving = False
        self._file: BinaryIO = path.open('rb')
        self.process = multiprocessing.get_context('spawn').Process(
            target=run_member, args=(path, *args), daemon=True
        )
        self.process.start()

    def new(self) -> Iterator[Event]:
        """Yield what the member has noted since the last call."""
        data = self._file.read()
        rest = len(data) % RECORD.size
        self._file.seek(-rest, os.SEEK_CUR)
        yield from map(Event._make, RECORD.iter_unpack(data[: len(data) - rest]))

    def signal(self, number: int) -> None:
        self.excused |= number == signal.SIGKILL
        self._is_leaving = True
        assert self.process.pid is not None
        with suppress(ProcessLookupError):
            os.kill(self.process.pid, number)

    def cut_off(self) -> None:
        """Note that its connections are cut."""
        self.excused |= self._is_leaving and self.process.is_alive()

    async def end(self, seconds: float) -> int | None:
        """Wait for the end of the process; return its exit code, or None."""
        await asyncio.to_thread(self.process.join, seconds)
        return self.process.exitcode

    async def close(self) -> None:
        self.process.kill()
        await asyncio.to_thread(self.process.join)
        self._file.close()


def events_of(path: Path) -> Iterator[Event]:
    data = path.read_bytes()
    size = len(data) - len(data) % RECORD.size
    yield from map(Event._make, RECORD.iter_unpack(data[:size]))


class Team:
    """The members of the group.

    :ivar all: all members so far.
    :ivar cuts: times at which their connections were cut.
    :ivar faults: how often each fault has happened.
    """

    def __init__(self, run: Run, bed: Bed, folder: Path, *args: Any) -> None:
        self.all: list[Member] = []
        self.cuts: list[float] = []
        self.faults = Counter[str]()
        self._run = run
        self._bed = bed
        self._folder = folder
        self._args = args
        self._living: list[Member] = []
        self._seen = bytearray(run['messages'])
        self._count = 0

    def join(self) -> None:
        member = Member(self._folder / str(len(self.all)), *self._args)
        self.all.append(member)
        self._living.append(member)

    def done(self) -> int:
        """The number of different messages that members have finished."""
        for member in self.all:
            for event in member.new():
                if event.kind == DONE and not self._seen[event.number]:
                    self._seen[event.number] = 1
                    self._count += 1
        return self._count

    async def disturb(self, total: int) -> None:
        """Cause the faults, each when so many messages are finished."""
        rnd, cuts = self._run.random, self._run['cuts']
        for i in range(cuts):
            if not await self._run.reach(total * (i + 1) // (cuts + 1), self.done, STUCK):
                return
            fault = FAULTS[i % len(FAULTS)] if i < len(FAULTS) else rnd.choice(FAULTS)
            self.faults[fault] += 1
            if fault == 'connections cut':
                for member in self.all:
                    member.cut_off()
                await self._bed.call('cut')
                self.cuts.append(time.monotonic())
                continue
            member = rnd.choice(await self._joined(1))
            self._living.remove(member)
            member.signal(signal.SIGKILL if fault == 'killed' else signal.SIGTERM)
            self.join()

    async def _joined(self, least: int) -> list[Member]:
        """Wait until so many members can be stopped; return all that can."""
        found: list[Member] = []
        while len(found) < least:
            await asyncio.sleep(TICK)
            found = [item for item in self._living if item.path.stat().st_size]
        return found

    async def leave(self) -> list[int | None]:
        """Let all members leave; return the exit codes of those that are not excused."""
        for member in await self._joined(len(self._living)):
            member.signal(signal.SIGTERM)
        return await asyncio.gather(*(item.end(LEAVE) for item in self.all if not item.excused))

    async def close(self) -> None:
        for member in self.all:
            await member.close()


async def processing(run: Run, bed: Bed) -> None:
    """Publish all messages; let members of a group process them while members come and go."""
    total = run['messages']
    final = {number for number in range(total) if fate(number, run.seed) in FINAL}
    with TemporaryDirectory() as folder:
        async with (
            bed.super_stream(run['partitions']) as (stream, partitions),
            bed.stream() as dead,
        ):
            await bed.replicated([*partitions, dead])
            history = History('', stream, True, total)
            async with publisher_to(bed, stream, NAME, by_key=True) as publisher:
                while numbers := history.take(STEP):
                    await publisher.send_many(map(body, numbers))
                    history.note(numbers, CONFIRMED)
            args = (partitions, bed.uris, stream, dead, run.seed, stranded_after(bed))
            team = Team(run, bed, Path(folder), *args)
            try:
                for _ in range(run['members']):
                    team.join()
                begin = time.monotonic()
                await team.disturb(total)
                await run.reach(total - len(final), team.done, STUCK)
                seconds = time.monotonic() - begin
                await until_stored(run, bed, stream)
                codes = await team.leave()
            finally:
                await team.close()
            stored = {name: await bed.stored(name) for name in partitions}
            check_stored(run, history, [numbers for numbers, _ in stored.values()], order='key')
            lag = await lag_of(bed, stream)
            letters = await read_letters(bed, dead)
        merged = heapq.merge(*(events_of(member.path) for member in team.all))
        check_events(run, [*stored.values()], merged, team.cuts, final)
    run.found['faults'] = dict(team.faults)
    run.found['members'] = len(team.all)
    run.found['messages per second'] = round(total / seconds)
    wrong = [code for code in codes if code != 0]
    run.check_none('a member that is stopped ends in order', wrong)
    run.check_none(
        'at the end, the stored offsets are those of the last messages', any(lag) and lag
    )
    check_letters(run, stored, letters, final)


async def lag_of(bed: Bed, stream: str) -> list[int | None]:
    async with bed.client() as client:
        return [*(await client.super_stream(stream).lag(GROUP)).values()]


async def until_stored(run: Run, bed: Bed, stream: str) -> None:
    """Wait until members have finished and stored everything, also what ends as dead letters."""
    limit = time.monotonic() + STUCK
    while any(await lag_of(bed, stream)) and time.monotonic() < limit:
        run.done += 1
        await asyncio.sleep(1)


Letter = tuple[int, str, int, int, str]  # number, stream, offset, tries, reason


async def read_letters(bed: Bed, dead: str) -> list[Letter]:
    found: list[Letter] = []
    async with bed.client() as client:
        messages = client.subscribe(dead, offset=rbs.Offset.FIRST, until='now')
        async for message in messages.messages():
            facts = message.app_properties
            names = ('stream', 'offset', 'tries', 'reason')
            values = [facts[f'dead-letter-{name}'] for name in names]
            found.append((int(message.body), *values))
    return found


def check_events(
    run: Run,
    stored: Sequence[Messages],
    merged: Iterator[Event],
    cuts: Sequence[float],
    final: set[int],
) -> None:
    """Check what the members have noted.

    :param stored: the messages of each partition.
    :param cuts: times at which connections were cut: for a while, a member does not notice that.
    """
    total = run['messages']
    done = bytearray(total)
    last = dict.fromkeys(range(KEYS), -1)  # offset of the last message that was new, by key
    below = [-1] * len(stored)  # the stored offset
    repeated, unordered, below_stored = 0, list[int](), list[int]()
    for event in merged:
        if event.kind == STORED:
            below[event.partition] = max(below[event.partition], event.offset)
        if event.kind != DONE:
            continue
        number, key = event.number, event.number % KEYS
        if event.offset <= below[event.partition] and not any(
            cut <= event.time < cut + OVERLAP for cut in cuts
        ):
            below_stored.append(number)
        if done[number]:
            repeated += 1
            continue
        done[number] = 1
        if event.offset < last[key]:
            unordered.append(number)
        last[key] = event.offset
    missing = [number for number in range(total) if not done[number] and number not in final]
    run.found['repeated'] = repeated
    run.check_none(
        'each message is processed at least once, or is in the dead-letter stream',
        missing and f'{len(missing):,} missing, first {missing[0]:,}',
    )
    run.check_none(
        'messages with the same key are processed in order',
        unordered and f'{len(unordered):,} too late, first {unordered[0]:,}',
    )
    run.check_none(
        'only messages above the stored offset are repeated',
        below_stored and f'{len(below_stored):,} below, first {below_stored[0]:,}',
    )


def check_letters(
    run: Run, stored: Mapping[str, Messages], letters: Sequence[Letter], final: set[int]
) -> None:
    """Check that the dead-letter stream has the messages that have failed, with their reasons."""
    numbers = {letter[0] for letter in letters}
    run.found['dead letters'] = len(letters)
    run.found['failed messages'] = len(final)
    missing = sorted(final - numbers)
    run.check_none(
        'each message that has failed is in the dead-letter stream',
        missing and f'{len(missing):,} missing, first {missing[0]:,}',
    )
    others = sorted(numbers - final)
    run.check_none('no other message is there', others and f'{len(others):,}, first {others[0]:,}')
    places = {
        number: (name, offset)
        for name, messages in stored.items()
        for number, offset in zip(*messages, strict=True)
        if number in final
    }
    wrong = [letter for letter in letters if not is_right(letter, places.get(letter[0]), run.seed)]
    run.check_none('dead letters say where they are from, and why', wrong and wrong[0])


def is_right(letter: Letter, place: tuple[str, int] | None, seed: int) -> bool:
    number, stream, offset, tries, reason = letter
    hung = fate(number, seed) == 'hangs'
    expected = 'TimeoutError: ' if hung else f'ValueError: cannot process {number}'
    return (stream, offset) == place and tries == len(DELAYS) + 1 and reason.startswith(expected)
