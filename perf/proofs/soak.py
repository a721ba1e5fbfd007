"""Proof of staying well: every way of publishing and of consuming at once, through random faults.

It goes in rounds, each with new streams: publishers and subscriptions work while faults are made;
then all of it comes to its end and is compared with what the broker has stored.
"""

import asyncio
import gc
import os
import time
from array import array
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from functools import partial
from itertools import pairwise
from multiprocessing import get_context
from multiprocessing.managers import BaseManager
from typing import Any

import psutil  # type: ignore[import-untyped,unused-ignore]

import rbfly.streams as rbs
from rbfly.error import RbFlyError
from rbfly.testing import StreamBroker

from .faults import lose_node, move_leader
from .memory import GROWTH, resident
from .run import ProofError, Run
from .site import Site, body

__all__ = ['in_memory', 'soak']

ROUNDS = {'memory': 10.0, 'rabbitmq': 60.0}  # seconds of a round
MESSAGES = 30_000  # of a publisher in a round, at most
CONFIRM = 20.0  # seconds within which a call ends, one way or the other
END = 180.0  # and everything, when the faults are over
AGAIN = 0.05  # seconds until what has failed is begun anew
POLL = 0.5
AT_ONCE = 5_000  # messages, then a subscription that tracks its offset is made anew
WARM_UP = 10  # the part of the time before memory is looked at: one in ten
UNSENT, UNKNOWN, CONFIRMED, REFUSED = range(4)


# -- what is published


class Log:
    """What became of the messages of one publisher.

    :ivar stream: its stream, where it is alone.
    :ivar states: of each message.
    """

    def __init__(self, how: str, stream: str, named: bool) -> None:
        self.how = how
        self.stream = stream
        self.named = named
        self.states = bytearray(MESSAGES)
        self.next = 0

    def take(self, count: int) -> range:
        """The numbers of the next messages; nothing is known of them until they are noted."""
        found = range(self.next, min(self.next + count, MESSAGES))
        self.next = found.stop
        for number in found:
            self.states[number] = UNKNOWN
        return found

    def note(self, numbers: Sequence[int], state: int) -> None:
        for number in numbers:
            self.states[number] = state

    def wrong(self, stored: Sequence[int]) -> Counter[str]:
        """What does not agree with what is stored, and how often."""
        found: Counter[str] = Counter()
        counts = Counter(stored)
        found['confirmed and lost'] = sum(
            state == CONFIRMED and not counts[number] for number, state in enumerate(self.states)
        )
        found['refused and stored'] = sum(
            state == REFUSED and counts[number] > 0 for number, state in enumerate(self.states)
        )
        found['never sent'] = sum(self.states[number] == UNSENT for number in counts)
        if self.named:
            found['doubled'] = len(stored) - len(counts)
            found['out of order'] = sum(a > b for a, b in pairwise(stored))
        return +found


Send = Callable[[Any, Log], Awaitable[bool]]


async def by_send(publisher: rbs.Publisher, log: Log) -> bool:
    """By many tasks; true if the publisher can be used further."""
    numbers = log.take(30)
    sends = (publisher.send(body(i), timeout=CONFIRM) for i in numbers)
    well = True
    for number, error in zip(
        numbers, await asyncio.gather(*sends, return_exceptions=True), strict=True
    ):
        if error is None:
            log.note([number], CONFIRMED)
        elif isinstance(error, rbs.PublishError):
            log.note([number], REFUSED)
        elif isinstance(error, RbFlyError):
            well = False
        else:
            raise error
    return well


async def by_flush(publisher: rbs.PublisherBatchFast, log: Log) -> bool:
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
    """Filter value of a message: whether its number is even or odd."""
    assert isinstance(ctx.body, bytes)
    return 'odd' if int(ctx.body) % 2 else 'even'


WAYS: dict[str, tuple[Send, dict[str, Any]]] = {
    'send': (by_send, {'name': 'send'}),
    'flush': (by_flush, {'name': 'flush', 'cls': rbs.PublisherBatchFast}),
    'send-many': (by_send_many, {'name': 'send-many'}),
    'sub-entries': (by_send_many, {'sub_entry_size': 50, 'compression': 'gzip'}),
    'filtered': (by_send_many, {'name': 'filtered', 'filter_extract': kind}),
}


# -- what is consumed


class Reader:
    """A subscription that reads all of a stream, begun anew whenever it fails.

    :ivar numbers: of the messages that came.
    :ivar wrong: what came and should not have.
    """

    def __init__(self, how: str, log: Log) -> None:
        self.how = how
        self.stream = log.stream
        self.numbers = array('q')
        self.wrong: Counter[str] = Counter()
        self.next = 0  # offset

    def options(self) -> dict[str, Any]:
        if self.how == 'filter':
            return {
                'offset': rbs.Offset.offset(self.next),
                'filter': rbs.MessageFilter(kind, {'even'}),
            }
        if self.how == 'tracking':
            tracking = rbs.OffsetTracking('soak', every=500)
            return {'offset': rbs.Offset.reference('soak'), 'auto_offset': tracking}
        return {'offset': rbs.Offset.offset(self.next)}

    def come(self, offset: int, data: Any) -> None:
        """A message has come."""
        if self.how == 'tracking' and offset < self.next:
            return  # behind the offset that was stored last
        if offset < self.next:
            self.wrong['offset out of turn'] += 1
        self.next = offset + 1
        self.numbers.append(int(data))

    async def read(self, subscription: Any, run: Run, more: Callable[[], bool]) -> None:
        left = AT_ONCE
        while more():
            try:
                if self.how == 'batches':
                    async for batch in subscription.batches():
                        for offset, data in zip(batch.offsets, batch, strict=True):
                            self.come(offset, data)
                        run.done += len(batch)
                elif self.how == 'contexts':
                    async for ctx in subscription.messages():
                        self.come(ctx.stream_offset, ctx.body)
                        run.done += 1
                else:
                    async for data in subscription:
                        self.come(rbs.get_message_ctx().stream_offset, data)
                        run.done += 1
                        left -= 1
                        if self.how == 'tracking' and left <= 0:
                            return
            except rbs.MessageTimeout:
                pass


# -- one round


class Round:
    """Publishers and subscriptions of one round, and what was wrong with them."""

    def __init__(self, run: Run, seconds: float, streams: Sequence[str]) -> None:
        self.run = run
        self.seconds = seconds
        self.logs = [
            Log(how, stream, 'name' in options)
            for (how, (_, options)), stream in zip(WAYS.items(), streams, strict=True)
        ]
        by_way = {log.how: log for log in self.logs}
        readers = ('bodies', 'contexts', 'batches', 'bodies', 'bodies')
        self.readers = [Reader(how, log) for how, log in zip(readers, self.logs, strict=True)]
        self.readers += [
            Reader('tracking', by_way['sub-entries']),
            Reader('filter', by_way['filtered']),
            Reader('batches', by_way['send']),
        ]
        self.stored: dict[str, array[int]] = {}  # numbers in each stream, in the end
        self.failures: Counter[str] = Counter()
        self.calls = 0

    def wanted(self, reader: Reader) -> 'array[int] | None':
        """What it is to read; None if that is not known yet."""
        stored = self.stored.get(reader.stream)
        if stored is None or reader.how != 'filter':
            return stored
        return array('q', (number for number in stored if number % 2 == 0))

    async def publish(self, client: rbs.StreamsClient, log: Log) -> None:
        """Publish until the round is over, as fast as it goes by, and not faster."""
        loop = asyncio.get_running_loop()
        begin = loop.time()
        send, options = WAYS[log.how]
        while (past := loop.time() - begin) < self.seconds:
            try:
                async with client.publisher(log.stream, **options) as publisher:
                    well = True
                    while well and (past := loop.time() - begin) < self.seconds:
                        if log.next >= MESSAGES * past / self.seconds:
                            await asyncio.sleep(0.005)
                            continue
                        self.calls += 1
                        before = log.next
                        well = await send(publisher, log)
                        self.run.done += log.next - before
            except RbFlyError as ex:
                self.failures[type(ex).__name__] += 1
                await asyncio.sleep(AGAIN)

    async def consume(self, client: rbs.StreamsClient, reader: Reader) -> None:
        """Read until everything was read."""

        def more() -> bool:
            wanted = self.wanted(reader)
            return wanted is None or len(reader.numbers) < len(wanted)

        while more():
            try:
                async with client.subscribe(
                    reader.stream, timeout=POLL, **reader.options()
                ) as subscription:
                    await reader.read(subscription, self.run, more)
            except RbFlyError as ex:
                self.failures[type(ex).__name__] += 1
                await asyncio.sleep(AGAIN)


async def one_round(run: Run, site: Site, seconds: float) -> Counter[str]:
    """One round; what was wrong."""
    wrong: Counter[str] = Counter()
    async with AsyncExitStack() as stack:
        streams = [await stack.enter_async_context(site.stream()) for _ in WAYS]
        this = Round(run, seconds, streams)
        client = await stack.enter_async_context(
            rbs.streams_client(
                site.uris,
                connection_name='soak',
                connect_timeout=CONFIRM,
                reconnect_timeout=CONFIRM,
                close_timeout=CONFIRM,
            )
        )
        consumers = [asyncio.create_task(this.consume(client, item)) for item in this.readers]
        publishers = [asyncio.create_task(this.publish(client, item)) for item in this.logs]
        faults = asyncio.create_task(disturb(run, site, streams, seconds))
        try:
            async with asyncio.timeout(seconds + END):
                await asyncio.gather(faults, *publishers)
                for log in this.logs:
                    this.stored[log.stream] = await read_all(site, client, log)
                await asyncio.gather(*consumers)
        finally:
            for task in (faults, *publishers, *consumers):
                task.cancel()
            await asyncio.wait([faults, *publishers, *consumers])
    for log in this.logs:
        wrong += log.wrong(this.stored[log.stream])
    for reader in this.readers:
        wrong += reader.wrong
        wrong[f'read by {reader.how} and not as stored'] += reader.numbers != this.wanted(reader)
    found = run.found
    found['calls'] = found.get('calls', 0) + this.calls
    found['stored'] = found.get('stored', 0) + sum(map(len, this.stored.values()))
    found['read'] = found.get('read', 0) + sum(len(item.numbers) for item in this.readers)
    found['failures that were told'] = dict(
        Counter(found.get('failures that were told', {})) + this.failures
    )
    return +wrong


async def read_all(site: Site, client: rbs.StreamsClient, log: Log) -> 'array[int]':
    """Numbers that are stored, read without this client where that can read them."""
    if log.how != 'sub-entries':
        numbers, _ = await site.stored(log.stream)
        return numbers
    found = array('q')
    options: dict[str, Any] = {'offset': rbs.Offset.FIRST, 'timeout': 2.0}
    async with client.subscribe(log.stream, **options) as subscription:
        with suppress(rbs.MessageTimeout):
            async for data in subscription:
                assert isinstance(data, bytes)
                found.append(int(data))
    return found


# -- faults


async def disturb(run: Run, site: Site, streams: Sequence[str], seconds: float) -> None:
    """Faults of every kind, at random, until the round is over; then all is well."""
    rnd = run.random
    made = Counter(run.found.get('faults', {}))
    faults: dict[str, Callable[[], Awaitable[None]]] = site.faults(rnd, streams)  # type: ignore[attr-defined]
    limit = time.monotonic() + seconds
    try:
        while (left := limit - time.monotonic()) > 0:
            await asyncio.sleep(min(left, rnd.uniform(0.05, 1.0)))
            name = rnd.choice(sorted(faults))
            await faults[name]()
            made[name] += 1
    finally:
        site.heal()  # type: ignore[attr-defined]
        run.found['faults'] = dict(sorted(made.items()))


class OnCluster(Site):
    """RabbitMQ, and a proxy before each node."""

    def faults(self, rnd: Any, streams: Sequence[str]) -> dict[str, Callable[[], Awaitable[None]]]:
        proxies = self.proxies

        async def cut() -> None:
            for proxy in proxies:
                proxy.cut(reset=rnd.random() < 0.5)

        async def cut_at_a_byte() -> None:
            rnd.choice(proxies).cut_after(rnd.randrange(1, 100_000), rnd.choice(('up', 'down')))

        async def refuse() -> None:
            for proxy in proxies:
                proxy.refuse()
                proxy.cut()
            await asyncio.sleep(rnd.uniform(0, 1))
            for proxy in proxies:
                proxy.accept()

        async def stall() -> None:
            for proxy in proxies:
                proxy.stall(*rnd.choice((('up',), ('down',), ('up', 'down'))))
            await asyncio.sleep(rnd.uniform(0, 2))
            for proxy in proxies:
                proxy.resume()

        async def slow(name: str, value: object) -> None:
            for proxy in proxies:
                setattr(proxy, name, value)
            await asyncio.sleep(rnd.uniform(0, 2))
            for proxy in proxies:
                setattr(proxy, name, type(value)())

        async def lose(how: str) -> None:
            node = rnd.randrange(len(proxies))
            await lose_node(self, node, how)
            for stream in streams:
                await self.leader(stream, replicated=True)

        async def pause() -> None:
            node = rnd.randrange(len(proxies))
            await asyncio.to_thread(self.broker.pause_node, node)
            await asyncio.sleep(rnd.uniform(0, 5))
            await asyncio.to_thread(self.broker.resume_node, node)

        async def move() -> None:
            stream = rnd.choice(streams)
            before = await self.leader(stream, replicated=True)
            other = rnd.choice([node for node in range(len(proxies)) if node != before])
            with suppress(ProofError):
                await move_leader(self, stream, before, other)

        return {
            'connections cut': cut,
            'cut at a byte': cut_at_a_byte,
            'connections refused': refuse,
            'stalled': stall,
            'delayed': lambda: slow('delay', rnd.uniform(0, 0.05)),
            'split': lambda: slow('split', True),
            'node killed': lambda: lose('kill'),
            'node stopped': lambda: lose('stop'),
            'node paused': pause,
            'leader moved': move,
        }

    def heal(self) -> None:
        for proxy in self.proxies:
            proxy.resume()


class InMemory(Site):
    """The broker in memory, in a process of its own: what it stores is not the client's memory."""

    def __init__(self, broker: Any, uris: Sequence[str]) -> None:
        super().__init__(broker, ())
        self._uris = list(uris)

    @property
    def uris(self) -> list[str]:
        return self._uris

    @property
    def direct(self) -> list[str]:
        return self._uris

    async def leader(self, stream: str, **_: Any) -> int:
        found: int = await asyncio.to_thread(self.broker.leader, stream)  # type: ignore[attr-defined]
        return found

    def faults(self, rnd: Any, streams: Sequence[str]) -> dict[str, Callable[[], Awaitable[None]]]:
        broker: Any = self.broker

        async def call(name: str, *args: Any) -> None:
            await asyncio.to_thread(getattr(broker, name), *args)

        async def once(name: str, *args: Any) -> None:
            await call(name, *args)

        async def awhile(name: str, *args: Any, cut: bool = False) -> None:
            await call(name, *args)
            if cut:
                await call('cut')
            await asyncio.sleep(rnd.uniform(0, 1))
            await call('heal')

        async def lose_confirms() -> None:
            await call('lose_confirms', rnd.randrange(1, 500))
            await asyncio.sleep(rnd.uniform(0, 1))
            await call('cut')  # which is how a client finds out
            await call('heal')

        async def stop_node() -> None:
            node = rnd.randrange(len(self._uris))
            await call('stop_node', node)
            await asyncio.sleep(rnd.uniform(0, 1))
            await call('start_node', node)

        def stream() -> str:
            return str(rnd.choice(streams))

        return {
            'connections cut': partial(once, 'cut'),
            'cut at a byte': lambda: once('cut', rnd.randrange(1, 100_000)),
            'connections refused': partial(awhile, 'refuse', cut=True),
            'stalled': partial(awhile, 'stall'),
            'delayed': lambda: awhile('delay', rnd.uniform(0, 0.05)),
            'split': lambda: awhile('split', rnd.randrange(20, 1000)),
            'silent': partial(awhile, 'silence'),
            'authentication refused': partial(awhile, 'fail_authentication', cut=True),
            'messages refused': lambda: once('publish_error', 0x11, rnd.randrange(1, 100)),
            'confirms withheld': partial(awhile, 'withhold_confirms'),
            'confirms lost': lose_confirms,
            'confirms out of order': partial(awhile, 'shuffle_confirms'),
            'chunk with a wrong CRC': partial(once, 'damage_chunk'),
            'chunk that is damaged': partial(once, 'corrupt_chunk'),
            'publishers and subscriptions gone': lambda: once('metadata_update', stream()),
            'connections closed': partial(once, 'close_connections'),
            'leader moved': lambda: once('move_leader', stream(), rnd.randrange(len(self._uris))),
            'node stopped': stop_node,
        }

    def heal(self) -> None:
        self.broker.heal()  # type: ignore[attr-defined]


class Memory(StreamBroker):
    """The broker, as another process reaches it."""

    def where(self) -> list[str]:
        return self.uris


class Manager(BaseManager):
    Memory: Callable[..., Any]


Manager.register('Memory', Memory)


@asynccontextmanager
async def in_memory(nodes: int, seed: int) -> AsyncIterator[Site]:
    """The broker in memory, in a process of its own."""
    manager = Manager(ctx=get_context('spawn'))
    await asyncio.to_thread(manager.start)
    try:
        broker = manager.Memory(nodes=nodes, seed=seed)
        broker.start()
        yield InMemory(broker, broker.where())
        broker.stop()
    finally:
        await asyncio.to_thread(manager.shutdown)


# -- all of it


def left() -> dict[str, int]:
    """What there is in this process that a client may leave behind."""
    gc.collect()
    kinds = {
        'subscriptions': rbs.Subscription,
        'publishers': rbs.Publisher,
        'clients': rbs.StreamsClient,
        'futures': asyncio.Future,
    }
    found = dict.fromkeys(kinds, 0)
    for item in gc.get_objects():
        for name, cls in kinds.items():
            found[name] += isinstance(item, cls)
    found['tasks'] = len(asyncio.all_tasks())
    found['sockets'] = len(psutil.Process(os.getpid()).net_connections('tcp'))
    return found


async def soak(run: Run, site: Site) -> None:
    """Rounds until the time is over."""
    if not isinstance(site, InMemory):
        site = OnCluster(site.broker, site.proxies)
    wrong: Counter[str] = Counter()
    grown: list[int] = []
    more: Counter[str] = Counter()
    seconds = run['seconds']
    begin = time.monotonic()
    rounds, before = 0, None
    while (past := time.monotonic() - begin) < seconds and not wrong:
        wrong += await one_round(run, site, min(ROUNDS[run['on']], max(1.0, seconds - past)))
        rounds += 1
        now = left()
        if before is None:  # what one round leaves: caches
            before = now
        more |= Counter(now) - Counter(before)
        if time.monotonic() - begin >= seconds / WARM_UP:
            grown.append(resident())
    growth = max(grown) - grown[0]
    run.found |= {'rounds': rounds, 'memory behind the warm-up': grown[0]}
    run.found['memory at the end'] = grown[-1]
    run.check('every call ended', True, f'{run.found["calls"]:,}')
    for what in ('confirmed and lost', 'doubled', 'out of order', 'refused and stored'):
        run.check(f'nothing {what}', not wrong[what], f'{wrong[what]:,}' if wrong[what] else '')
        del wrong[what]
    run.check('read as it is stored, in every way', not wrong, dict(wrong) if wrong else '')
    run.check('memory grows by less than 5 MB', growth < GROWTH, f'{growth:,} bytes at most')
    run.check('no task, socket, subscription or future is left', not more, dict(more) or '')
