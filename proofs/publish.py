"""Proofs of publishing."""

import asyncio
from array import array
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import rbfly.streams as rbs

from .checker import at_least_once, exactly_once, in_order, tasks_in_order
from .fault_injection import (
    LEADER_FAULTS,
    NODE_FAULTS,
    Gate,
    change_leader,
    plan_cuts,
    repeat,
    restart,
)
from .peers import Tap
from .run import ProofError, Run
from .site import CONFIRM, ENTRY_UP, Site, body

__all__ = [
    'cancels',
    'publish_cuts',
    'publish_leader',
    'publish_nodes',
    'publish_restart',
    'send_all',
    'tasks',
]

BATCH = 1_000
NAME = 'proof'
GIVE_UP = 0.2  # share of messages with a timeout or a cancellation
PATIENCE = 0.0005, 0.005, 0.05, 0.5  # seconds until then
CANCEL_WINDOW = 100  # small, so that some sends wait for the window when they are cancelled
CANCEL_TASKS = 300
CANCEL_LAST = 0.005  # maximum seconds until a send is cancelled


class Sent:
    """For each message, the epochs in which `send` was called and in which it returned.

    An epoch is twice the number of faults so far, plus one during a fault.

    :ivar not_sent: messages that the publisher withdrew when their callers gave up.
    :ivar unknown: other messages whose callers gave up.
    """

    def __init__(self, run: Run, total: int, epoch: Callable[[], int]) -> None:
        self.run = run
        self.epoch = epoch
        self.called = array('L', [0]) * total
        self.returned = array('L', [0]) * total
        self.not_sent: set[int] = set()
        self.unknown: set[int] = set()

    def call(self, number: int) -> bytes:
        """Record that a message is being sent; return its body."""
        self.called[number] = self.epoch()
        return body(number)

    def done(self, number: int) -> None:
        self.returned[number] = self.epoch()
        self.run.done += 1

    def given_up(self, number: int, outcome: str | None) -> None:
        """Record that the caller of `send` has given up."""
        (self.not_sent if outcome == 'not_sent' else self.unknown).add(number)
        self.done(number)

    def all_done(self) -> None:
        """Record that a single call has sent all messages."""
        self.returned = array('L', [self.epoch()]) * len(self.returned)
        self.run.done = self.run['messages']


async def by_send(publisher: rbs.Publisher, gate: Gate, sent: Sent, tasks: int) -> None:
    """Send each message with `send`, from many tasks."""
    send, take = publisher.send, gate.take

    async def work() -> None:
        while (number := await take()) is not None:
            await send(sent.call(number))
            sent.done(number)

    async with asyncio.TaskGroup() as group:
        for _ in range(tasks):
            group.create_task(work())


async def by_giving_up(publisher: rbs.Publisher, gate: Gate, sent: Sent, tasks: int) -> None:
    """Like `by_send`, but many sends time out or are cancelled."""
    rnd = sent.run.random

    async def work() -> None:
        while (number := await gate.take()) is not None:
            message = sent.call(number)
            chance, patience = rnd.random(), rnd.choice(PATIENCE)
            try:
                if chance < GIVE_UP / 2:
                    await publisher.send(message, timeout=patience)
                elif chance < GIVE_UP:
                    async with asyncio.timeout(patience):
                        await publisher.send(message)
                else:
                    await publisher.send(message)
            except rbs.ConfirmTimeout as ex:
                sent.given_up(number, ex.outcome)
            except TimeoutError:  # cancelled
                sent.given_up(number, 'unknown')
            else:
                sent.done(number)

    async with asyncio.TaskGroup() as group:
        for _ in range(tasks):
            group.create_task(work())


async def by_flush(publisher: rbs.Publisher, gate: Gate, sent: Sent, tasks: int) -> None:
    """Send batches of 1,000 messages, each confirmed before the next."""
    while (first := await gate.take()) is not None:
        numbers = range(first, first + 1 + gate.more(BATCH - 1))
        for number in numbers:
            publisher.batch(sent.call(number))
        await publisher.flush()
        for number in numbers:
            sent.done(number)


async def by_send_many(publisher: Any, gate: Gate, sent: Sent, tasks: int) -> None:
    """Send all messages with one call, which returns when they are confirmed."""

    async def source() -> AsyncIterator[bytes]:
        while (number := await gate.take()) is not None:
            sent.run.done = number
            yield sent.call(number)

    count = await publisher.send_many(source())
    if count != gate.total:
        raise ProofError(f'send_many returned {count:,} instead of {gate.total:,}')
    sent.all_done()


WAYS: dict[str, tuple[type[Any], Callable[..., Awaitable[None]]]] = {
    'send': (rbs.Publisher, by_send),
    'flush': (rbs.Publisher, by_flush),
    'send-many': (rbs.Publisher, by_send_many),
    'giving-up': (rbs.Publisher, by_giving_up),
}


async def send_all(
    run: Run, publisher: Any, gate: Gate, sent: Sent, fault: Awaitable[None] | None = None
) -> None:
    """Send all messages in the selected way, during faults."""
    _, send = WAYS[run['by']]
    async with asyncio.TaskGroup() as group:
        if fault is not None:
            group.create_task(fault)  # type: ignore[arg-type]
        group.create_task(send(publisher, gate, sent, run['tasks']))  # type: ignore[arg-type]


def way(run: Run) -> type[Any]:
    """The publisher class for the selected way of publishing.

    :raises ProofError: the way is unknown.
    """
    if run['by'] not in WAYS:
        raise ProofError(f'unknown way of publishing --by {run["by"]}; use {", ".join(WAYS)}')
    return WAYS[run['by']][0]


async def publish(
    run: Run,
    site: Site,
    epoch: Callable[[Gate], int],
    drive: Callable[[Gate, str], Awaitable[None]] | None = None,
) -> None:
    """Publish all messages during faults, then check the stored messages.

    :param epoch: returns the epoch, see :class:`Sent`.
    :param drive: causes the faults; None if the proxy cuts connections on its own.
    """
    total = run['messages']
    cls = way(run)
    gate = Gate(total)
    sent = Sent(run, total, lambda: epoch(gate))
    name = None if run['unnamed'] else NAME
    async with site.stream() as stream:
        async with (
            rbs.streams_client(site.uris, connection_name='proof') as client,
            client.publisher(stream, name=name, cls=cls) as publisher,
        ):
            await send_all(run, publisher, gate, sent, drive and drive(gate, stream))
        run.check('every send returned', run.done == total, f'{run.done:,} of {total:,}')
        numbers, _ = await site.stored(stream)
    run.found['stored'] = len(numbers)
    if gave_up := sent.not_sent | sent.unknown:
        run.found |= {
            'not sent': len(sent.not_sent),
            'unknown': len(sent.unknown),
            'unknown and stored': len(sent.unknown.intersection(numbers)),
        }
        stored = len(sent.not_sent.intersection(numbers))
        run.check('no message is stored that was reported as not sent', not stored, stored or '')
    crossed = len(set(numbers))
    up, down = sum(site.carried('up')), sum(site.carried('down'))
    run.check(
        'the traffic went through the proxies',
        up >= crossed * ENTRY_UP and down >= crossed * CONFIRM,
        f'{up:,} bytes up, {down:,} down',
    )
    if run['unnamed']:
        cuts = drive is None

        def allowed(number: int) -> int:
            called, returned = sent.called[number], sent.returned[number]
            if called == returned and not called % 2:
                return 1
            return 1 + (returned - called) // 2 if cuts else total

        wrong = at_least_once(numbers, total, allowed, gave_up)
        run.check(
            'stored at least once, and exactly once if no fault preceded the confirm',
            not wrong,
            wrong,
        )
        run.found['duplicates'] = len(numbers) - len(set(numbers))
    else:
        wrong = at_least_once(numbers, total, lambda number: 1, gave_up)
        run.check('stored exactly once', not wrong, wrong)
    wrong = in_order(numbers)
    run.check('stored in order', not wrong, wrong)


async def publish_cuts(run: Run, site: Site) -> None:
    """Publish while connections are cut at random bytes."""
    total = run['messages']
    proxy = site.proxy
    plan_cuts(run, proxy, {'up': total * ENTRY_UP, 'down': total * CONFIRM})
    await publish(run, site, lambda gate: 2 * proxy.cuts)
    run.check(f'{run["cuts"]:,} cuts', proxy.cuts == run['cuts'], proxy.cuts)


async def publish_restart(run: Run, site: Site) -> None:
    """Publish while the broker is restarted."""
    await publish(run, site, lambda gate: gate.epoch, repeat(run, site, restart))
    check_faults(run, 'restarts')


async def publish_leader(run: Run, site: Site) -> None:
    """Publish while the leader of the stream changes; messages go to each new leader."""
    leader = 0
    since = site.carried('up')
    followed: list[str] = []

    def look() -> None:
        node = site.busiest('up', since)
        followed.append('yes' if node == leader else f'{node + 1} instead of {leader + 1}')

    def drive(gate: Gate, stream: str) -> Awaitable[None]:
        async def fault(number: int) -> None:
            nonlocal leader, since
            if number == 0:
                leader = await site.leader(stream)
            look()
            how = LEADER_FAULTS[number % len(LEADER_FAULTS)]
            leader = await change_leader(run, site, stream, how)
            since = site.carried('up')

        return gate.drive(run, fault)

    await publish(run, site, lambda gate: gate.epoch, drive)
    look()
    check_faults(run, 'leaders')
    run.check('the publisher followed the leader', set(followed) == {'yes'}, ', '.join(followed))


async def publish_nodes(run: Run, site: Site) -> None:
    """Publish while nodes of the cluster fail."""
    await publish(run, site, lambda gate: gate.epoch, repeat(run, site, NODE_FAULTS[run['how']]))
    check_faults(run, 'faults')


def check_faults(run: Run, name: str) -> None:
    """Check that all requested faults happened."""
    done = run.found.get(name, [])
    run.check(f'{run["cuts"]:,} {name}', len(done) == run['cuts'], ', '.join(done))


# -- one publisher, many tasks


async def tasks(run: Run, site: Site) -> None:
    """In each of many tasks, `send` returns after the confirm of its own message."""
    each = run['messages'] // run['tasks']
    total = each * run['tasks']
    tap = Tap(site.proxy, total)
    early: list[int] = []

    async with site.stream() as stream:
        async with (
            rbs.streams_client(site.uris, connection_name='proof') as client,
            client.publisher(stream) as publisher,
            asyncio.TaskGroup() as group,
        ):

            async def work(task: int) -> None:
                for number in range(task * each, (task + 1) * each):
                    await publisher.send(body(number))
                    run.done += 1
                    if not tap.confirmed[number]:
                        early.append(number)

            for task in range(run['tasks']):
                group.create_task(work(task))
        run.check('every send returned', run.done == total, f'{run.done:,} of {total:,}')
        numbers, _ = await site.stored(stream)
    run.check(
        'every send returned after the confirm of its own message',
        tap.published == total and not early,
        f'{tap.published:,} published, {len(early):,} returned too early',
    )
    wrong = exactly_once(numbers, total)
    run.check('stored exactly once', not wrong, wrong)
    wrong = tasks_in_order(numbers, each)
    run.check("each task's messages are stored in order", not wrong, wrong)


# -- cancelled sends


async def cancels(run: Run, site: Site) -> None:
    """Cancelled sends do not affect other messages, and their publishing ids are not reused."""
    rnd = run.random
    wanted, least = run['cuts'], run['messages']
    tap = Tap(site.proxy, 10 * (wanted + least))
    cancelled: set[int] = set()
    confirmed: set[int] = set()
    early: list[int] = []
    count = 0
    moments = {'after turns': 0, 'after a time': 0}

    async with site.stream() as stream:
        async with (
            rbs.streams_client(site.uris, connection_name='proof') as client,
            client.publisher(stream, name=NAME, max_unconfirmed=CANCEL_WINDOW) as publisher,
        ):
            loop = asyncio.get_running_loop()

            async def work() -> None:
                nonlocal count
                while len(cancelled) < wanted or count < least:
                    number = count
                    count += 1
                    task = asyncio.create_task(publisher.send(body(number)))
                    how = ''
                    if len(cancelled) < wanted:
                        how = rnd.choice(('', 'after turns', 'after a time'))
                    if how == 'after turns':
                        for _ in range(rnd.randrange(1, 5)):
                            await asyncio.sleep(0)
                        task.cancel()
                    elif how:
                        loop.call_later(rnd.random() * CANCEL_LAST, task.cancel)
                    await asyncio.wait([task])
                    if task.cancelled():
                        cancelled.add(number)
                        moments[how] += 1
                    else:
                        await task
                        confirmed.add(number)
                        if not tap.confirmed[number]:
                            early.append(number)
                    run.done += 1

            async with asyncio.TaskGroup() as group:
                for _ in range(CANCEL_TASKS):
                    group.create_task(work())
        numbers, _ = await site.stored(stream)
    run.found |= {
        'sent': count,
        'cancelled': len(cancelled),
        **{f'cancelled {how}': number for how, number in moments.items()},
        'cancelled and stored': len(cancelled.intersection(numbers)),
    }
    run.check(f'{wanted:,} sends cancelled', len(cancelled) >= wanted, f'{len(cancelled):,}')
    stored = set(numbers)
    lost = confirmed - stored
    run.check('no other message is lost', not lost, f'{len(lost):,} lost' if lost else '')
    run.check('no message is stored twice', len(stored) == len(numbers), f'{len(numbers):,} stored')
    run.check(
        'every other send returned after the confirm of its own message',
        not early,
        f'{len(early):,} returned too early' if early else '',
    )
    run.check(
        'no publishing id was reused',
        tap.published >= len(numbers) and not tap.reused,
        f'{tap.published:,} published, {len(tap.reused):,} reused',
    )
