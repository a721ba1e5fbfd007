"""Consumer groups: what users of RabbitMQ's other clients rely on."""

import asyncio
from collections import Counter
from random import Random
from typing import Any, ClassVar

import pytest

import rbfly.streams as rbs
from rbfly.streams import events
from tests.brokers import until
from tests.group_members import NewClient, Reader, may_strand, publish, take, until_active
from tests.inside import session_of

AUTO: dict[str, Any] = {'commit': 'auto', 'offset': rbs.Offset.FIRST}
ROUTE = rbs.by_hash(str)


async def publish_by_hash(client: rbs.StreamsClient, stream: str, numbers: range) -> None:
    async with client.super_stream(stream).publisher(route=ROUTE) as publisher:
        await publisher.send_many(numbers)


async def until_all_active(*readers: Reader, partitions: int = 3) -> None:
    """Wait until each partition is active in one of some members, and they share them."""

    def settled() -> bool:
        each = [len(reader.messages.active) for reader in readers]
        return sum(each) == partitions and sum(map(bool, each)) == min(len(each), partitions)

    await until(settled, 'the partitions are distributed')


class Committing(Reader):
    """Commits after each message."""

    async def _read(self) -> None:
        async for body in self.messages:
            self.bodies.append(body)
            await self.messages.commit()


class External(Reader):
    """Keeps its position itself, as a database would, by partition."""

    kept: ClassVar[dict[str, int]] = {}

    async def _read(self) -> None:
        async for message in self.messages.messages():
            self.bodies.append(message.body)
            self.kept[message.stream] = message.stream_offset + 1


@pytest.mark.parametrize('kind', ['automatic', 'manual', 'external'])
async def test_second_takes_over_partitions_where_the_first_stopped(
    clients: NewClient, super_stream: str, group: str, kind: str
) -> None:
    async def ask(partition: str) -> rbs.Offset:
        return rbs.Offset.offset(External.kept.get(partition, 0))

    cls: type[Reader] = Reader
    options: dict[str, Any] = {'group': group} | AUTO
    if kind == 'manual':
        cls = Committing
        options['commit'] = rbs.OffsetTracking(manual=True)
    elif kind == 'external':
        cls = External
        options |= {'commit': None, 'offset': ask}
    client = clients()
    first = cls(clients().super_stream(super_stream).subscribe(**options))
    await publish_by_hash(client, super_stream, range(90))
    await until(lambda: len(first.bodies) == 90, 'the first member has read everything')
    second = cls(clients().super_stream(super_stream).subscribe(**options))
    await until_all_active(first, second)
    await publish_by_hash(client, super_stream, range(90, 180))
    await until(lambda: len(first.bodies) + len(second.bodies) >= 180, 'both have read')
    assert second.bodies
    await first.stop()
    await until_all_active(second)
    await publish_by_hash(client, super_stream, range(180, 270))
    await until(lambda: len(first.bodies) + len(second.bodies) >= 270, 'the second has read')
    await second.stop()
    assert Counter(first.bodies + second.bodies) == Counter(range(270))


async def test_rebalance_while_publishing_loses_and_repeats_nothing(
    clients: NewClient, super_stream: str, group: str, rng: Random
) -> None:
    options: dict[str, Any] = {'group': group} | AUTO
    client, count, stopped = clients(), 0, False
    strands = await may_strand(client)
    readers: list[Reader] = []
    left: list[Reader] = []

    def bodies() -> list[Any]:
        return [body for reader in readers + left for body in reader.bodies]

    async def load() -> None:
        nonlocal count
        async with client.super_stream(super_stream).publisher(route=ROUTE) as publisher:
            while not stopped:
                end = count + 20
                await publisher.send_many(range(count, end))
                count = end
                await asyncio.sleep(0.005)

    loading = asyncio.create_task(load())
    for _ in range(12):
        if len(readers) < 2 or (len(readers) < 5 and rng.random() < 0.5):
            readers.append(Reader(clients().super_stream(super_stream).subscribe(**options)))
        else:
            left.append(readers.pop(rng.randrange(len(readers))))
            await left[-1].stop()
        if strands:
            await readers[-1].messages.open()
            await until_all_active(*readers)
        wanted = count + rng.randrange(100)
        await until(lambda wanted=wanted: len(bodies()) >= wanted, 'the group reads')  # type: ignore[misc]
    stopped = True
    await loading
    await until(lambda: len(bodies()) >= count, 'everything is read')
    for reader in readers:
        await reader.stop()
    assert Counter(bodies()) == Counter(range(count))


async def test_offset_function_that_raises_during_a_handover(
    clients: NewClient, super_stream: str, group: str
) -> None:
    """The member leaves the group, so that another one reads; after the error it joins again."""
    client = clients()
    _, partition, _ = await client.super_stream(super_stream).partitions()
    await publish(client, partition, range(10))
    failing = True

    async def ask(partition: str) -> rbs.Offset:
        if failing:
            raise OSError('the database is down')
        return rbs.Offset.FIRST

    options: dict[str, Any] = {'group': group}
    first = Reader(clients().super_stream(super_stream).subscribe(**options | AUTO))
    await until(lambda: len(first.bodies) == 10, 'the first member has read everything')
    second = clients().super_stream(super_stream).subscribe(offset=ask, **options)
    with pytest.raises(OSError, match='the database is down'):
        await take(second, 1)
    await until_all_active(first)
    await publish(client, partition, range(10, 20))
    await until(lambda: len(first.bodies) == 20, 'the first member reads on')
    failing = False
    assert await take(second, 20) == [*range(20)]
    await second.aclose()
    await first.stop()


@pytest.mark.parametrize(
    ('result', 'text'),
    [(5, 'result of the offset function must be Offset, not int'), (None, 'is not async')],
)
async def test_wrong_offset_function(
    clients: NewClient, stream: str, group: str, result: Any, text: str
) -> None:
    async def ask(stream: str) -> Any:
        return result

    source: Any = ask if result is not None else lambda stream: rbs.Offset.FIRST
    async with clients().subscribe(stream, group=group, offset=source) as messages:
        with pytest.raises(TypeError, match=text):
            await take(messages, 1)


async def test_slow_program_keeps_its_other_partitions_and_its_connection(
    clients: NewClient, super_stream: str, group: str
) -> None:
    """It holds a message of a partition that another member is to read."""
    client = clients()
    one, partition, _ = await client.super_stream(super_stream).partitions()
    found = client.events()
    options: dict[str, Any] = {'group': group} | AUTO
    slow = client.super_stream(super_stream).subscribe(**options)
    await slow.open()
    await until(lambda: len(slow.active) == 3, 'all partitions are active')
    await publish(client, partition, range(3))
    assert await take(slow, 1) == [0]
    second = Reader(clients().super_stream(super_stream).subscribe(**options))
    await until(lambda: partition not in slow.active, 'the broker rebalances')
    assert len(slow.active) == 2
    assert second.messages.active == ()
    await publish(client, one, range(100, 103))
    rest = Reader(slow)  # finishes the message
    await until(lambda: len(rest.bodies) + len(second.bodies) == 5, 'the rest is read')
    assert rest.bodies == [100, 101, 102]
    assert second.bodies == [1, 2]
    await rest.stop()
    await second.stop()
    await client.disconnect()
    kinds = {type(event) for event in [item async for item in found]}
    assert not kinds & {events.ConnectionLost, events.HandoverLate}


async def test_group_without_a_name_is_refused(clients: NewClient, stream: str) -> None:
    with pytest.raises(ValueError, match='group must not be empty'):
        clients().subscribe(stream, group='')
    with pytest.raises(ValueError, match=r'pass group=\.\.\.'):
        clients().subscribe(stream, commit='auto')


async def test_independent_groups_on_one_super_stream(
    clients: NewClient, super_stream: str, group: str
) -> None:
    groups: dict[str, list[Reader]] = {f'{group}-a': [], f'{group}-b': []}
    for name, readers in groups.items():
        options: dict[str, Any] = {'group': name} | AUTO
        for _ in range(2):  # if they joined at the same time, one might get all partitions
            readers.append(Reader(clients().super_stream(super_stream).subscribe(**options)))
            await until_all_active(*readers)
    client = clients()
    await publish_by_hash(client, super_stream, range(300))
    for readers in groups.values():
        one, other = readers

        def count(one: Reader = one, other: Reader = other) -> int:
            return len(one.bodies) + len(other.bodies)

        await until(lambda count=count: count() >= 300, 'a group has read everything')  # type: ignore[misc]
        assert one.bodies
        assert other.bodies
        assert Counter(one.bodies + other.bodies) == Counter(range(300))
    for name, (one, other) in groups.items():
        await one.stop()
        await other.stop()
        stored = [
            await client.read_offset(item, name)
            for item in await client.super_stream(super_stream).partitions()
        ]
        assert None not in stored


async def test_killed_connection_activates_another_member_and_events_tell(
    clients: NewClient, stream: str, group: str
) -> None:
    client, other = clients(), clients()
    of_first, of_second = client.events(), other.events()
    first = Reader(client.subscribe(stream, group=group, **AUTO))
    await until_active(first.messages)
    second = Reader(other.subscribe(stream, group=group, **AUTO))
    await second.messages.open()
    session_of(first.messages).registration.connection._transport.abort()
    await until_active(second.messages)
    await publish(clients(), stream, range(10))
    await until(lambda: len(second.bodies) == 10, 'the second member reads')
    await first.stop()
    await second.stop()
    assert not first.bodies
    for member in (client, other):
        await member.disconnect()
    for found, lost in ((of_first, True), (of_second, False)):
        kept = [item async for item in found if isinstance(item, events.GroupEvent)]
        assert kept == [events.Activated(stream, group), events.Deactivated(stream, group, lost)]


@pytest.mark.parametrize('commit', ['auto', 'manual'])
async def test_closing_before_any_message_keeps_the_stored_offset(
    clients: NewClient, stream: str, group: str, commit: Any
) -> None:
    client = clients()
    await publish(client, stream, range(10))
    await client.write_offset(stream, group, 5, wait=True)
    options: dict[str, Any] = {'group': group, 'commit': commit}
    async with clients().subscribe(stream, **options) as active:
        await active.open()
        await until_active(active)
        async with clients().subscribe(stream, **options) as standby:
            await standby.open()
        assert await client.read_offset(stream, group) == 5
    assert await client.read_offset(stream, group) == 5
    async with clients().subscribe(stream, **options) as messages:
        assert await take(messages, 4) == [*range(6, 10)]
