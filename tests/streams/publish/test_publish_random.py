"""A broker that misbehaves at random and callers that time out at random: every call ends."""

import asyncio
import random
import struct
from collections.abc import AsyncIterator, Awaitable
from typing import Any

import pytest

import rbfly.streams as rbs
from rbfly.error import RbFlyError
from rbfly.net import retry
from rbfly.net.observer import Life
from tests import fake_broker as wire
from tests.brokers import until
from tests.entry_reader import read_entries
from tests.fake_broker import FakeBroker, Frame, refuse
from tests.fake_broker import FakeConnection as Peer
from tests.inside import cluster_of, pool_of
from tests.streams.publish.test_publish_recovery import moved

HANG = 60.0  # seconds; only a safeguard
FAULTS = 0.3  # of all Publish frames


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retry, 'BACKOFF_FIRST', 0.001)
    monkeypatch.setattr(retry, 'BACKOFF_LAST', 0.01)


class Fickle:
    """Confirms most messages, and refuses, loses or wrongly confirms the others."""

    def __init__(self, source: random.Random) -> None:
        self.source = source

    def publish(self, peer: Peer, request: Frame) -> None:
        data = struct.pack('>IHH', 4 + len(request.body), request.key, request.version)
        ids = [publish_id for publish_id, _, _ in read_entries(data + request.body)]
        publisher_id = request.body[0]

        def confirm(*ids: int, to: int = publisher_id) -> None:
            if not peer.transport.is_closing():
                body = struct.pack(f'>BI{len(ids)}Q', to, len(ids), *ids)
                peer.send(wire.frame(wire.PUBLISH_CONFIRM, body))

        def error(code: int, *ids: int) -> None:
            body = b''.join(struct.pack('>QH', publish_id, code) for publish_id in ids)
            head = struct.pack('>BI', publisher_id, len(ids))
            peer.send(wire.frame(wire.PUBLISH_ERROR, head + body))

        if self.source.random() > FAULTS:
            confirm(*ids)
            return
        match self.source.randrange(12):
            case 0:
                peer.transport.abort()
            case 1:
                confirm(*ids[::2])
                peer.transport.close()
            case 2:
                body = struct.pack('>IH', 1, 1) + wire.string('go away')
                peer.send(wire.frame(wire.CLOSE, body))
            case 3:
                moved(peer, request)
            case 4:
                for _ in range(5):
                    moved(peer, request)
                confirm(*ids)
            case 5:
                error(0x12, *ids)
            case 6:
                error(0x11, *ids)
            case 7:
                error(0x11, ids[0], 2**40)
                confirm(*ids)
            case 8:
                self.source.shuffle(ids)
                confirm(*ids)
            case 9:
                confirm(*ids, *ids, 0, 2**64 - 1)
            case 10:
                confirm(*ids, to=publisher_id ^ 1)
                confirm(*ids)
            case 11:
                asyncio.get_running_loop().call_later(0.003, confirm, *ids)

    def declare(self, peer: Peer, request: Frame) -> None:
        chance = self.source.random()
        if chance < 0.03:
            refuse(0x06)(peer, request)
        elif chance < 0.06:
            peer.transport.abort()
        else:
            peer.broker.default(peer, request)


class Caller:
    """Opens a publisher, calls every method, cancels some calls, and closes the publisher."""

    def __init__(self, source: random.Random, client: rbs.StreamsClient, name: str) -> None:
        self.source = source
        self.client = client
        self.name = name
        self.tasks: list[asyncio.Task[Any]] = []

    def chance(self, share: float) -> bool:
        return self.source.random() < share

    async def later(self) -> AsyncIterator[Any]:
        for i in range(self.source.randrange(30)):
            if self.chance(0.5):
                await asyncio.sleep(0)
            if self.chance(0.02):
                raise KeyError('of the iterator')
            yield object() if self.chance(0.03) else i

    def send(self, publisher: rbs.Publisher) -> Awaitable[Any]:
        timeout = 0.002 if self.chance(0.2) else None
        match self.source.randrange(6):
            case 0:
                return publisher.send('x', timeout)
            case 4:
                return self.batch(publisher)
            case 5:
                return publisher.flush(timeout)
            case 1:
                return publisher.submit('x', timeout)
            case 2:
                return publisher.send_many(self.later(), timeout)
            case _:
                return publisher.send_many(iter(range(self.source.randrange(50))), timeout)

    async def batch(self, publisher: Any) -> None:
        for i in range(20):
            if isinstance(publisher, rbs.PublisherBatchLimit):
                await publisher.batch(i, max_len=5)
            else:
                publisher.batch(i)
            if self.chance(0.3):
                await publisher.flush(timeout=0.002 if self.chance(0.2) else None)

    async def run(self) -> None:
        source = self.source
        window = source.choice([1, 2, 3, 10, 1000])
        context = self.client.publisher(
            'test',
            cls=source.choice([rbs.Publisher, rbs.PublisherBatchFast, rbs.PublisherBatchLimit]),
            name=self.name if self.chance(0.3) else None,
            max_unconfirmed=window,
            sub_entry_size=source.choice([None, None, 1, window]),
        )
        publisher: Any = await context.__aenter__()
        single = type(publisher) is rbs.Publisher
        for _ in range(15):
            call = self.send(publisher) if single else self.batch(publisher)
            self.tasks.append(asyncio.ensure_future(call))
            if self.chance(0.4):
                await asyncio.sleep(source.choice([0, 0, 0.002]))
            if self.chance(0.15):
                source.choice(self.tasks).cancel()
        closing = [asyncio.create_task(publisher.close()) for _ in range(source.randrange(3))]
        if closing and self.chance(0.3):
            await asyncio.sleep(0)
            closing[0].cancel()
        self.tasks += closing
        error = source.choice([None, KeyError('of the program'), asyncio.CancelledError()])
        try:
            await context.__aexit__(type(error) if error else None, error, None)
        except (RbFlyError, asyncio.CancelledError):
            pass


def is_fair(outcome: Any) -> bool:
    """Errors that a call may raise."""
    if isinstance(outcome, asyncio.Future):  # of a message that was submitted
        assert outcome.done()
        outcome = None if outcome.cancelled() else outcome.exception()
    return isinstance(outcome, int | RbFlyError | asyncio.CancelledError | None) or (
        repr(outcome) == "KeyError('of the iterator')"
    )


@pytest.mark.parametrize('walk', range(10))
async def test_every_call_ends(walk: int, rng: random.Random) -> None:
    broker = Fickle(rng)
    on = {wire.PUBLISH: broker.publish, wire.DECLARE_PUBLISHER: broker.declare}
    async with (
        asyncio.timeout(HANG),
        FakeBroker(on=on) as fake,
        rbs.streams_client(fake.uri, reconnect_timeout=10) as client,
    ):
        callers = [Caller(rng, client, f'name {i}') for i in range(25)]
        await asyncio.gather(*(caller.run() for caller in callers))
        tasks = [task for caller in callers for task in caller.tasks]
        outcomes = await asyncio.gather(*tasks, return_exceptions=True)
        assert [outcome for outcome in outcomes if not is_fair(outcome)] == []
        assert not [
            item for item in client._names.values() if item.registration.life is not Life.CLOSED
        ]
        assert not cluster_of(client).registrations
        for group in pool_of(client)._connections.values():
            for connection in filter(lambda item: item.is_open, group):
                await until(
                    lambda ids=connection.publisher_ids: len(ids) == 256,  # type: ignore[misc]
                    'every publisher was removed',
                )
                assert not connection.registrations
