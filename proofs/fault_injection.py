"""Faults at planned moments: cuts at byte positions, restarts and leader changes at messages."""

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

ELECTED = 15.0  # seconds to elect a new leader while the old leader's node is down
MOVES = 5  # attempts to move a leader
PAUSE = 2.0, 15.0  # minimum and maximum seconds
MOVED = 10.0  # seconds until an attempt to move a leader has failed
SYNC = 'lists:foreach(fun dets:sync/1, dets:all()).'
Fault = Callable[[Run, Site, str, int], Awaitable[None]]
TRICKLE = 0.001  # seconds per message while a fault lasts longer than the messages planned for it


def plan_cuts(run: Run, proxy: Proxy, totals: dict[Direction, int]) -> None:
    """Plan cuts at random byte positions, of which one in five hits the reconnect after another.

    :param totals: minimum number of bytes that will be forwarded, by direction.
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
    """Limits how many messages may be sent so far, so that messages flow during each fault.

    Messages flow freely until a fault and for a part of it; if it lasts longer, they trickle.

    :ivar limit: number of messages that may be sent so far.
    :ivar faults: number of faults so far.
    :ivar epoch: increases when a fault starts and when it ends, so it is odd during a fault.
    """

    def __init__(self, total: int) -> None:
        self.total = total
        self.limit = total
        self.next = 0
        self.faults = 0
        self.epoch = 0
        self._waiting: deque[asyncio.Future[None]] = deque()

    async def take(self) -> int | None:
        """The number of the next message to send, or None after the last.

        Messages are sent in order if the caller does not await anything before sending.
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
        """Take up to `most` further numbers, as far as the limit allows; return how many."""
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
        """Cause faults at random numbers of completed messages."""
        count = run['cuts']
        part = self.total // (count + 1)
        moments = [part * (i + 1) - run.random.randrange(part // 4) for i in range(count)]
        moments.append(self.total)
        self._raise(moments[0])
        for i in range(count):
            end = moments[i + 1]
            self._raise((moments[i] + end) // 2)
            while run.done < moments[i]:  # noqa: ASYNC110 - an event would slow down every message
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
    """Cause the same kind of fault repeatedly."""
    return lambda gate, stream: gate.drive(run, lambda number: fault(run, site, stream, number))


async def restart(run: Run, site: Site, stream: str, number: int) -> None:
    """Stop or kill the broker, and restart it."""
    how = run.random.choice(('stop', 'kill'))
    note(run, 'restarts', how)
    await lose_node(site, 0, how)


async def pause(run: Run, site: Site, stream: str, number: int) -> None:
    """Pause the leader's node for some seconds."""
    node = await site.leader(stream)
    seconds = run.random.uniform(*PAUSE)
    await pause_node(site, node, seconds)
    note(run, 'faults', f'{node + 1} paused for {seconds:.0f} s')
    await site.leader(stream, replicated=True)


async def partition(run: Run, site: Site, stream: str, number: int) -> None:
    """Partition the leader's node from the others, and rejoin it."""
    node = await site.leader(stream, replicated=True)
    seconds = run.random.uniform(*PAUSE)
    try:
        await asyncio.to_thread(site.broker.isolate_node, node)
        await asyncio.sleep(seconds)
    finally:
        await asyncio.to_thread(site.broker.join_node, node)
    # RabbitMQ 4.0 uses Mnesia, which does not heal a partition before one side restarts.
    how = ''
    if site.broker.release.startswith('4.0'):
        await asyncio.to_thread(site.broker.restart_node, node)
        how = ', then restarted'
    note(run, 'faults', f'{node + 1} partitioned for {seconds:.0f} s{how}')
    await site.leader(stream, replicated=True)


async def roll(run: Run, site: Site, stream: str, number: int) -> None:
    """Restart the next node, as in a rolling upgrade."""
    node = number % len(site.proxies)
    await lose_node(site, node, 'stop')
    note(run, 'faults', f'{node + 1} restarted')
    await site.leader(stream, replicated=True)


NODE_FAULTS = {'pause': pause, 'partition': partition, 'roll': roll}
LEADER_FAULTS = ('kill', 'move', 'stop')


async def change_leader(run: Run, site: Site, stream: str, how: str) -> int:
    """Change the leader of a stream and wait for all replicas; return the new leader's node.

    :param how: `kill` or `stop` its node and restart it, or `move` it by restarting the stream.
    """
    before = after = await site.leader(stream, replicated=True)
    done = how
    if how != 'move':
        await stop_node(site, before, how)
        # The broker may elect no leader while the node is down, and the same one afterwards.
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
    """Restart a stream, repeatedly if necessary, until another node leads it."""
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
    """Kill or stop a node."""
    broker = site.broker
    if how == 'kill':
        # A node writes its votes for stream leaders to disk after up to three minutes, and would
        # forget them.
        await asyncio.to_thread(lambda: broker.ctl('eval', SYNC, node=node))
        await asyncio.to_thread(broker.kill_node, node)
    else:
        await asyncio.to_thread(broker.stop_node, node)


async def pause_node(site: Site, node: int, seconds: float) -> None:
    """Suspend the process of a node, and resume it."""
    try:
        await asyncio.to_thread(site.broker.pause_node, node)
        await asyncio.sleep(seconds)
    finally:
        await asyncio.to_thread(site.broker.resume_node, node)


async def lose_node(site: Site, node: int, how: str) -> None:
    """Kill or stop a node, and restart it."""
    await stop_node(site, node, how)
    await asyncio.to_thread(site.broker.start_node, node)


def note(run: Run, name: str, what: str) -> None:
    run.found.setdefault(name, []).append(what)
