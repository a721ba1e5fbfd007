"""Random walks of groups whose members collect messages and write them in `on_revoke`.

The members join, stop and close, are killed, and lose their connections.  Members that hand over in
order write each message exactly once.  After a kill or a lost connection, another member writes the
messages again that were not committed.
"""

import asyncio
import contextlib
import random
from collections import Counter, defaultdict
from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import urlsplit

import pytest

import rbfly.streams as rbs
from brokers import RabbitMQ
from brokers.proxy import Proxy
from rbfly.net import retry
from rbfly.net.observer import Observer
from tests.brokers import until
from tests.group_members import may_strand, publish
from tests.inside import cluster_of
from tests.super_streams import subscribe_to

HANG = 60.0  # seconds; only a bug makes a test wait that long
STRANDED = 10.0  # seconds; a recovery takes up to three times as long
MEMBERS = 4  # at most
KINDS = ('plain', 'super')


class Member(Observer):
    """A program in a group, with a client and a proxy of its own.

    :ivar held: offset and body of the messages that it has collected, by stream.
    :ivar history: the steps of the member (active, revoked, handed over, lost), by stream.
    :ivar wrong: descriptions of the invariants that the member broke.
    """

    def __init__(self, walk: 'Walk', proxy: Proxy) -> None:
        self.walk = walk
        self.proxy = proxy
        self.client = rbs.streams_client(proxy.uri, load_balancer=True)
        cluster_of(self.client).observers.add(self)
        self.limit = walk.source.choice([1, 5, 30, 1000])
        self.held: dict[str, list[tuple[int, Any]]] = defaultdict(list)
        self.history: dict[str, list[str]] = defaultdict(list)
        self.wrong: list[str] = []
        self.last: dict[str, int] = {}  # offset below the next message to receive
        self.drops = walk.source.choice([True, False])  # what it has collected, if that is lost
        self.leaving = False
        self.closed = False  # by another task, perhaps while the program works on a message
        settings = rbs.Group(
            walk.group, on_revoke=self.on_revoke, stranded_after=walk.stranded_after
        )
        self.messages = subscribe_to(
            self.client,
            walk.stream,
            super_stream=walk.kind == 'super',
            group=settings,
            commit='manual',
        )
        self.task = asyncio.create_task(self.read())

    # -- the program

    async def read(self) -> None:
        async for message in self.messages.messages():
            stream, offset = message.stream, message.stream_offset
            if offset <= self.last[stream]:
                self.wrong.append(f'offset {offset} of {stream} after {self.last[stream]}')
            if self.history[stream][-1] != 'active':
                self.wrong.append(f'a message of {stream} after {self.history[stream]}')
            self.last[stream] = offset
            await self.walk.pause()
            self.held[stream].append((offset, message.body))
            if len(self.held[stream]) >= self.limit:
                await self.flush(stream)
            if self.leaving:
                break

    async def flush(self, stream: str) -> None:
        held = self.held.pop(stream, [])
        if not held:
            return
        await self.walk.pause()
        self.walk.rows += [(stream, body) for _, body in held]  # one transaction
        last, _ = held[-1]
        await self.walk.pause()
        try:
            await self.messages.commit({stream: last} if self.walk.kind == 'super' else last)
        except rbs.OffsetNotStored:
            if not self.walk.may_lose:
                raise
        else:
            self.walk.committed[stream] = max(last, self.walk.committed.get(stream, -1))

    async def on_revoke(self, stream: str) -> None:
        self.history[stream].append('revoked')
        await self.flush(stream)

    # -- events

    def on_activated(self, stream: str, group: str) -> None:
        self.history[stream].append('active')
        self.last[stream] = self.walk.committed.get(stream, -1)

    def on_deactivated(self, stream: str, group: str, lost: bool) -> None:
        self.history[stream].append('lost' if lost else 'handed over')
        held = self.held.pop(stream, []) if self.drops or not lost else []
        if held and not lost and not self.closed:
            self.wrong.append(f'{stream} was handed over before {held} was written')

    # -- endings

    async def leave(self) -> None:
        how = self.walk.source.choice(['stop', 'break', *['close'] * self.walk.faults])
        if how == 'break':
            self.leaving = True
            stopping = asyncio.create_task(asyncio.sleep(0.02))  # there may be no message
            await asyncio.wait([self.task, stopping], return_when=asyncio.FIRST_COMPLETED)
        if how != 'close':
            self.messages.stop()
            await asyncio.wait([self.task])
        self.closed = how == 'close'
        for ended in (self.messages.close(), self.task):
            try:
                await ended
            except rbs.OffsetNotStored:  # the connection was lost
                if not self.walk.may_lose:
                    raise

    async def kill(self) -> None:
        """Cut all connections, and end the program at once."""
        self.proxy.refuse()
        self.proxy.cut()
        self.task.cancel()
        await asyncio.wait([self.task])

    def check(self) -> None:
        assert self.wrong == []
        for history in self.history.values():
            while history:
                assert history.pop(0) == 'active'
                event = history.pop(0)
                if event == 'revoked':
                    event = history.pop(0)
                    assert event in ('handed over', 'lost')
                else:
                    assert event == 'lost'


class Walk:
    """A stream and the members of a group.

    :ivar rows: stream and body of the messages that members have written.
    :ivar committed: highest offset that a member has committed, by stream.
    """

    def __init__(
        self,
        source: random.Random,
        broker: RabbitMQ,
        client: rbs.StreamsClient,
        kind: str,
        stream: str,
        group: str,
        faults: bool,
        strands: bool,
    ) -> None:
        self.source = source
        parts = urlsplit(broker.uri)
        self.address = parts.hostname or '', parts.port or 0
        self.client = client
        self.kind = kind
        self.stream = stream
        self.group = group
        # A member that subscribes again, because the broker has stranded the group, may close
        # connections on which it is active in another partition.
        self.stranded_after = STRANDED if strands else None
        self.faults = faults and not strands
        self.may_lose = faults or strands
        self.stack = contextlib.AsyncExitStack()
        self.members: list[Member] = []
        self.gone: list[Member] = []
        self.published = 0
        self.rows: list[tuple[str, int]] = []
        self.committed: dict[str, int] = {}

    async def pause(self) -> None:
        delay = self.source.choice([None] * 8 + [0.0, 0.0, 0.002, 0.01])
        if delay is not None:
            await asyncio.sleep(delay)

    # -- steps

    async def publish(self) -> None:
        count = self.source.choice([1, 20, 100])
        numbers = range(self.published, self.published + count)
        self.published += count
        if self.kind == 'plain':
            size = self.source.choice([1, 10])
            await publish(self.client, self.stream, numbers, sub_entry_size=size)
            return
        orders = self.client.super_stream(self.stream)
        async with orders.publisher(route=rbs.by_hash(str)) as publisher:
            await publisher.send_many(numbers)

    async def join(self) -> None:
        if len(self.members) < MEMBERS:
            proxy = await self.stack.enter_async_context(Proxy(self.address))
            self.members.append(Member(self, proxy))

    def take(self) -> Member | None:
        if not self.members:
            return None
        return self.members.pop(self.source.randrange(len(self.members)))

    async def leave(self) -> None:
        if member := self.take():
            await member.leave()
            await self.forget(member)

    async def kill(self) -> None:
        if member := self.take():
            await member.kill()
            await self.forget(member)

    async def forget(self, member: Member) -> None:
        await member.client.close()
        del member.messages
        self.gone.append(member)

    async def cut(self) -> None:
        if self.members:
            proxy = self.source.choice(self.members).proxy
            if self.source.random() < 0.5:
                proxy.cut()
            else:
                direction: Any = self.source.choice(['up', 'down'])
                proxy.cut_after(self.source.randrange(1, 2000), direction)

    async def wait(self) -> None:
        await asyncio.sleep(self.source.choice([0, 0.01, 0.05]))

    async def step(self) -> None:
        steps = {self.publish: 6, self.join: 4, self.leave: 3, self.wait: 4}
        if self.faults:
            steps |= {self.cut: 4, self.kill: 2}
        (step,) = self.source.choices(list(steps), list(steps.values()))
        await step()

    async def settle(self) -> None:
        """Wait until the members have received everything."""
        await self.join()

        def received() -> int:
            held = [
                body for item in self.members for part in item.held.values() for _, body in part
            ]
            return len({body for _, body in self.rows}.union(held))

        def has_ended() -> bool:
            return any(item.task.done() for item in self.members)

        # Members that commit each message take minutes on a busy machine, but never stand still.
        while (before := received()) < self.published and not has_ended():
            await until(
                lambda before=before: received() > before or has_ended(),  # type: ignore[misc]
                'the members receive more',
                HANG,
            )
        for member in self.members:
            if member.task.done():
                member.task.result()

    def check(self) -> None:
        rows = Counter(body for _, body in self.rows)
        assert {*rows} == {*range(self.published)}
        members = self.members + self.gone
        lost = {
            name
            for item in members
            for name, history in item.history.items()
            if item.closed or 'lost' in history
        }
        repeated = {stream for stream, body in self.rows if rows[body] > 1}
        assert repeated <= lost
        for member in members:
            member.check()


@contextlib.asynccontextmanager
async def walking(*arguments: Any) -> AsyncIterator[Walk]:
    walk = Walk(*arguments)
    async with walk.stack:
        try:
            yield walk
        finally:
            for member in walk.members:
                member.task.cancel()
                await asyncio.wait([member.task])
                await member.client.close()


@pytest.fixture(autouse=True)
def _retry_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retry, 'BACKOFF_FIRST', 0.001)
    monkeypatch.setattr(retry, 'BACKOFF_LAST', 0.01)


@pytest.mark.parametrize('number', range(3))
@pytest.mark.parametrize('faults', [False, True], ids=['orderly', 'faults'])
@pytest.mark.parametrize('kind', KINDS)
async def test_rows_of_a_group(
    broker: RabbitMQ,
    client: rbs.StreamsClient,
    stream: str,
    super_stream: str,
    group: str,
    rng: random.Random,
    kind: str,
    faults: bool,
    number: int,
) -> None:
    name = stream if kind == 'plain' else super_stream
    strands = await may_strand(client)
    async with walking(rng, broker, client, kind, name, group, faults, strands) as walk:
        for _ in range(rng.randrange(20, 50)):
            await walk.step()
        is_complete = False
        while not is_complete:
            await walk.settle()
            while walk.members:
                await walk.leave()
            # A member that loses its connection while it leaves writes nothing: the next one does.
            is_complete = len({*walk.rows}) == walk.published or not walk.may_lose
        walk.check()
