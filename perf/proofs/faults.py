"""Faults at set moments: cuts at byte positions, restarts and leader changes between messages."""

import asyncio
import contextlib
from collections import deque
from collections.abc import Awaitable, Callable

from brokers.proxy import Direction, Proxy

from .run import ProofError, Run
from .site import Site

__all__ = [
    'LEADER_FAULTS',
    'NODE_FAULTS',
    'Gate',
    'change_leader',
    'lose_node',
    'move_leader',
    'note',
    'pause_node',
    'plan_cuts',
    'repeat',
    'restart',
]

ELECTED = 15.0  # seconds for another leader while the node of the last one is away
MOVES = 5
PAUSE = 2.0, 15.0  # seconds
MOVED = 10.0  # seconds: the node that is preferred may not be the one that is chosen
SYNC = 'lists:foreach(fun dets:sync/1, dets:all()).'
Fault = Callable[[Run, Site, str, int], Awaitable[None]]
TRICKLE = 0.001  # seconds for a message while a fault takes longer than there are messages for


def plan_cuts(run: Run, proxy: Proxy, totals: dict[Direction, int]) -> None:
    """Plan cuts at random byte positions; one in five hits the reconnection behind another.

    :param totals: bytes that will be forwarded at least, by direction.
    """
    rnd = run.random
    second = run['cuts'] // 5
    first = run['cuts'] - second
    for _ in range(first):
        direction = rnd.choice(sorted(totals))
        position = rnd.randrange(1, int(totals[direction] * 0.95))
        proxy.cut_after(position, direction, reset=rnd.random() < 0.5)
    plan = {i: rnd.randrange(1, 400) for i in rnd.sample(range(1, first + 1), second)}

    def follow() -> None:
        if size := plan.pop(proxy.cuts, 0):
            proxy.cut_after(size, 'up', reset=bool(size % 2))

    proxy.on_cut = follow


class Gate:
    """Says how many messages may go by now, so that faults fall into traffic, not behind it.

    Messages flow freely up to the moment of a fault and while it is being made; if that takes
    longer than there are messages for, they trickle.

    :ivar limit: messages that may go by now.
    :ivar faults: faults so far.
    :ivar epoch: goes up when a fault begins and when it has ended; odd during a fault.
    """

    def __init__(self, total: int) -> None:
        self.total = total
        self.limit = total
        self.next = 0
        self.faults = 0
        self.epoch = 0
        self._waiting: deque[asyncio.Future[None]] = deque()

    async def take(self) -> int | None:
        """Number of the next message to be sent; None if there is none.

        Nothing is awaited behind its being taken: messages go in the order of numbers.
        """
        while self.next >= self.limit:
            if self.next >= self.total:
                return None
            future = asyncio.get_running_loop().create_future()
            self._waiting.append(future)
            await future
        number = self.next
        self.next = number + 1
        return number

    def more(self, most: int) -> int:
        """Take the numbers behind the last one, too, as many as may go by now; how many."""
        count = max(min(most, self.limit - self.next), 0)
        self.next += count
        return count

    def _raise(self, limit: int) -> None:
        self.limit = limit
        free = self.total if limit == self.total else limit - self.next
        while self._waiting and free > 0:
            future = self._waiting.popleft()
            if not future.done():
                future.set_result(None)
                free -= 1

    async def drive(self, run: Run, make: Callable[[int], Awaitable[None]]) -> None:
        """Make faults at random moments, by number of messages that came through."""
        count = run['cuts']
        part = self.total // (count + 1)
        moments = [part * (i + 1) - run.random.randrange(part // 4) for i in range(count)]
        moments.append(self.total)
        self._raise(moments[0])
        for i in range(count):
            end = moments[i + 1]
            self._raise((moments[i] + end) // 2)
            while run.done < moments[i]:  # noqa: ASYNC110 - an event would cost every message
                await asyncio.sleep(TRICKLE)
            self.epoch += 1
            fault = asyncio.ensure_future(make(i))
            try:
                while not fault.done():
                    await asyncio.wait([fault], timeout=TRICKLE)
                    if self.next >= self.limit < end - 1:
                        self._raise(self.limit + 1)
            finally:
                fault.cancel()
            await fault
            self.epoch += 1
            self.faults += 1
            self._raise(end)
        self._raise(self.total)


def repeat(run: Run, site: Site, fault: Fault) -> Callable[[Gate, str], Awaitable[None]]:
    """Make a fault on the stream of a proof, again and again."""
    return lambda gate, stream: gate.drive(run, lambda number: fault(run, site, stream, number))


async def restart(run: Run, site: Site, stream: str, number: int) -> None:
    """Stop the broker, or kill it, and start it again."""
    how = run.random.choice(('stop', 'kill'))
    note(run, 'restarts', how)
    await lose_node(site, 0, how)


async def pause(run: Run, site: Site, stream: str, number: int) -> None:
    """Pause the leader's node."""
    node = await site.leader(stream)
    seconds = run.random.uniform(*PAUSE)
    await pause_node(site, node, seconds)
    note(run, 'faults', f'{node + 1} paused for {seconds:.0f} s')
    await site.leader(stream, replicated=True)


async def partition(run: Run, site: Site, stream: str, number: int) -> None:
    """Part the leader's node from the others, and join them again."""
    node = await site.leader(stream, replicated=True)
    seconds = run.random.uniform(*PAUSE)
    try:
        await asyncio.to_thread(site.broker.isolate_node, node)
        await asyncio.sleep(seconds)
    finally:
        await asyncio.to_thread(site.broker.join_node, node)
    # Mnesia, which 4.0 has, does not join what was parted before one of the two starts again.
    how = 'alone'
    if site.broker.release.startswith('4.0'):
        await asyncio.to_thread(site.broker.restart_node, node)
        how = 'alone, then started again'
    note(run, 'faults', f'{node + 1} for {seconds:.0f} s {how}')
    await site.leader(stream, replicated=True)


async def roll(run: Run, site: Site, stream: str, number: int) -> None:
    """Stop one node after the other and start it again, as for an upgrade."""
    node = number % len(site.proxies)
    await lose_node(site, node, 'stop')
    note(run, 'faults', f'{node + 1} stopped and started')
    await site.leader(stream, replicated=True)


NODE_FAULTS = {'pause': pause, 'partition': partition, 'roll': roll}
LEADER_FAULTS = ('kill', 'move', 'stop')


async def change_leader(run: Run, site: Site, stream: str, how: str) -> int:
    """Take the leader of a stream away, until all replicas are back; number of the next leader.

    :param how: `kill` its node or `stop` it and start it again, or `move` it by a restart of the
        stream.
    """
    before = after = await site.leader(stream, replicated=True)
    done = how
    if how != 'move':
        await stop_node(site, before, how)
        # The broker may elect none while the node is away, and the same one when it is back.
        with contextlib.suppress(ProofError):
            await site.leader(stream, not_node=before, within=ELECTED)
        await asyncio.to_thread(site.broker.start_node, before)
        after = await site.leader(stream, replicated=True)
    if after == before:
        nodes = range(len(site.proxies))
        other = run.random.choice([node for node in nodes if node != before])
        await move_leader(site, stream, before, other)
        after = await site.leader(stream, replicated=True, not_node=before)
        done = how if how == 'move' else f'{how} and move'
    note(run, 'leaders', f'{done}: {before + 1} -> {after + 1}')
    return after


async def move_leader(site: Site, stream: str, before: int, after: int) -> None:
    """Restart a stream until another node leads it."""
    args = 'restart_stream', stream, '--preferred-leader-node', site.broker.nodes[after].name
    for left in reversed(range(MOVES)):
        await asyncio.to_thread(site.broker.tool, 'rabbitmq-streams', *args)
        try:
            await site.leader(stream, not_node=before, within=MOVED)
        except ProofError:
            if not left:
                raise
        else:
            return


async def stop_node(site: Site, node: int, how: str) -> None:
    """Kill a node, or stop it."""
    broker = site.broker
    if how == 'kill':
        # Of a node younger than three minutes not everything is on disk: it would come back
        # without its vote on who leads a stream.
        await asyncio.to_thread(lambda: broker.ctl('eval', SYNC, node=node))
        await asyncio.to_thread(broker.kill_node, node)
    else:
        await asyncio.to_thread(broker.stop_node, node)


async def pause_node(site: Site, node: int, seconds: float) -> None:
    """Stop the process of a node in its tracks, and let it go on."""
    try:
        await asyncio.to_thread(site.broker.pause_node, node)
        await asyncio.sleep(seconds)
    finally:
        await asyncio.to_thread(site.broker.resume_node, node)


async def lose_node(site: Site, node: int, how: str) -> None:
    """Kill a node, or stop it, and start it again."""
    await stop_node(site, node, how)
    await asyncio.to_thread(site.broker.start_node, node)


def note(run: Run, name: str, what: str) -> None:
    run.found.setdefault(name, []).append(what)
