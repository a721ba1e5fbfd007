"""Offsets that the members of a group store with `commit` and `write_offset`."""

import asyncio
from typing import Any

import pytest

import rbfly.streams as rbs
from tests.brokers import until
from tests.group_members import HANG, NewClient, Reader, publish, take, until_active
from tests.inside import session_of
from tests.super_streams import subscribe_to

MANUAL: dict[str, Any] = {
    'commit': rbs.OffsetTracking(manual=True),
    'offset': rbs.Offset.FIRST,
}


async def lose_activity(messages: rbs.Subscription) -> None:
    connection = session_of(messages).registration.connection
    assert connection is not None
    connection.abort()
    await until_active(messages, False)


# -- commit


async def test_commit_reports_once_what_it_could_not_store(
    clients: NewClient, stream: str, group: str
) -> None:
    client = clients()
    await publish(client, stream, range(10))
    async with client.subscribe(stream, group=group, **MANUAL) as messages:
        assert await take(messages, 5) == [*range(5)]
        await messages.commit(1)
        await lose_activity(messages)
        with pytest.raises(rbs.OffsetNotStored, match='offset 4 is not stored'):
            await messages.commit()
        await messages.commit()
        for _ in range(2):
            with pytest.raises(rbs.OffsetNotStored, match='no longer active'):
                await messages.commit(3)
    assert await client.read_offset(stream, group) == 1


async def test_commit_after_the_end(clients: NewClient, stream: str, group: str) -> None:
    """The member has left: another one receives its uncommitted messages again."""
    client = clients()
    await publish(client, stream, range(10))
    for committed in (False, True):
        async with client.subscribe(stream, group=group, **MANUAL) as messages:
            assert await take(messages, 5) == [*range(5)]
            if committed:
                await messages.commit()
        if not committed:
            with pytest.raises(rbs.OffsetNotStored, match='offset 4 is not stored'):
                await messages.commit()
        await messages.commit()


@pytest.mark.parametrize('again', [3, 7])
async def test_commit_of_a_member_that_is_active_again(
    clients: NewClient, stream: str, group: str, again: int
) -> None:
    client = clients()
    await publish(client, stream, range(10))
    async with client.subscribe(stream, group=group, **MANUAL) as messages:
        assert await take(messages, 5) == [*range(5)]
        await lose_activity(messages)
        assert await take(messages, again) == [*range(again)]
        if again < 5:
            with pytest.raises(rbs.OffsetNotStored, match='offset 4 is not stored'):
                await messages.commit()
        await messages.commit()
        assert await client.read_offset(stream, group) == again - 1


@pytest.mark.parametrize('stored', [7, 9])
async def test_commit_of_a_message_that_another_member_has_committed_since(
    clients: NewClient, client: rbs.StreamsClient, stream: str, group: str, stored: int
) -> None:
    """The program still holds it when its member is active again: the group does not go back."""
    await publish(client, stream, range(10))
    async with clients().subscribe(stream, group=group, **MANUAL) as messages:
        assert await take(messages, 5) == [*range(5)]
        await lose_activity(messages)
        await client.write_offset(stream, group, stored, wait=True)
        waiting = asyncio.ensure_future(anext(messages))
        if stored == 7:
            assert await waiting == 8
        else:
            await until_active(messages)
        with pytest.raises(rbs.OffsetNotStored, match='was not active in between'):
            await messages.commit(4)
        assert await client.read_offset(stream, group) == stored
        await publish(client, stream, [10])
        await waiting
        await messages.commit()
    found = await client.read_offset(stream, group)
    assert found is not None
    assert found > stored


async def test_commit_of_a_message_that_is_delivered_again(
    clients: NewClient, client: rbs.StreamsClient, stream: str, group: str
) -> None:
    """The program holds it since before its member lost its activity."""
    await publish(client, stream, range(10))
    async with clients().subscribe(stream, group=group, **MANUAL) as messages:
        assert await take(messages, 5) == [*range(5)]
        await lose_activity(messages)
        await client.write_offset(stream, group, 1, wait=True)
        assert await anext(messages) == 2
        with pytest.raises(rbs.OffsetNotStored, match='was not active in between'):
            await messages.commit(4)
        with pytest.raises(ValueError, match='was not delivered'):
            await messages.commit(5)
        assert await client.read_offset(stream, group) == 1
        assert await take(messages, 2) == [3, 4]
        await messages.commit(4)
    assert await client.read_offset(stream, group) == 4


@pytest.mark.parametrize('committed', [False, True])
async def test_commit_after_partitions_were_handed_over(
    clients: NewClient, super_stream: str, group: str, committed: bool
) -> None:
    client = clients()
    async with client.super_stream(super_stream).publisher(route=rbs.by_hash(str)) as publisher:
        await publisher.send_many(range(60))
    options = MANUAL | {'group': group}
    first = Reader(client.super_stream(super_stream).subscribe(**options))
    await until(lambda: len(first.bodies) == 60, 'the first member has read everything')
    if committed:
        await first.messages.commit()
    second = Reader(clients().super_stream(super_stream).subscribe(**options))

    def settled() -> bool:
        kept, taken = first.messages.active, second.messages.active
        return bool(kept) and bool(taken) and len(kept) + len(taken) == 3

    await until(settled, 'the partitions are distributed')
    taken = second.messages.active
    if not committed:
        with pytest.raises(rbs.OffsetNotStored) as caught:
            await first.messages.commit()
        for name in await client.super_stream(super_stream).partitions():
            assert (repr(name) in str(caught.value)) == (name in taken)
    await first.messages.commit()
    for name in await client.super_stream(super_stream).partitions():
        stored = await client.read_offset(name, group)
        assert (stored is not None) == (committed or name not in taken)
    await first.stop()
    await second.stop()


async def test_commit_of_several_partitions_raises_one_error(
    clients: NewClient, super_stream: str, group: str
) -> None:
    client = clients()
    async with client.super_stream(super_stream).publisher(route=rbs.by_hash(str)) as publisher:
        await publisher.send_many(range(60))
    options = MANUAL | {'group': group}
    reader = Reader(client.super_stream(super_stream).subscribe(**options))
    await until(lambda: len(reader.bodies) == 60, 'everything is read')
    position = reader.messages.position
    await reader.stop()
    names = await client.super_stream(super_stream).partitions()
    for offsets in (None, {name: position[name] - 1 for name in names[:2]}):
        with pytest.raises(rbs.OffsetNotStored) as caught:
            await reader.messages.commit(offsets)
        missing = f'for partitions {", ".join(map(repr, offsets or names))}: '
        assert missing in str(caught.value)
        assert isinstance(caught.value.__cause__, rbs.OffsetNotStored)
    await reader.messages.commit()


# -- write_offset


@pytest.mark.parametrize('wait', [False, True])
async def test_offset_is_written_on_the_connection_of_the_active_member(
    clients: NewClient, stream: str, group: str, wait: bool
) -> None:
    """A member that does not know yet that it has lost its connection changes nothing."""
    client, other = clients(), clients()
    options: Any = {'offset': rbs.Offset.FIRST, 'commit': 'manual'}
    await publish(client, stream, range(10))
    first = client.subscribe(stream, group=group, **options)
    assert await take(first, 5) == [*range(5)]
    await client.write_offset(stream, group, 3, wait=True)
    connection = session_of(first).registration.connection
    assert connection is not None
    sent = connection.requests_sent
    await client.write_offset(stream, group, 4, wait=wait)
    assert connection.requests_sent > sent or not wait
    async with other.subscribe(stream, group=group, **options) as second:
        connection.abort()
        assert await take(second, 5) == [*range(5, 10)]
        await other.write_offset(stream, group, 9, wait=True)
        with pytest.raises(rbs.OffsetNotStored, match='no longer active'):
            await client.write_offset(stream, group, 4, wait=wait)
        assert await client.read_offset(stream, group) == 9
        await first.aclose()
    await client.write_offset(stream, group, 4, wait=True)  # no member any more
    assert await client.read_offset(stream, group) == 4


@pytest.mark.parametrize('wait', [False, True])
async def test_offset_is_not_written_again_after_a_lost_connection(
    clients: NewClient, stream: str, group: str, wait: bool
) -> None:
    """While it waits to write, or for the answer, the member loses its connection."""
    client, other = clients(), clients()
    await publish(client, stream, range(10))
    async with client.subscribe(
        stream, group=group, offset=rbs.Offset.FIRST, commit='manual'
    ) as messages:
        assert await take(messages, 5) == [*range(5)]
        connection = session_of(messages).registration.connection
        assert connection is not None
        if wait:
            connection.write = lambda data: None
        else:
            connection.pause_writing()
        writing = asyncio.ensure_future(client.write_offset(stream, group, 4, wait=wait))
        await asyncio.sleep(0)
        connection.abort()
        with pytest.raises(rbs.OffsetNotStored, match='no longer active'):
            await asyncio.wait_for(writing, HANG)
        assert await other.read_offset(stream, group) is None


async def test_one_of_several_members_of_a_client_is_active(
    clients: NewClient, super_stream: str, group: str
) -> None:
    client = clients()
    names = await client.super_stream(super_stream).partitions()
    options: dict[str, Any] = {'group': group, 'offset': rbs.Offset.FIRST}
    readers: list[Reader] = []

    def settled() -> bool:
        active = [reader.messages.active for reader in readers]
        return all(active) and sum(map(len, active)) == 3

    for _ in range(2):  # if they joined at the same time, one might get all partitions
        readers.append(Reader(client.super_stream(super_stream).subscribe(**options)))
        await until(settled, 'the partitions are distributed')
    for name in names:
        await client.write_offset(name, group, 7, wait=True)
    third = Reader(clients().super_stream(super_stream).subscribe(**options))
    readers.append(third)
    await until(settled, 'the partitions are distributed again')
    [taken] = third.messages.active
    for name in names:
        if name == taken:
            with pytest.raises(
                rbs.OffsetNotStored, match=f'on stream {name!r} is no longer active'
            ):
                await client.write_offset(name, group, 8)
            await client.write_offset(name, 'other', 8, wait=True)
        else:
            await client.write_offset(name, group, 8, wait=True)
    for reader in readers:
        await reader.stop()


# -- closing


@pytest.mark.parametrize('kind', ['single', 'super'])
async def test_close_of_a_member_reports_an_offset_that_it_could_not_store(
    clients: NewClient, stream: str, super_stream: str, group: str, kind: str
) -> None:
    """The connection is lost while the member waits until the broker has stored the offset."""
    client, name = clients(), stream if kind == 'single' else super_stream
    opener: Any = client.publisher(name)
    if kind != 'single':
        opener = client.super_stream(name).publisher(route=rbs.by_hash(str))
    async with opener as publisher:
        await publisher.send_many(range(60))
    at_the_end = rbs.OffsetTracking(every=0, interval=0)
    options: dict[str, Any] = {'group': group, 'commit': at_the_end, 'offset': rbs.Offset.FIRST}
    messages = subscribe_to(client, name, super_stream=kind == 'super', **options)
    await take(messages, 60)
    session = session_of(messages)
    parts = [session] if kind == 'single' else [*session.sessions.values()]
    connections = {item.registration.connection for item in parts}
    for connection in connections:
        connection.write = lambda data: None
    closing = asyncio.ensure_future(messages.aclose())
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    for connection in connections:
        connection.abort()
    with pytest.raises(rbs.OffsetNotStored) as caught:
        await closing
    for part in parts:
        assert repr(part.stream) in str(caught.value)
    await messages.aclose()
    for part in parts:
        assert await client.read_offset(part.stream, group) is None
