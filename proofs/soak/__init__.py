"""Soak: all ways of publishing and consuming at the same time, with random faults.

A soak runs in rounds with new streams.  In each round, publishers and subscriptions work while
faults happen; then they finish, and the results are compared with what the broker has stored.
"""

import asyncio
import gc
import os
import time
from array import array
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from typing import Any

import psutil  # type: ignore[import-untyped,unused-ignore]

import rbfly.streams as rbs
from rbfly.error import RbFlyError

from ..active_periods import Fault
from ..history import CONFIRM, CONFIRMED, MESSAGES, REFUSED, Log
from ..memory import GROWTH, resident
from ..run import ProofError, Run
from ..site import Site, body
from ..trouble import InMemory, OnCluster, Trouble
from .activity import AGAIN, Activity, Scene
from .closing import Cancelling, Closing
from .groups import Groups
from .starting import Recreating, Starting
from .super_stream import SuperStream
from .threads import Threads

__all__ = ['soak']

ROUNDS = {'memory': 10.0, 'rabbitmq': 60.0}  # seconds per round
END = 180.0  # seconds to finish a round after the faults

IMPATIENT = 0.02  # timeout of some sends in seconds
POLL = 0.5  # timeout of subscriptions in seconds
TRACKED = 5_000  # messages after which a subscription that tracks its offset is replaced
WARM_UP = 10  # the first tenth of the time is the warm-up, in which memory may grow
WARM_ROUNDS = 5  # minimum number of warm-up rounds, so a short soak does not check memory
SHIFT = 100.0  # maximum seconds by which a clock is moved
ACTIVITIES: dict[str, type[Activity]] = {
    'closing': Closing,
    'cancelling': Cancelling,
    'starting': Starting,
    'recreating': Recreating,
    'threads': Threads,
    'super': SuperStream,
    'groups': Groups,
}
NAMES = ['everyday', *ACTIVITIES, 'clocks']
SLOW = f'call of more than {2 * CONFIRM:.0f} s'


# -- publishing

Send = Callable[[Any, Log], Awaitable[bool]]


async def by_send(publisher: rbs.Publisher, log: Log) -> bool:
    """Send from many tasks, some of which soon give up; return whether the publisher is usable."""
    numbers = log.take(30)
    sends = (publisher.send(body(i), timeout=CONFIRM if i % 5 else IMPATIENT) for i in numbers)
    usable = True
    for number, error in zip(
        numbers, await asyncio.gather(*sends, return_exceptions=True), strict=True
    ):
        if error is None:
            log.note([number], CONFIRMED)
        elif isinstance(error, rbs.PublishError):
            log.note([number], REFUSED)
        elif isinstance(error, RbFlyError):
            if error.outcome == 'not_sent':
                log.note([number], REFUSED)
            usable = usable and not number % 5 and isinstance(error, rbs.ConfirmTimeout)
        else:
            raise error
    return usable


async def by_flush(publisher: rbs.Publisher, log: Log) -> bool:
    numbers = log.take(100)
    for number in numbers:
        publisher.batch(body(number))
    await publisher.flush(timeout=CONFIRM)
    log.note(numbers, CONFIRMED)
    return True


async def by_send_many(publisher: rbs.Publisher, log: Log) -> bool:
    numbers = log.take(500)
    await publisher.send_many(map(body, numbers), timeout=CONFIRM)
    log.note(numbers, CONFIRMED)
    return True


def kind(ctx: rbs.MessageCtx) -> str:
    """The filter value of a message: whether its number is even or odd."""
    assert isinstance(ctx.body, bytes)
    return 'odd' if int(ctx.body) % 2 else 'even'


WAYS: dict[str, tuple[Send, dict[str, Any]]] = {
    'send': (by_send, {'name': 'send'}),
    'flush': (by_flush, {'name': 'flush'}),
    'send-many': (by_send_many, {'name': 'send-many'}),
    'sub-entries': (by_send_many, {'sub_entry_size': 50, 'compression': 'gzip'}),
    'filtered': (by_send_many, {'name': 'filtered', 'filter_extract': kind}),
}


# -- consuming


class Reader:
    """Reads a whole stream, with a new subscription after each failure.

    :ivar numbers: numbers of the messages received.
    :ivar wrong: violations and their counts.
    """

    def __init__(self, how: str, log: Log) -> None:
        self.how = how
        self.stream = log.stream
        self.numbers = array('q')
        self.wrong: Counter[str] = Counter()
        self.next = 0  # offset
        self.rereading = False  # messages after the last stored offset may arrive again

    def options(self) -> dict[str, Any]:
        if self.how == 'filter':
            return {
                'offset': rbs.Offset.offset(self.next),
                'filter': rbs.MessageFilter(kind, {'even'}),
            }
        if self.how == 'tracking':
            self.rereading = True
            tracking = rbs.OffsetTracking('soak', every=500)
            return {'offset': rbs.Offset.reference('soak'), 'commit': tracking}
        return {'offset': rbs.Offset.offset(self.next)}

    def receive(self, offset: int, data: Any) -> None:
        """Record a message."""
        if self.rereading and offset < self.next:
            return
        self.rereading = False
        if offset < self.next:
            self.wrong['offset out of turn'] += 1
        self.next = offset + 1
        self.numbers.append(int(data))

    async def read(self, subscription: Any, run: Run, more: Callable[[], bool]) -> None:
        left = TRACKED
        while more():
            try:
                if self.how == 'batches':
                    async for batch in subscription.batches():
                        for offset, data in zip(batch.offsets, batch, strict=True):
                            self.receive(offset, data)
                        run.done += len(batch)
                elif self.how == 'contexts':
                    async for ctx in subscription.messages():
                        self.receive(ctx.stream_offset, ctx.body)
                        run.done += 1
                else:
                    async for data in subscription:
                        self.receive(rbs.get_message_ctx().stream_offset, data)
                        run.done += 1
                        left -= 1
                        if self.how == 'tracking' and left <= 0:
                            return
            except rbs.MessageTimeout:
                pass


# -- one round


class Round(Scene):
    """The publishers and subscriptions of one round, and their violations."""

    def __init__(
        self,
        run: Run,
        site: Trouble,
        client: rbs.StreamsClient,
        seconds: float,
        streams: Sequence[str],
    ) -> None:
        super().__init__(run, site, client, seconds)
        # A corrupt chunk with a valid CRC looks like a chunk of another stream.
        self.corrupting = bool(streams) and run.random.random() < 0.25
        self.logs = [
            Log(how, stream, 'name' in options)
            for (how, (_, options)), stream in zip(WAYS.items(), streams, strict=False)
        ]
        self.readers: list[Reader] = []
        if self.logs:
            self.add_readers()
        self.stored: dict[str, array[int]] = {}  # numbers in each stream at the end
        self.calls = 0
        self.longest = 0.0  # seconds of the longest call

    def add_readers(self) -> None:
        """Add a reader for each way of consuming."""
        by_way = {log.how: log for log in self.logs}
        readers = ('bodies', 'contexts', 'batches', 'bodies', 'bodies')
        self.readers = [Reader(how, log) for how, log in zip(readers, self.logs, strict=True)]
        self.readers += [
            Reader('tracking', by_way['sub-entries']),
            Reader('filter', by_way['filtered']),
            Reader('batches', by_way['send']),
        ]

    def wanted(self, reader: Reader) -> 'array[int] | None':
        """The numbers that a reader must receive, or None while they are unknown."""
        stored = self.stored.get(reader.stream)
        if stored is None or reader.how != 'filter':
            return stored
        return array('q', (number for number in stored if number % 2 == 0))

    async def publish(self, log: Log) -> None:
        """Publish until the round is over, at a steady pace."""
        loop = asyncio.get_running_loop()
        send, options = WAYS[log.how]
        while not self.over():
            try:
                async with self.client.publisher(log.stream, **options) as publisher:
                    usable = True
                    while usable and not self.over():
                        past = loop.time() - self.begin
                        if log.next >= MESSAGES * past / self.seconds:
                            await asyncio.sleep(0.005)
                            continue
                        self.calls += 1
                        began = loop.time()
                        try:
                            usable = await send(publisher, log)
                        finally:
                            self.longest = max(self.longest, loop.time() - began)
            except RbFlyError as ex:
                self.failures[type(ex).__name__] += 1
                await asyncio.sleep(AGAIN)

    async def consume(self, reader: Reader) -> None:
        """Read until all stored messages have arrived."""

        def more() -> bool:
            wanted = self.wanted(reader)
            return wanted is None or len(reader.numbers) < len(wanted)

        while more():
            try:
                async with self.client.subscribe(
                    reader.stream, timeout=POLL, **reader.options()
                ) as subscription:
                    await reader.read(subscription, self.run, more)
            except RbFlyError as ex:
                if isinstance(ex, rbs.StreamDoesNotExist) and not self.corrupting:
                    self.wrong['existing stream reported as missing'] += 1
                self.failures[type(ex).__name__] += 1
                await asyncio.sleep(AGAIN)


async def one_round(run: Run, site: Trouble, seconds: float) -> Counter[str]:
    """Run one round; return the violations."""
    names = set(NAMES if run['doing'] == 'all' else run['doing'].split(','))
    if unknown := names - {*NAMES}:
        raise ProofError(f'unknown activity {min(unknown)}; known are {", ".join(NAMES)}')
    if not isinstance(site, InMemory):
        names.discard('starting')  # it needs to see the broker's subscriptions
    async with AsyncExitStack() as stack:
        ways = WAYS if 'everyday' in names else ()
        streams = [await stack.enter_async_context(site.stream()) for _ in ways]
        client = await stack.enter_async_context(
            rbs.streams_client(
                site.uris,
                connection_name='soak',
                connect_timeout=CONFIRM,
                reconnect_timeout=CONFIRM,
                close_timeout=CONFIRM,
            )
        )
        this = Round(run, site, client, seconds, streams)
        if this.corrupting:
            names -= {'starting', 'recreating', 'super', 'groups'}
        wrong = this.wrong
        activities = [make(this) for name, make in ACTIVITIES.items() if name in names]
        for activity in activities:
            await stack.enter_async_context(activity.running())
        consumers = [asyncio.create_task(this.consume(item)) for item in this.readers]
        working = [asyncio.create_task(this.publish(item)) for item in this.logs]
        working += [asyncio.create_task(activity.run()) for activity in activities]
        partitions = [name for activity in activities for name in activity.partitions]
        faults = asyncio.create_task(disturb(this, [*streams, *partitions], 'clocks' in names))
        try:
            async with asyncio.timeout(seconds + END):
                await asyncio.gather(faults, *working)
                for log in this.logs:
                    this.stored[log.stream], _ = await site.stored(log.stream)
                await asyncio.gather(*consumers)
                await asyncio.gather(*(activity.calm() for activity in activities))
                for activity in activities:
                    await activity.check()
        except TimeoutError:
            late = [log.how for log in this.logs if log.stream not in this.stored]
            late += [
                type(activity).__name__
                for activity, task in zip(activities, working[len(this.logs) :], strict=True)
                if not task.done()
            ]
            late += [
                f'{reader.how}: {len(reader.numbers):,} messages'
                for reader, task in zip(this.readers, consumers, strict=True)
                if not task.done()
            ]
            raise ProofError(
                f'still running {END:.0f} s after the last fault: {", ".join(late)}'
            ) from None
        finally:
            for task in (faults, *working, *consumers):
                task.cancel()
            await asyncio.wait([faults, *working, *consumers])
    for log in this.logs:
        wrong += log.wrong(this.stored[log.stream])
        wrong[f'{log.how} confirmed nothing'] += CONFIRMED not in log.states
    wrong[SLOW] += this.longest > 2 * CONFIRM
    for reader in this.readers:
        wrong += reader.wrong
        wrong[f'{reader.how} differ from stored messages'] += reader.numbers != this.wanted(reader)
    found = run.found
    found['calls'] = found.get('calls', 0) + this.calls
    found['longest call, seconds'] = max(
        found.get('longest call, seconds', 0.0), round(this.longest, 3)
    )
    found['stored'] = found.get('stored', 0) + sum(map(len, this.stored.values()))
    found['read'] = found.get('read', 0) + sum(len(item.numbers) for item in this.readers)
    found['errors raised'] = dict(Counter(found.get('errors raised', {})) + this.failures)
    return +wrong


# -- faults


async def disturb(this: Round, streams: Sequence[str], clocks: bool) -> None:
    """Cause random faults until the round is over, then end those that still last."""
    run, site, rnd = this.run, this.site, this.random
    made = Counter(run.found.get('faults injected', {}))
    faults = site.faults(rnd, streams)
    if not streams:
        for name in ('stream unavailable', 'leader moved'):
            faults.pop(name, None)
    if not this.refusing:
        faults.pop('messages refused', None)
    if not this.corrupting:
        faults.pop('chunk corrupted', None)
    clock = time.time
    if clocks:
        faults["client's clock"] = lambda: shift(clock, rnd.uniform(-SHIFT, SHIFT))
    else:
        faults.pop("broker's clock", None)
    try:
        while not this.over():
            await asyncio.sleep(min(this.seconds, rnd.uniform(0.05, 1.0)))
            name = rnd.choice(sorted(faults))
            begin = time.monotonic()
            await faults[name]()
            this.faults.append(Fault(begin, time.monotonic(), name))
            made[name] += 1
    finally:
        time.time = clock
        site.heal()
        run.found['faults injected'] = dict(sorted(made.items()))


async def shift(clock: Callable[[], float], seconds: float) -> None:
    """Move the wall clock of this process, but not the clock of its event loop."""
    time.time = lambda: clock() + seconds


# -- the whole soak


def left() -> dict[str, int]:
    """Count the objects in this process that a client may leave behind."""
    gc.collect()
    kinds = {
        'subscriptions': rbs.Subscription,
        'publishers': rbs.Publisher,
        'clients': rbs.StreamsClient,
    }
    found = dict.fromkeys(kinds, 0)
    found['futures'] = 0
    for item in gc.get_objects():
        for name, cls in kinds.items():
            found[name] += isinstance(item, cls)
        found['futures'] += isinstance(item, asyncio.Future) and not item.done()
    found['tasks'] = len(asyncio.all_tasks())
    found['sockets'] = len(psutil.Process(os.getpid()).net_connections('tcp'))
    return found


async def soak(run: Run, place: Site) -> None:
    """Run rounds, at least two, until the time is over."""
    site = place if isinstance(place, InMemory) else OnCluster(place.broker, place.proxies)
    wrong: Counter[str] = Counter()
    grown: list[int] = []
    more: Counter[str] = Counter()
    seconds = run['seconds']
    begin = time.monotonic()
    await asyncio.to_thread(site.about)  # opens what the soak itself keeps open
    rounds, before = 0, left()
    while ((past := time.monotonic() - begin) < seconds or rounds < 2) and not wrong:
        length = min(ROUNDS[run['on']], seconds / 2, max(1.0, seconds - past))
        wrong += await one_round(run, site, length)
        rounds += 1
        now = left()
        more |= Counter(now) - Counter(before)
        if past < seconds / WARM_UP or rounds <= WARM_ROUNDS:
            grown.clear()
        grown.append(resident())
    growth = max(grown) - grown[0]
    run.found |= {'rounds': rounds, 'memory after the warm-up': grown[0]}
    run.found['memory at the end'] = grown[-1]
    run.check('every call ended in time', not wrong[SLOW], f'{run.found["calls"]:,} calls')
    del wrong[SLOW]
    for what in ('confirmed and lost', 'duplicated', 'out of order', 'refused and stored'):
        run.check(f'no message {what}', not wrong[what], f'{wrong[what]:,}' if wrong[what] else '')
        del wrong[what]
    run.check('no other violation', not wrong, dict(wrong) or '')
    run.check('memory grows by less than 5 MB', growth < GROWTH, f'at most {growth:,} bytes')
    run.check('no task, socket, subscription or future is left', not more, dict(more) or '')
