"""Consumer groups: one member at a time reads a stream, or each partition of a super stream."""

import asyncio
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

import rbfly.streams as rbs
from rbfly.streams import events
from tests.brokers import until
from tests.group_members import NewClient, Reader, publish, take, until_active
from tests.inside import session_of

# -- a stream


async def test_one_member_reads(clients: NewClient, stream: str, group: str) -> None:
    first = Reader(clients().subscribe(stream, group=group, commit='auto'))
    await until_active(first.messages)
    second = Reader(clients().subscribe(stream, group=group, commit='auto'))
    await second.messages.open()
    await publish(clients(), stream, range(100))
    await until(lambda: len(first.bodies) == 100, 'the group has changed')
    assert not second.messages.active
    assert not second.bodies
    await first.stop()
    await until_active(second.messages)
    await publish(clients(), stream, range(100, 200))
    await until(lambda: len(second.bodies) == 100, 'the group has changed')
    await second.stop()
    assert first.bodies + second.bodies == [*range(200)]
    assert await clients().read_offset(stream, group) is not None


async def test_the_next_member_starts_after_the_stored_offset(
    clients: NewClient, stream: str, group: str
) -> None:
    client = clients()
    await publish(client, stream, range(10))
    options: Any = {'group': group, 'commit': 'auto', 'offset': rbs.Offset.FIRST}
    async with client.subscribe(stream, **options) as messages:
        assert await take(messages, 4) == [0, 1, 2, 3]
    # the fourth message was not finished
    async with clients().subscribe(stream, **options) as messages:
        assert await take(messages, 7) == [*range(3, 10)]


async def test_messages_between_two_members_are_delivered(
    clients: NewClient, stream: str, group: str
) -> None:
    """Nothing was stored under the group's name, since no message was delivered."""
    client = clients()
    options: Any = {'group': group, 'offset': rbs.Offset.NEXT}
    async with client.subscribe(stream, **options) as messages:
        await messages.open()
        await until_active(messages)
    await publish(client, stream, range(10))
    async with clients().subscribe(stream, **options) as messages:
        assert await take(messages, 10) == [*range(10)]


async def test_group_starts_at_the_first_message(
    clients: NewClient, stream: str, super_stream: str, group: str
) -> None:
    """A member that starts late misses nothing; a subscription without a group starts at NEXT."""
    client = clients()
    partition = (await client.super_stream(super_stream).partitions())[0]
    for name in (stream, partition):
        await publish(client, name, range(5))
    async with (
        client.subscribe(stream) as plain,
        client.subscribe(stream, group=group) as messages,
        client.super_stream(super_stream).subscribe(group=group) as merged,
    ):
        assert await take(messages, 5) == [*range(5)]
        assert await take(merged, 5) == [*range(5)]
        await plain.open()
        await publish(client, stream, range(5, 6))
        assert await take(plain, 1) == [5]


async def test_messages_between_open_and_activity_are_delivered(
    clients: NewClient, stream: str, group: str
) -> None:
    client = clients()
    await publish(client, stream, range(5))
    async with client.subscribe(stream, group=group, offset=rbs.Offset.NEXT) as messages:
        await messages.open()
        await publish(client, stream, range(5, 8))
        assert await take(messages, 3) == [5, 6, 7]


@pytest.mark.parametrize('kind', ['function', 'manual', 'automatic'])
async def test_second_takes_over_where_the_first_stopped(
    clients: NewClient, stream: str, group: str, kind: str
) -> None:
    kept: dict[str, int] = {}

    async def ask(name: str) -> rbs.Offset:
        return rbs.Offset.offset(kept.get(name, 0))

    options: dict[str, Any] = {'offset': rbs.Offset.FIRST, 'commit': 'auto'}
    if kind == 'function':
        options = {'offset': ask}
    elif kind == 'manual':
        options['commit'] = rbs.OffsetTracking(manual=True)
    client = clients()
    await publish(client, stream, range(10))
    async with client.subscribe(stream, group=group, **options) as messages:
        assert await take(messages, 6) == [*range(6)]
        kept[stream] = messages.position or 0
        if kind == 'manual':
            await messages.commit()
        if kind == 'automatic':  # asks for the next one
            await take(messages, 1)
    async with clients().subscribe(stream, group=group, **options) as messages:
        assert await take(messages, 4) == [*range(6, 10)]


async def test_killed_connection_of_the_active_member(
    clients: NewClient, stream: str, group: str
) -> None:
    # A slow broker must not give the timer time to store an offset before the connection is cut.
    at_the_end = rbs.OffsetTracking(every=0, interval=0)
    options: Any = {'group': group, 'commit': at_the_end, 'offset': rbs.Offset.FIRST}
    first = Reader(clients().subscribe(stream, **options))
    await until_active(first.messages)
    second = Reader(clients().subscribe(stream, **options))
    await second.messages.open()
    client = clients()
    await publish(client, stream, range(10))
    await until(lambda: len(first.bodies) == 10, 'the group has changed')
    session_of(first.messages).registration.connection._transport.abort()
    await until_active(second.messages)
    await publish(client, stream, range(10, 20))
    await until(lambda: 19 in second.bodies, 'the group has changed')
    assert not first.messages.active
    await first.stop()
    await second.stop()
    # the first member had finished nine messages, but their offset was not stored
    assert first.bodies == [*range(10)]
    assert second.bodies == [*range(20)]


async def test_a_member_that_lost_its_activity_stores_nothing(
    clients: NewClient, stream: str, group: str
) -> None:
    options: Any = {
        'group': group,
        'commit': rbs.OffsetTracking(manual=True),
        'offset': rbs.Offset.FIRST,
    }
    client = clients()
    await publish(client, stream, range(10))
    async with client.subscribe(stream, **options) as first:
        assert await take(first, 5) == [*range(5)]
        connection: Any = session_of(first).registration.connection
        connection._transport.abort()
        await until_active(first, False)
        for offset in (None, 3):
            with pytest.raises(rbs.OffsetNotStored, match='is no longer active'):
                await first.commit(offset)
        assert await client.read_offset(stream, group) is None
        async with clients().subscribe(stream, **options) as second:
            assert await take(second, 10) == [*range(10)]


async def test_events(clients: NewClient, stream: str, group: str) -> None:
    client = clients()
    found = client.events()
    async with client.subscribe(stream, group=group) as messages:
        await messages.open()
        await until_active(messages)
    await client.disconnect()
    of_group = [item async for item in found if isinstance(item, events.GroupEvent)]
    assert of_group == [events.Activated(stream, group), events.Deactivated(stream, group)]


async def test_error_of_the_offset_function(clients: NewClient, stream: str, group: str) -> None:
    await publish(clients(), stream, range(3))
    errors = [OSError('the database is down')]

    async def ask(name: str) -> rbs.Offset:
        if errors:
            raise errors.pop()
        return rbs.Offset.offset(1)

    async with clients().subscribe(stream, group=group, offset=ask) as messages:
        with pytest.raises(OSError, match='the database is down'):
            await take(messages, 1)
        assert await take(messages, 2) == [1, 2]


async def test_offset_function_that_takes_too_long(
    clients: NewClient, stream: str, group: str
) -> None:
    await publish(clients(), stream, range(3))
    hang = True

    async def ask(name: str) -> rbs.Offset:
        if hang:
            await asyncio.Event().wait()
        return rbs.Offset.FIRST

    client = clients()
    hasty = rbs.Group(group, handover_timeout=0.05)
    async with client.subscribe(stream, group=hasty, offset=ask) as messages:
        with pytest.raises(rbs.StreamConnectionError, match=r'within 0\.05 s, while determining'):
            await take(messages, 1)
        hang = False
    async with client.subscribe(stream, group=group, offset=ask) as messages:
        assert await take(messages, 3) == [0, 1, 2]


# -- a super stream


def super_options(group: str) -> dict[str, Any]:
    """Return the arguments of members that start at the first message of each partition."""
    return {
        'group': group,
        'commit': 'auto',
        'offset': rbs.Offset.FIRST,
    }


async def test_members_share_the_partitions(
    clients: NewClient, super_stream: str, group: str
) -> None:
    client = clients()
    route = rbs.by_hash(str)
    options: Any = {'group': group, 'commit': 'auto'}
    first = Reader(clients().super_stream(super_stream).subscribe(**options))
    await until(lambda: len(first.messages.active) == 3, 'the group has changed')
    second = Reader(clients().super_stream(super_stream).subscribe(**options))
    await until(lambda: len(second.messages.active) == 1, 'the group has changed')
    await until(lambda: len(first.messages.active) == 2, 'the group has changed')
    assert {*first.messages.active, *second.messages.active} == {
        *await client.super_stream(super_stream).partitions()
    }
    async with client.super_stream(super_stream).publisher(route=route) as publisher:
        await publisher.send_many(range(300))
    await until(lambda: len(first.bodies) + len(second.bodies) == 300, 'the group has changed')
    assert second.bodies
    await first.stop()
    await until(lambda: len(second.messages.active) == 3, 'the group has changed')
    async with client.super_stream(super_stream).publisher(route=route) as publisher:
        await publisher.send_many(range(300, 600))
    await until(lambda: len(first.bodies) + len(second.bodies) == 600, 'the group has changed')
    await second.stop()
    assert Counter(first.bodies + second.bodies) == Counter(range(600))


async def test_handover_waits_until_messages_are_finished(
    clients: NewClient, super_stream: str, group: str
) -> None:
    client = clients()
    _, partition, _ = await client.super_stream(super_stream).partitions()
    await publish(client, partition, range(10))
    options = super_options(group)
    first = client.super_stream(super_stream).subscribe(**options)
    assert await take(first, 1) == [0]
    await until(lambda: len(first.active) == 3, 'all partitions are active')
    second = Reader(clients().super_stream(super_stream).subscribe(**options))
    await until(lambda: partition not in first.active, 'the broker rebalances')
    await second.messages.open()
    assert not second.messages.active
    rest = Reader(first)  # asks for the next message
    await until(lambda: len(second.bodies) == 9, 'the second member has read the rest')
    assert second.bodies == [*range(1, 10)]
    assert second.messages.active == (partition,)
    await rest.stop()
    await second.stop()
    assert not rest.bodies


async def test_late_handover(clients: NewClient, super_stream: str, group: str) -> None:
    """A message that the program does not finish in time is delivered twice; an event says so."""
    client = clients()
    found = client.events()
    _, partition, _ = await client.super_stream(super_stream).partitions()
    await publish(client, partition, range(10))
    options = super_options(group)
    first: Any = client.super_stream(super_stream).subscribe(**options)
    assert await take(first, 3) == [0, 1, 2]
    await until(lambda: len(first.active) == 3, 'all partitions are active')
    member = session_of(first).sessions[partition]._member
    patient, member.group = member.group, replace(member.group, handover_timeout=0.01)
    second = Reader(clients().super_stream(super_stream).subscribe(**options))
    await until(lambda: len(second.bodies) == 8, 'the second member has read the rest')
    member.group = patient  # for its next activity
    assert second.bodies == [*range(2, 10)]
    # finished too late: stores nothing
    rest = Reader(first)
    await second.stop()
    assert await client.read_offset(partition, group) == 9
    await until(lambda: len(first.active) == 3, 'all partitions are active')
    await publish(client, partition, range(10, 12))
    await until(lambda: len(rest.bodies) == 2, 'the first member reads on')
    await rest.stop()
    await client.disconnect()
    assert events.HandoverLate(partition, group) in [item async for item in found]
