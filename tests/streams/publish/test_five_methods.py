"""One publisher uses `send`, `submit`, `send_many`, `batch` and `flush` in any order."""

import asyncio
import random
import struct
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest

import rbfly.streams as rbs
from brokers.proxy import Direction, Proxy
from rbfly.amqp import decode_amqp
from rbfly.net import retry
from rbfly.protocol.const import Key
from tests.entry_reader import read_entries
from tests.fake_broker import Frame
from tests.super_streams import read_partition

HANG = 120.0  # seconds; only a bug makes a test wait that long
TASKS = 4
CALLS = 40  # of each task
CUTS = 15


def key_of(body: Any) -> str:
    """The binding key of a partition, or anything to hash."""
    return str(int((body.body if isinstance(body, rbs.Message) else body).split()[1]) % 3)


def by_number(body: Any, partitions: Sequence[str]) -> Any:
    """A third of the messages goes to two partitions."""
    number = int(key_of(body))
    return partitions[:2] if number == 2 else partitions[2 * number]


ROUTES: dict[str, Any] = {
    'stream': None,
    'by_hash': rbs.by_hash(key_of),
    'by_key': rbs.by_key(key_of),
    'function': by_number,
}
kinds = pytest.mark.parametrize('kind', ROUTES)


def open_publisher(
    client: rbs.StreamsClient, kind: str, stream: str, super_stream: str, **options: Any
) -> Any:
    if kind == 'stream':
        return client.publisher(stream, name='shop', **options)
    orders = client.super_stream(super_stream)
    return orders.publisher(route=ROUTES[kind], name='shop', **options)


async def streams_of(
    client: rbs.StreamsClient, kind: str, stream: str, super_stream: str
) -> tuple[str, ...]:
    return (stream,) if kind == 'stream' else await client.super_stream(super_stream).partitions()


# -- in turn


@kinds
@pytest.mark.parametrize('number', [0, 1, 2])
@pytest.mark.parametrize('max_unconfirmed', [1, 10_000])
@pytest.mark.parametrize('explicit', [False, True])
async def test_messages_leave_in_the_order_of_the_calls(
    client: rbs.StreamsClient,
    stream: str,
    super_stream: str,
    kind: str,
    number: int,
    max_unconfirmed: int,
    explicit: bool,
) -> None:
    bodies = [f'{letter} {number}' for letter in 'abcdefgh']
    a, b, c, d, e, f, g, h = [
        rbs.Message(body, publish_id=n) if explicit else body for n, body in enumerate(bodies, 5)
    ]

    async def last() -> AsyncIterator[Any]:
        yield g

    async with (
        asyncio.timeout(HANG),
        open_publisher(
            client, kind, stream, super_stream, max_unconfirmed=max_unconfirmed
        ) as publisher,
    ):
        publisher.batch(a)
        await publisher.send(b)
        publisher.batch(c)
        submitted = await publisher.submit(d)
        assert await publisher.send_many([e]) == 1
        await submitted
        publisher.batch(f)
        assert await publisher.send_many(last()) == 1
        publisher.batch(h)
        await publisher.flush()
    found = [
        await read_partition(client, name)
        for name in await streams_of(client, kind, stream, super_stream)
    ]
    copies = 2 if kind == 'function' and number == 2 else 1
    assert [items for items in found if items] == [bodies] * copies


# -- by many tasks, while connections are cut


class Wire:
    """The Publish frames of the clients of a proxy.

    :ivar sent: bodies of messages, by stream and publishing id.
    :ivar wrong: what a broker would not store, or not in order.
    """

    def __init__(self, proxy: Proxy) -> None:
        self.sent: dict[str, dict[int, list[str]]] = defaultdict(dict)
        self.wrong: list[str] = []
        self._buffers: dict[int, bytes] = defaultdict(bytes)
        self._declared: dict[tuple[int, int], str] = {}
        self._last: dict[tuple[int, int], int] = {}
        proxy.watch = self._watch

    def _watch(self, link: int, direction: Direction, data: bytes) -> None:
        if direction == 'down':
            return
        buffer = self._buffers[link] + data
        while len(buffer) >= 8:
            size, key, version = struct.unpack_from('>IHH', buffer)
            if len(buffer) < 4 + size:
                break
            self._on_frame(link, key, version, buffer[: 4 + size])
            buffer = buffer[4 + size :]
        self._buffers[link] = buffer

    def _on_frame(self, link: int, key: int, version: int, data: bytes) -> None:
        if key == Key.DECLARE_PUBLISHER:
            command = Frame(key, version, data[8:]).decode()
            self._declared[link, command.publisher_id] = command.stream
            self._last[link, command.publisher_id] = -1
        if key != Key.PUBLISH:
            return
        declared = link, data[8]
        sent = self.sent[self._declared[declared]]
        for number, _, messages in read_entries(data):
            bodies: list[Any] = [decode_amqp(message).body for message in messages]
            if number <= self._last[declared]:
                self.wrong.append(f'id {number} after {self._last[declared]}')
            if sent.setdefault(number, bodies) != bodies:
                self.wrong.append(f'id {number} of {sent[number]} also for {bodies}')
            self._last[declared] = number


class Walk:
    """Tasks that share a publisher; each uses all methods at random.

    :ivar calls: bodies of each task, in the order of its calls.
    :ivar certain: bodies that must be stored.
    :ivar possible: bodies of calls that have timed out; they may be stored.
    """

    def __init__(self, source: random.Random, publisher: Any, proxy: Proxy) -> None:
        self.source = source
        self.publisher = publisher
        self.proxy = proxy
        self.calls: list[list[str]] = [[] for _ in range(TASKS)]
        self.certain: set[str] = set()
        self.possible: set[str] = set()
        self.submitted: list[asyncio.Future[None]] = []

    def chance(self, share: float) -> bool:
        return self.source.random() < share

    def bodies(self, task: int, count: int) -> list[str]:
        first = len(self.calls[task])
        padding = 'x' * self.source.choice([0, 0, 20, 300])
        found = [f'{task} {number} {padding}' for number in range(first, first + count)]
        self.calls[task] += found
        return found

    async def send(self, task: int) -> None:
        [body] = self.bodies(task, 1)
        try:
            await self.publisher.send(body, 0.01 if self.chance(0.2) else None)
        except rbs.ConfirmTimeout as ex:
            if ex.outcome == 'unknown':
                self.possible.add(body)
        else:
            self.certain.add(body)

    async def submit(self, task: int) -> None:
        await self._submit(self.bodies(task, 1)[0], 0.01 if self.chance(0.1) else None)

    async def _submit(self, body: str, timeout: float | None) -> None:
        try:
            self.submitted.append(await self.publisher.submit(body, timeout))
        except rbs.WindowTimeout as ex:
            if ex.outcome == 'unknown':  # another partition has taken it
                self.possible.add(body)
        else:
            self.certain.add(body)

    async def batch(self, task: int) -> None:
        for body in self.bodies(task, self.source.randrange(1, 10)):
            try:
                self.publisher.batch(body)
            except rbs.WindowTimeout:
                await self._submit(body, None)
            self.certain.add(body)

    async def send_many(self, task: int) -> None:
        bodies = self.bodies(task, self.source.randrange(1, 30))
        kinds: list[Any] = [list, iter, self.later]
        messages = self.source.choice(kinds)(bodies)
        timeout = 0.02 if self.chance(0.2) else None
        progress = rbs.SendProgress()
        try:
            await self.publisher.send_many(messages, timeout, progress=progress)
        except rbs.ConfirmTimeout:
            self.possible |= {bodies[i] for i in progress.unknown}
            left = {*progress.unknown, *progress.refused}
            self.certain |= {bodies[i] for i in range(progress.taken) if i not in left}
        else:
            self.certain |= {*bodies}

    async def later(self, bodies: list[str]) -> AsyncIterator[str]:
        for body in bodies:
            if self.chance(0.2):
                await asyncio.sleep(0)
            yield body

    async def flush(self, task: int) -> None:
        try:
            await self.publisher.flush(0.01 if self.chance(0.2) else None)
        except rbs.ConfirmTimeout:
            pass

    async def work(self, task: int) -> None:
        for _ in range(CALLS):
            await self.source.choice(
                [self.send, self.submit, self.send_many, self.batch, self.flush]
            )(task)
            if self.chance(0.3):
                await asyncio.sleep(self.source.choice([0, 0, 0.002, 0.01]))

    async def cut(self) -> None:
        """Cut connections until cancelled."""
        for _ in range(CUTS):
            await asyncio.sleep(self.source.choice([0.002, 0.01, 0.03]))
            if self.chance(0.3):
                self.proxy.cut(reset=self.chance(0.5))
            else:
                direction: Any = self.source.choice(['up', 'down'])
                self.proxy.cut_after(self.source.randrange(1, 3000), direction)

    async def run(self) -> None:
        # The calls may end before the first random cut; they all write more than this.
        self.proxy.cut_after(self.source.randrange(1, 1000), 'up')
        cutting = asyncio.create_task(self.cut())
        try:
            await asyncio.gather(*map(self.work, range(TASKS)))
            await asyncio.gather(*self.submitted)
            await self.publisher.flush()
        finally:
            cutting.cancel()
            await asyncio.wait([cutting])

    def check(self, wire: Wire, found: dict[str, list[str]], kind: str) -> None:
        """Check what the streams have stored."""
        assert wire.wrong == []
        counts = Counter[str]()
        for name, bodies in found.items():
            counts.update(bodies)
            assert [body for body, copies in Counter(bodies).items() if copies > 1] == []
            ids = {body: number for number, group in wire.sent[name].items() for body in group}
            stored_ids = [ids[body] for body in bodies]
            assert stored_ids == sorted(stored_ids)
            for task, calls in enumerate(self.calls):
                own = {body: place for place, body in enumerate(calls)}
                places = [own[body] for body in bodies if body.startswith(f'{task} ')]
                assert places == sorted(places)
        for calls in self.calls:
            for body in calls:
                copies = 2 if kind == 'function' and key_of(body) == '2' else 1
                if body in self.certain:
                    assert counts[body] == copies, body
                elif body in self.possible:
                    assert counts[body] <= copies, body
                else:
                    assert counts[body] == 0, body


@pytest.fixture(autouse=True)
def _retry_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retry, 'BACKOFF_FIRST', 0.001)
    monkeypatch.setattr(retry, 'BACKOFF_LAST', 0.01)


@kinds
@pytest.mark.parametrize('number', range(3))
async def test_each_message_is_stored_once_and_in_order(
    client: rbs.StreamsClient,
    stream: str,
    super_stream: str,
    proxy: Proxy,
    rng: random.Random,
    kind: str,
    number: int,
) -> None:
    wire = Wire(proxy)
    options = {
        'max_unconfirmed': rng.choice([5, 10, 1000]),
        'sub_entry_size': rng.choice([None, None, 5]),
    }
    async with (
        asyncio.timeout(HANG),
        rbs.streams_client(proxy.uri, load_balancer=True) as own,
        open_publisher(own, kind, stream, super_stream, **options) as publisher,
    ):
        walk = Walk(rng, publisher, proxy)
        await walk.run()
    assert proxy.cuts
    names = await streams_of(client, kind, stream, super_stream)
    walk.check(wire, {name: await read_partition(client, name) for name in names}, kind)
