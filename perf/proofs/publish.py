"""Proofs of publishing."""

import asyncio
from array import array
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import rbfly.streams as rbs

from .faults import LEADER_FAULTS, NODE_FAULTS, Gate, change_leader, plan_cuts, repeat, restart
from .peers import Tap
from .run import ProofError, Run
from .site import CONFIRM, ENTRY_UP, Site, body
from .verify import at_least_once, exactly_once, in_order, tasks_in_order

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
CANCEL_WINDOW = 100  # small: some wait for room when they are cancelled
CANCEL_TASKS = 300
CANCEL_LAST = 0.005  # seconds until the latest cancels


class Sent:
    """When each message was sent and when its send returned, by number of faults so far."""

    def __init__(self, run: Run, total: int, epoch: Callable[[], int]) -> None:
        self.run = run
        self.epoch = epoch
        self.called = array('L', [0]) * total
        self.returned = array('L', [0]) * total

    def call(self, number: int) -> bytes:
        """Note that a message is sent now; its body."""
        self.called[number] = self.epoch()
        return body(number)

    def done(self, number: int) -> None:
        self.returned[number] = self.epoch()
        self.run.done += 1

    def all_done(self) -> None:
        """Note that everything has returned, by one call."""
        self.returned = array('L', [self.epoch()]) * len(self.returned)
        self.run.done = self.run['messages']


async def by_send(publisher: rbs.Publisher, gate: Gate, sent: Sent, tasks: int) -> None:
    """Every message by a `send` of its own, from many tasks."""
    send, take = publisher.send, gate.take

    async def work() -> None:
        while (number := await take()) is not None:
            await send(sent.call(number))
            sent.done(number)

    async with asyncio.TaskGroup() as group:
        for _ in range(tasks):
            group.create_task(work())


async def by_flush(publisher: rbs.PublisherBatchFast, gate: Gate, sent: Sent, tasks: int) -> None:
    """Batches of 1,000, each confirmed before the next."""
    while (first := await gate.take()) is not None:
        numbers = range(first, first + 1 + gate.more(BATCH - 1))
        for number in numbers:
            publisher.batch(sent.call(number))
        await publisher.flush()
        for number in numbers:
            sent.done(number)


async def by_send_many(publisher: Any, gate: Gate, sent: Sent, tasks: int) -> None:
    """All messages by one call; none is known to be confirmed before it returns."""

    async def source() -> AsyncIterator[bytes]:
        while (number := await gate.take()) is not None:
            sent.run.done = number
            yield sent.call(number)

    count = await publisher.send_many(source())
    if count != gate.total:
        raise ProofError(f'send_many returned {count:,}, not {gate.total:,}')
    sent.all_done()


WAYS: dict[str, tuple[type[Any], Callable[..., Awaitable[None]]]] = {
    'send': (rbs.Publisher, by_send),
    'flush': (rbs.PublisherBatchFast, by_flush),
    'send-many': (rbs.Publisher, by_send_many),
}


async def send_all(
    run: Run, publisher: Any, gate: Gate, sent: Sent, fault: Awaitable[None] | None = None
) -> None:
    """Send everything, in the way that was asked for, while faults are made."""
    _, send = WAYS[run['by']]
    async with asyncio.TaskGroup() as group:
        if fault is not None:
            group.create_task(fault)  # type: ignore[arg-type]
        group.create_task(send(publisher, gate, sent, run['tasks']))  # type: ignore[arg-type]


def way(run: Run) -> type[Any]:
    """Class of publisher for the way that was asked for.

    :raises ProofError: there is no such way.
    """
    if run['by'] not in WAYS:
        raise ProofError(f'no way {run["by"]} of publishing; there are {", ".join(WAYS)}')
    cls, _ = WAYS[run['by']]
    if run['by'] == 'send-many' and not hasattr(cls, 'send_many'):
        raise ProofError('this version of the client has no send_many')
    return cls


async def publish(
    run: Run,
    site: Site,
    epoch: Callable[[Gate], int],
    drive: Callable[[Gate, str], Awaitable[None]] | None = None,
) -> None:
    """Publish everything while something happens, and compare what is stored with it.

    :param epoch: number of faults so far, twice; odd during a fault.
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
    through = sum(site.carried('up')), sum(site.carried('down'))
    run.check(
        'the traffic went through the proxies',
        through[0] >= total * ENTRY_UP and through[1] >= total * CONFIRM,
        f'{through[0]:,} bytes up, {through[1]:,} down',
    )
    if run['unnamed']:
        cuts = drive is None

        def allowed(number: int) -> int:
            called, returned = sent.called[number], sent.returned[number]
            if called == returned and not called % 2:
                return 1
            return 1 + (returned - called) // 2 if cuts else total

        wrong = at_least_once(numbers, total, allowed)
        run.check(
            'stored at least once, and once if no fault came before the confirm', not wrong, wrong
        )
        run.found['doubled'] = len(numbers) - len(set(numbers))
    else:
        wrong = exactly_once(numbers, total)
        run.check('stored exactly once', not wrong, wrong)
    wrong = in_order(numbers)
    run.check('stored in order', not wrong, wrong)


async def publish_cuts(run: Run, site: Site) -> None:
    """Messages arrive while the connection is cut at random bytes."""
    total = run['messages']
    proxy = site.proxy
    plan_cuts(run, proxy, {'up': total * ENTRY_UP, 'down': total * CONFIRM})
    await publish(run, site, lambda gate: 2 * proxy.cuts)
    run.check(f'{run["cuts"]:,} cuts', proxy.cuts == run['cuts'], proxy.cuts)


async def publish_restart(run: Run, site: Site) -> None:
    """Messages arrive while the broker is restarted."""
    await publish(run, site, lambda gate: gate.epoch, repeat(run, site, restart))
    check_faults(run, 'restarts')


async def publish_leader(run: Run, site: Site) -> None:
    """Messages arrive while the leader of the stream changes, and go to each new leader."""
    leader = 0
    since = site.carried('up')
    followed: list[str] = []

    def look() -> None:
        node = site.busiest('up', since)
        followed.append('yes' if node == leader else f'to {node + 1}, not {leader + 1}')

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
    run.check('publishing followed the leader', set(followed) == {'yes'}, ', '.join(followed))


async def publish_nodes(run: Run, site: Site) -> None:
    """Messages arrive while nodes of the cluster fail in one way."""
    await publish(run, site, lambda gate: gate.epoch, repeat(run, site, NODE_FAULTS[run['how']]))
    check_faults(run, 'faults')


def check_faults(run: Run, name: str) -> None:
    """All faults that were asked for were made."""
    made = run.found.get(name, [])
    run.check(f'{run["cuts"]:,} {name}', len(made) == run['cuts'], ', '.join(made))


# -- one publisher, many tasks


async def tasks(run: Run, site: Site) -> None:
    """Each of many tasks has its own messages confirmed, and all are stored."""
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
        'every send returned behind the confirm of its own message',
        tap.published == total and not early,
        f'{tap.published:,} seen, {len(early):,} too early',
    )
    wrong = exactly_once(numbers, total)
    run.check('stored exactly once', not wrong, wrong)
    wrong = tasks_in_order(numbers, each)
    run.check('the messages of each task are stored in order', not wrong, wrong)


# -- cancelled sends


async def cancels(run: Run, site: Site) -> None:
    """Sends that are cancelled touch no other message, and their ids are not used again."""
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
    run.check('none is stored twice', len(stored) == len(numbers), f'{len(numbers):,} stored')
    run.check(
        'every other send returned behind the confirm of its own message',
        not early,
        f'{len(early):,} too early' if early else '',
    )
    run.check(
        'no publishing id was used twice',
        tap.published >= len(numbers) and not tap.reused,
        f'{tap.published:,} seen, {len(tap.reused):,} reused',
    )
