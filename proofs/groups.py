"""Proof that a group loses no message, and repeats few, through faults of members and brokers."""

import asyncio
import time
from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

from .active_periods import CLAIMS, Timeline, causes, gaps
from .checker import check_stored
from .group_members import EVERY, GROUP, HANDOVER, INTERVAL, Member
from .history import CONFIRMED, Fault, History, Messages
from .publish import NAME, publisher_to
from .run import Run
from .test_bed import Bed, ClusterBed, body

RATE = 500  # messages per second
BATCH = 50
SETTLED = 1.0  # seconds after which a frame has arrived, if nothing has happened
OVERLAP = 2.0  # seconds in which a member notices that it was cut off, or frozen for too long
HEARTBEATS = (5, 5, 60)  # of members: RabbitMQ closes a connection after two silent intervals
UPDATE = 60.0  # seconds after which RabbitMQ gives up on a member or node that does not answer
RECONNECT = 30.0  # seconds to open a subscription again, whatever else happens to it
STRANDED = 15.0  # RabbitMQ 4.0 can leave a group without an active member, see StrandedCheck
LEAVE = 60.0  # seconds to leave
READ = 150.0  # seconds without another message after which the group is stuck
TICK = 0.1
# Seconds until another member must be active, by kind of fault.
LIMITS = {
    '': 5.0,
    'joins': HANDOVER,
    'leaves': HANDOVER,
    'killed': HANDOVER,
    'connections cut': HANDOVER,
    'cut at a byte': HANDOVER,
    'leader moved': RECONNECT,
    'node stopped': RECONNECT,
    'node killed': UPDATE + RECONNECT,
    'frozen': 2.5 * max(HEARTBEATS) + HANDOVER,
}
# Faults that may lose frames that a member has sent, even if its connection survives.
LOSING = ('leader moved', 'node killed', 'node paused', 'node stopped')


def stranded_after(bed: Bed) -> float:
    """Return the seconds after which members join a stuck group again; 0 for never."""
    is_old = isinstance(bed, ClusterBed) and bed.broker.release.startswith('4.0')
    return STRANDED if is_old else 0.0


class Team:
    """The members of the group, and the faults that they suffer.

    :ivar all: all members so far.
    :ivar faults: all faults so far.
    :ivar stranded: seconds after which members join a stuck group again; 0 for never.
    """

    def __init__(self, run: Run, bed: Bed, stream: str, folder: Path) -> None:
        self.all: list[Member] = []
        self.faults: list[Fault] = []
        self.stranded = stranded_after(bed)
        self._run = run
        self._random = run.random
        self._bed = bed
        self._stream = stream
        self._folder = folder
        self._thaws: set[asyncio.Task[None]] = set()
        self._read: dict[Member, int] = {}  # records of each member that are in the next one
        self._seen: set[tuple[str, int]] = set()  # partition and offset of each message received

    def living(self) -> list[Member]:
        return [item for item in self.all if not item.leaving]

    def _fault(self, kind: str, begin: float, last: float = 0.0) -> None:
        """Record a fault that ends now, or after some seconds."""
        self.faults.append(Fault(begin, time.monotonic() + last, kind))

    async def join(self) -> None:
        path = self._folder / f'{len(self.all)}'
        heartbeat = self._random.choice(HEARTBEATS)
        begin = time.monotonic()
        self.all.append(Member(path, self._bed.uris, self._stream, heartbeat, self.stranded))
        while not self.all[-1].update():  # noqa: ASYNC110 - another process
            await asyncio.sleep(TICK)
        self._fault('joins', begin, HANDOVER)

    def leave(self, member: Member) -> None:
        member.leave(stop=self._random.random() < 0.5)
        self._fault('leaves', time.monotonic(), HANDOVER)

    def kill(self, member: Member) -> None:
        member.kill()
        self._fault('killed', time.monotonic())

    def freeze(self, member: Member) -> None:
        """Freeze a member, and thaw it later."""
        low, high = self._random.choice(((0.1, 2), (0.1, 2), (5, 20), (20, 75)))
        seconds = min(self._random.uniform(low, high), self._run['seconds'] / 4)

        async def freeze() -> None:
            begin = time.monotonic()
            member.freeze()
            try:
                await asyncio.sleep(seconds)
            finally:
                member.thaw()
                self._fault('frozen', begin)

        task = asyncio.create_task(freeze())
        self._thaws.add(task)
        task.add_done_callback(self._thaws.discard)

    async def thaw(self) -> None:
        """Thaw all members."""
        for task in self._thaws:
            task.cancel()
        await asyncio.gather(*self._thaws, return_exceptions=True)

    async def disturb(self, partitions: Sequence[str], end: float) -> None:
        """Let members come and go, and cause faults."""
        rnd, run = self._random, self._run
        known = self._bed.faults(rnd, partitions)
        actions = {'leaves': self.leave, 'killed': self.kill, 'frozen': self.freeze}
        members = ['joins', *actions]
        names = [*members, *members, *(name for name in LIMITS if name in known)]
        while time.monotonic() < end:
            await asyncio.sleep(min(rnd.uniform(0.1, 3.0), run['seconds'] / 20))
            living = self.living()
            name = 'joins' if len(living) < 2 else rnd.choice(names)
            if name == 'joins':
                if len(living) >= run['members']:
                    continue
                await self.join()
            elif name in actions:
                ready = [item for item in living if item.ready]
                if len(ready) < 2:  # one must stay
                    continue
                actions[name](rnd.choice(ready))
            else:
                begin = time.monotonic()
                await known[name]()
                self._fault(name, begin)
                if name in LOSING:
                    await self._bed.replicated(partitions)

    def received(self) -> int:
        """The number of different messages that members have received since the start."""
        for member in self.all:
            member.update()
            read, self._read[member] = self._read.get(member, 0), len(member.records)
            self._seen.update(
                (record.partition, record.offset)
                for record in member.records[read:]
                if record.kind == 'message'
            )
        return len(self._seen)

    async def describe(self, partitions: Sequence[str]) -> dict[str, str]:
        """What RabbitMQ says about the group in each partition."""
        if not isinstance(self._bed, ClusterBed):
            return {}
        what = ('list_stream_group_consumers', '--reference', GROUP, '--stream')
        columns = ('connection_name', 'state')
        tool = self._bed.broker.tool
        return {
            name: await asyncio.to_thread(tool, 'rabbitmq-streams', *what, name, *columns)
            for name in partitions
        }

    async def end(self) -> list[int | None]:
        """Let all members leave; return the exit codes of those that were asked to."""
        await self.thaw()
        for member in self.all:
            if not member.leaving:
                member.leave(stop=self._random.random() < 0.5)
        return await asyncio.gather(*(item.join(LEAVE) for item in self.all if not item.killed))

    async def close(self) -> None:
        await self.thaw()
        for member in self.all:
            await member.end()


async def group_churn(run: Run, bed: Bed) -> None:
    """Publish by key while the members of a group that reads the super stream come and go."""
    with TemporaryDirectory() as folder:
        async with bed.super_stream(run['partitions']) as (stream, partitions):
            await bed.replicated(partitions)
            team = Team(run, bed, stream, Path(folder))
            try:
                for _ in range(run['members']):
                    await team.join()
                begin = time.monotonic()
                end = begin + run['seconds']
                async with asyncio.TaskGroup() as tasks:
                    loading = tasks.create_task(publish(run, bed, stream, end))
                    tasks.create_task(team.disturb(partitions, end))
                await bed.call('heal')
                await team.thaw()
                stored = {name: await bed.stored(name) for name in partitions}
                count = sum(len(numbers) for numbers, _ in stored.values())
                if not await run.reach(count, team.received, READ):
                    run.found['stuck'] = await team.describe(partitions)
                end = time.monotonic()
                codes = await team.end()
            finally:
                await team.close()
    wrong = [code for code in codes if code != 0]
    run.check_none('a member that leaves ends in order', wrong)
    check_stored(run, loading.result(), [numbers for numbers, _ in stored.values()], order='key')
    check_group(run, team, stored, end)


async def publish(run: Run, bed: Bed, stream: str, end: float) -> History:
    """Publish at a steady rate; return the confirmed messages."""
    history = History('', stream, True, run['seconds'] * RATE + BATCH)
    async with publisher_to(bed, stream, NAME, by_key=True) as publisher:
        while time.monotonic() < end:
            numbers = history.take(BATCH)
            await publisher.send_many(map(body, numbers))
            history.note(numbers, CONFIRMED)
            run.done = history.next
            await asyncio.sleep(BATCH / RATE)
    return history


def check_group(run: Run, team: Team, stored: dict[str, Messages], end: float) -> None:
    """Check the messages that the members have received, and when they were active."""
    histories = [sorted(member.records, key=lambda item: item.time) for member in team.all]
    losing = [item for item in team.faults if item.kind in LOSING]
    lines = [
        Timeline(name, numbers, offsets, histories, losing, SETTLED)
        for name, (numbers, offsets) in stored.items()
    ]
    run.found['faults'] = dict(sorted(Counter(fault.kind for fault in team.faults).items()))
    run.found['members'] = len(team.all)
    run.found['activities'] = sum(len(line.periods) for line in lines)
    run.found['messages'] = sum(len(numbers) for numbers, _ in stored.values())
    run.found['repeated'] = sum(line.repeated() for line in lines)
    errors = Counter(
        item.partition for records in histories for item in records if item.kind == 'error'
    )
    run.check_none('no error was raised', dict(errors))
    for claim in CLAIMS:
        found = [item for line in lines for item in line.wrong.get(claim, [])]
        run.check_none(claim, found and f'{len(found):,} wrong; {found[0]}')
    check_repeats(run, [item for line in lines for item in line.repeats()])
    check_overlaps(run, [item for line in lines for item in line.overlaps()])
    check_gaps(run, team, lines, end)


def check_repeats(run: Run, repeats: Sequence[tuple[int, float]]) -> None:
    """Check that members repeat only messages without a stored offset, or just before a fault."""
    most = max((count for count, _ in repeats), default=0)
    longest = max((seconds for _, seconds in repeats), default=0.0)
    run.check(
        f'at most {EVERY + 1} messages in a row, of at most {INTERVAL:g} s, are repeated, and those'
        f' that were under way: delivered less than {SETTLED:g} s before a fault',
        most <= EVERY + 1 and longest <= INTERVAL + SETTLED,
        f'{most}, of {longest:.1f} s',
    )


def check_overlaps(run: Run, overlaps: Sequence[tuple[str, float]]) -> None:
    """Check that one member at a time delivers the messages of a partition."""
    found = defaultdict(list)
    for why, seconds in overlaps:
        found[why].append(seconds)
    at_once = found['']
    run.check_none(
        'one member at a time delivers the messages of a partition',
        at_once and f'{len(at_once)} times, {max(at_once):.3f} s',
    )
    for why in ('frozen', 'cut off'):
        most = max(found[why], default=0.0)
        run.check(
            f'a member that was {why} delivers for less than {OVERLAP:g} s',
            most < OVERLAP,
            f'{len(found[why])} times, at most {most:.3f} s',
        )


def check_gaps(run: Run, team: Team, lines: Sequence[Timeline], end: float) -> None:
    """Check that each partition soon has an active member again."""
    found = defaultdict(list)
    late = []
    for line in lines:
        for gap in gaps(line.active(), end):
            seconds, kinds = gap[1] - gap[0], causes(gap, team.faults) or ['']
            found[kinds[0]].append(seconds)
            if seconds > max(LIMITS[kind] for kind in kinds) + 3 * team.stranded:
                late.append(f'{line.partition}: {seconds:.1f} s after {", ".join(kinds)}')
    run.check_none(
        'each partition has an active member again in time', late and f'{len(late)} late; {late[0]}'
    )
    run.check('each partition has an active member', all(line.periods for line in lines))
    for cause in LIMITS:
        if times := sorted(found[cause]):
            run.found[f'inactive after {cause or "nothing"}, seconds'] = {
                'count': len(times),
                'median': round(median(times), 3),
                '90 %': round(times[len(times) * 9 // 10], 3),
                'most': round(times[-1], 3),
                'limit': LIMITS[cause],
            }
