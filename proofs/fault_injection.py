"""Faults at planned moments: cuts at byte positions, and faults of nodes at numbers of messages."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import suppress

from brokers.proxy import Direction, Proxy

from .run import ProofError, Run
from .test_bed import ClusterBed

ELECTED = 15.0  # seconds to elect a new leader while the old leader's node is down
PAUSE = 2.0, 15.0  # minimum and maximum seconds
TRICKLE = 0.001  # seconds per message while a fault lasts longer than the messages planned for it
LEADER_FAULTS = ('kill', 'move', 'stop')


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
    :ivar end: number of messages after which there is none for the present sender.
    :ivar faults: number of faults so far.
    :ivar epoch: increases when a fault starts and when it ends, so it is odd during a fault.
    """

    def __init__(self, total: int) -> None:
        self.total = total
        self.limit = self.end = total
        self.next = 0
        self.faults = 0
        self.epoch = 0
        self._waiting: deque[asyncio.Future[None]] = deque()

    async def take(self) -> int | None:
        """The number of the next message to send, or None after the last.

        Messages are sent in order if the caller does not await anything before sending.  Tasks that
        wait here when the last one is taken may get a few more.
        """
        if self.next >= self.end:
            return None
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
        count = max(min(most, min(self.limit, self.end) - self.next), 0)
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


class FaultInjection:
    """The faults of one run; what they are is the second part of the proof's name.

    :param totals: minimum number of bytes that will be forwarded, by direction; while publishing,
        some go up.
    """

    def __init__(self, run: Run, bed: ClusterBed, gate: Gate, totals: dict[Direction, int]) -> None:
        self.run = run
        self.bed = bed
        self.gate = gate
        self.kind = run.proof.name.partition('-')[2]
        self.publishing = 'up' in totals
        self.direction: Direction = 'up' if self.publishing else 'down'
        self._leader = 0
        self._followed: list[str] = []
        if self.kind == 'cuts':
            plan_cuts(run, bed.proxies[0], totals)

    def epoch(self) -> int:
        """Twice the number of faults so far, plus one during a fault that lasts."""
        return 2 * self.bed.proxies[0].cuts if self.kind == 'cuts' else self.gate.epoch

    async def drive(self, stream: str) -> None:
        """Cause the faults, unless the proxy cuts connections on its own."""
        self.stream = stream
        self._since = self.bed.carried(self.direction)
        kinds = {'restart': self.restart, 'leader': self.change_leader, 'nodes': self.disturb_node}
        if self.kind in kinds:
            await self.gate.drive(self.run, kinds[self.kind])

    def check(self) -> None:
        """Check that all requested faults happened."""
        run, wanted = self.run, self.run['cuts']
        if self.kind == 'cuts':
            cuts = self.bed.proxies[0].cuts
            run.check(f'{wanted:,} cuts', cuts == wanted, cuts)
            return
        name = {'restart': 'restarts', 'leader': 'leaders', 'nodes': 'faults'}[self.kind]
        done = run.found.get(name, [])
        run.check(f'{wanted:,} {name}', len(done) == wanted, ', '.join(done))
        if name == 'leaders' and self.publishing:
            self._look()
            followed = self._followed
            run.check(
                'the publisher followed the leader', set(followed) == {'yes'}, ', '.join(followed)
            )

    def _look(self) -> None:
        """Note whether most messages have gone to the leader since it leads."""
        node, leader = self.bed.busiest('up', self._since), self._leader
        self._followed.append('yes' if node == leader else f'{node + 1} instead of {leader + 1}')

    async def restart(self, number: int) -> None:
        """Stop or kill the broker, and restart it."""
        how = self.run.random.choice(('stop', 'kill'))
        self.run.note('restarts', how)
        await self.bed.lose_node(0, how)

    async def change_leader(self, number: int) -> None:
        """Change the leader; every second time while consuming, kill the node that delivers."""
        bed = self.bed
        if self.publishing:
            if number == 0:
                self._leader = await bed.leader(self.stream)
            self._look()
            await self._change_leader(LEADER_FAULTS[number % len(LEADER_FAULTS)])
        elif number % 2:
            await self._change_leader(LEADER_FAULTS[number // 2 % len(LEADER_FAULTS)])
        else:
            node = bed.busiest('down', self._since)
            await bed.lose_node(node, 'kill')
            leader = await bed.leader(self.stream, replicated=True)
            what = f'kill of the delivering node {node + 1}; leader {leader + 1}'
            self.run.note('leaders', what)
        self._since = bed.carried(self.direction)

    async def _change_leader(self, how: str) -> None:
        """Change the leader, and wait for all replicas.

        :param how: `kill` or `stop` its node and restart it, or `move` it by restarting the stream.
        """
        bed, stream = self.bed, self.stream
        before = after = await bed.leader(stream, replicated=True)
        if how != 'move':
            await bed.stop_node(before, how)
            # The broker may elect no leader while the node is down, and the same one afterwards.
            with suppress(ProofError):
                await bed.leader(stream, not_node=before, within=ELECTED)
            await asyncio.to_thread(bed.broker.start_node, before)
            after = await bed.leader(stream, replicated=True)
        if after == before:
            other = self.run.random.choice([node for node in bed.nodes if node != before])
            await bed.move_leader(stream, before, other)
            after = await bed.leader(stream, replicated=True, not_node=before)
            how = how if how == 'move' else f'{how} and move'
        self.run.note('leaders', f'{how}: {before + 1} -> {after + 1}')
        self._leader = after

    async def disturb_node(self, number: int) -> None:
        """Pause or partition the leader's node for some seconds, or restart the next node."""
        bed, how = self.bed, self.run['how']
        if how == 'roll':
            node = number % len(bed.proxies)
            await bed.lose_node(node, 'stop')
            self.run.note('faults', f'{node + 1} restarted')
        else:
            node = await bed.leader(self.stream, replicated=how == 'partition')
            seconds = self.run.random.uniform(*PAUSE)
            if how == 'pause':
                await bed.pause_node(node, seconds)
                what = 'paused'
            else:
                restarted = await bed.isolate_node(node, seconds)
                what = 'partitioned and restarted' if restarted else 'partitioned'
            self.run.note('faults', f'{node + 1} {what} for {seconds:.0f} s')
        await bed.leader(self.stream, replicated=True)
