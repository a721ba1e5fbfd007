"""The in-memory broker and RabbitMQ send the same frames in the same conversations.

RabbitMQ may distribute the entries of a Publish frame over chunks, so frames here have one entry.
"""

import struct
from collections.abc import Awaitable, Callable
from statistics import median
from typing import Any
from uuid import uuid4

import pytest

from brokers import RabbitMQ
from rbfly.protocol import commands
from rbfly.protocol._chunk import Chunk
from rbfly.protocol.chunks import PublishEntry, message
from rbfly.protocol.commands import (
    Create,
    CreateSuperStream,
    Credit,
    DeclarePublisher,
    Delete,
    DeletePublisher,
    DeleteSuperStream,
    Metadata,
    Partitions,
    QueryOffset,
    QueryPublisherSequence,
    Response,
    Route,
    StoreOffset,
    StreamStats,
    Subscribe,
    Unsubscribe,
)
from rbfly.protocol.const import Key
from rbfly.protocol.message_frames import Deliver, DeliverV2, Publish, PublishConfirm, PublishV2
from rbfly.protocol.offset import Offset
from rbfly.testing import StreamBroker
from tests.raw_client import RawClient, connect, connect_and_open, numbered_entries

Conversation = Callable[[RawClient, str], Awaitable[list[Any]]]


def batch(number: int, *messages: bytes) -> tuple[PublishEntry, ...]:
    """Messages in a sub-entry, which RabbitMQ keeps in one chunk."""
    data = b''.join(map(message, messages))
    head = struct.pack('>BHII', 0x80, len(messages), len(data), len(data))
    return (PublishEntry(number, None, head + data),)


async def confirmed(client: RawClient, count: int) -> list[tuple[int, int]]:
    """Publisher and publishing id of each confirm; RabbitMQ may split them into several frames."""
    found: list[tuple[int, int]] = []
    while len(found) < count:
        item = await client.receive()
        assert isinstance(item, PublishConfirm)
        found += [(item.publisher_id, number) for number in item.publishing_ids]
    return sorted(found)


async def chunks(client: RawClient, stream: str, *values: bytes | None) -> None:
    """Publish chunks: one message if it has a filter value, otherwise three."""
    await client.value(DeclarePublisher(0, '', stream))
    for i, value in enumerate(values):
        if value is None:
            client.send(Publish(0, batch(i, b'a', b'b', b'%d' % i)))
        else:
            client.send(PublishV2(0, numbered_entries(i, filter=value)))
        await confirmed(client, 1)


async def aside(client: RawClient, stream: str) -> list[Any]:
    """Return all frames received, after two round trips to the leader of the stream."""
    for _ in range(2):
        await client.ask(QueryPublisherSequence('nobody', stream))
        await client.ask(StreamStats(stream))
    found, client.aside = client.aside, []
    return found


async def delivered(client: RawClient, count: int) -> list[Any]:
    return [await client.receive() for _ in range(count)]


# -- conversations


async def creating(client: RawClient, stream: str) -> list[Any]:
    given: list[dict[str, str]] = [
        {},
        {},
        {'max-age': '1h'},
        {'unknown': 'x'},
    ]
    found = [await client.code(Create(stream, arguments)) for arguments in given]
    refused = [
        {'stream-max-segment-size-bytes': '3000000001'},
        {'initial-cluster-size': '0'},
        {'queue-leader-locator': 'nearest'},
        {'stream-filter-size-bytes': '15'},
        {'stream-filter-size-bytes': '256'},
    ]
    found += [await client.code(Create(f'{stream}-x', arguments)) for arguments in refused]
    found += [await client.code(Create(name, {})) for name in ('', 'amq.test')]
    taken = {'max-age': '7D', 'max-length-bytes': '-1', 'queue-leader-locator': 'balanced'}
    for arguments in (taken, taken, taken | {'max-age': '1D'}):
        found.append(await client.code(Create(f'{stream}-y\n', arguments)))
    for name in (stream, stream, f'{stream}-x', f'{stream}-y'):
        found.append(await client.code(Delete(name)))
    return found


async def declaring(client: RawClient, stream: str) -> list[Any]:
    long = struct.pack('>IBH', 99, 7, 256) + b'x' * 256 + commands.string(stream)
    codes = [
        await client.code(DeclarePublisher(*arguments))
        for arguments in (
            (0, '', stream),
            (0, '', stream),
            (1, '', stream),
            (2, 'name', stream),
            (255, 'name', stream),
            (255, '', 'nothing'),
        )
    ]
    client.write(commands.frame(Key.DECLARE_PUBLISHER, long))
    found = [*codes, await client.receive()]
    return [*found, *[await client.code(DeletePublisher(i)) for i in (0, 0, 2, 255)]]


async def publishing(client: RawClient, stream: str) -> list[Any]:
    await client.value(DeclarePublisher(0, '', stream))
    await client.value(DeclarePublisher(1, '', stream))
    client.send(
        Publish(0, numbered_entries(5, 5, 1)),
        Publish(1, ()),
        PublishV2(1, numbered_entries(7, filter=b'')),
        PublishV2(1, numbered_entries(8, filter=b'x')),
        Publish(9, numbered_entries(1, 2)),
        PublishV2(9, numbered_entries(3, filter=b'x')),
    )
    refused: list[Any] = []
    confirms: list[tuple[int, int]] = []
    while len(confirms) < 5 or len(refused) < 2:
        item = await client.receive()
        if isinstance(item, PublishConfirm):
            confirms += [(item.publisher_id, number) for number in item.publishing_ids]
        else:
            refused.append(item)
    return [sorted(confirms), *refused, *await aside(client, stream)]


async def deduplicating(client: RawClient, stream: str) -> list[Any]:
    found: list[Any] = [await client.ask(QueryPublisherSequence('p', stream))]
    await client.value(DeclarePublisher(0, 'p', stream))
    client.send(Publish(0, numbered_entries(3, 4, 2, 4, 10, 9)))
    found.append(await confirmed(client, 6))
    client.send(Publish(0, numbered_entries(1, 2)))
    found.append(await confirmed(client, 2))
    found.append(await client.ask(QueryPublisherSequence('p', stream)))
    found.append(await client.ask(QueryPublisherSequence('p', 'nothing')))
    client.send(Publish(0, numbered_entries(11)))
    await confirmed(client, 1)
    await client.value(Subscribe(0, stream, Offset.FIRST, 10, {}))
    stored: list[bytes] = []
    while stored[-1:] != [b'11']:
        last = (await delivered(client, 1))[0]
        stored += Chunk.parse(last.chunk).messages()
    return [*found, stored, last]


async def many_names(client: RawClient, stream: str) -> list[Any]:
    """When a segment begins, the broker forgets all but the 255 names that were used last."""
    small = f'{stream}-names'
    await client.value(Create(small, {'stream-max-segment-size-bytes': '100000'}))

    async def publish(name: str, number: int, size: int = 1) -> None:
        await client.value(DeclarePublisher(0, name, small))
        client.send(Publish(0, (PublishEntry(number, None, message(bytes(size))),)))
        await confirmed(client, 1)
        await client.value(DeletePublisher(0))

    async def known() -> list[int]:
        return [await client.value(QueryPublisherSequence(f'{i}', small)) for i in range(300)]

    for i in range(300):
        await publish(f'{i}', i + 10)
    await publish('0', 1000)
    found = [await known()]
    for _ in range(3):
        await publish('', 0, 50_000)
    found.append(await known())
    await publish('1', 11)  # a duplicate, but the broker does not know
    found.append(await known())
    assert [item.count(0) for item in found] == [0, 45, 44]
    await client.value(Delete(small))
    client.aside.clear()
    return found


async def sequence(client: RawClient, stream: str) -> list[Any]:
    """The sequence covers everything that the broker has read, stored and confirmed or not."""
    found: list[Any] = []
    await client.value(DeclarePublisher(0, 'p', stream))
    for ids in ((1,), (2, 3, 7), (5, 8), (6,)):
        client.send(Publish(0, numbered_entries(*ids)))
        found.append(await client.ask(QueryPublisherSequence('p', stream)))
    found.append(await confirmed(client, 7))
    client.send(Publish(0, numbered_entries(9)))
    found.append(await client.code(DeletePublisher(0)))
    found.append(await client.ask(QueryPublisherSequence('p', stream)))
    await client.value(DeclarePublisher(1, 'q', stream))
    client.send(Publish(1, numbered_entries(2**64 - 1)))
    found.append(await client.ask(QueryPublisherSequence('q', stream)))
    return [*found, await client.ask(QueryPublisherSequence('p', stream))]


async def starting(client: RawClient, stream: str) -> list[Any]:
    empty = (Offset.FIRST, Offset.LAST, Offset.NEXT, Offset.offset(0), Offset.offset(7))
    for number, offset in enumerate(empty):
        await client.value(Subscribe(number, stream, offset, 10, {}))
    client.send(StoreOffset('r', stream, 1))
    await client.value(QueryOffset('r', stream))
    found: list[Any] = [await client.ask(StreamStats(stream))]
    await client.value(DeclarePublisher(0, '', stream))
    client.send(Publish(0, batch(0, b'0', b'1', b'2')))
    first = [item for item in await delivered(client, 6) if isinstance(item, Deliver)]
    found += sorted(first, key=lambda item: item.subscription_id)
    for number in range(5):
        await client.value(Unsubscribe(number))
    client.send(Publish(0, batch(1, b'3', b'4')))
    await confirmed(client, 1)
    given = (
        Offset.FIRST, Offset.LAST, Offset.NEXT, *map(Offset.offset, (0, 1, 3, 4, 5, 6, 99)),
        Offset.timestamp(0), Offset.timestamp(2**40),
    )  # fmt: skip
    for number, offset in enumerate(given):
        await client.value(Subscribe(number, stream, offset, 10, {}))
        found += [number, *await settled(client, stream)]
    found.append(await client.ask(StreamStats(stream)))
    return found


async def settled(client: RawClient, stream: str) -> list[Any]:
    """Return all frames delivered before a new subscription receives its first chunk."""
    await client.value(Subscribe(200, stream, Offset.LAST, 1, {}))
    found = []
    while True:
        item = await client.receive()
        if item.subscription_id == 200:
            break
        found.append(item)
    await client.value(Unsubscribe(200))
    return found + await aside(client, stream)


async def crediting(client: RawClient, stream: str) -> list[Any]:
    await chunks(client, stream, *[None] * 14)
    found: list[Any] = []
    for number, credit in enumerate((0, 1, 2, 4)):
        await client.value(Subscribe(number, stream, Offset.FIRST, credit, {}))
        found += await settled(client, stream)
        for _ in range(4):
            client.send(Credit(number, 1))
            found += ['credit', *await settled(client, stream)]
    client.send(Credit(77, 1))
    return found + await delivered(client, 1)


async def filtering(client: RawClient, stream: str) -> list[Any]:
    await chunks(client, stream, b'a', b'b', b'c', b'', None)
    await client.deliver_v2()
    found: list[Any] = []
    for number, properties in enumerate(
        (
            {},
            {'filter.0': 'b'},
            {'filter.0': 'a', 'filter.x': 'c'},
            {'filter.0': 'a', 'match-unfiltered': 'true'},
            {'filter.0': 'b', 'match-unfiltered': 'True'},
            {'match-unfiltered': 'true'},
            {'filter.0': ''},
        )
    ):
        await client.value(Subscribe(number, stream, Offset.FIRST, 10, properties))
        found += [properties, *await settled(client, stream)]
    return found


async def tracking(client: RawClient, stream: str) -> list[Any]:
    found = [await client.ask(QueryOffset(*item)) for item in (('r', stream), ('r', 'nothing'))]
    client.send(StoreOffset('r', 'nothing', 5))
    for offset in (5, 3, 2**64 - 1):
        client.send(StoreOffset('r', stream, offset))
        found.append(await client.ask(QueryOffset('r', stream)))
    await chunks(client, stream, None)
    client.send(StoreOffset('', stream, 4))
    found.append(await client.ask(QueryOffset('', stream)))
    client.write(
        commands.frame(Key.STORE_OFFSET, b'\1\0' + b'x' * 256 + commands.string(stream) + bytes(8))
    )
    found.append(await client.ask(QueryOffset('x', stream)))
    client.send(Publish(0, numbered_entries(9)))
    await confirmed(client, 1)
    await client.value(Subscribe(0, stream, Offset.FIRST, 10, {}))
    return found + await delivered(client, 2) + [await client.ask(StreamStats(stream))]


async def subscribing(client: RawClient, stream: str) -> list[Any]:
    given: tuple[tuple[int, str, dict[str, str]], ...] = (
        (0, 'nothing', {}),
        (0, stream, {}),
        (0, stream, {}),
        (1, stream, {'name': 'x' * 256}),
        (255, stream, {'name': 'x' * 255}),
    )
    found: list[Any] = [
        await client.code(Subscribe(number, name, Offset.FIRST, 1, properties))
        for number, name, properties in given
    ]
    return [*found, *[await client.code(Unsubscribe(i)) for i in (0, 0, 1, 255)]]


async def deleting(client: RawClient, stream: str) -> list[Any]:
    await client.value(DeclarePublisher(0, '', stream))
    await client.value(DeclarePublisher(1, 'p', stream))
    await client.value(Subscribe(0, stream, Offset.FIRST, 10, {}))
    client.write(Delete(stream).encode(99))
    found = await delivered(client, 2)
    client.send(Publish(0, numbered_entries(1)))
    found += await delivered(client, 1)
    found += [await client.code(DeletePublisher(0)), await client.code(Unsubscribe(0))]
    found.append(await client.ask(Metadata((stream,))))
    await client.value(Create(stream, {}))
    return [*found, await client.code(DeclarePublisher(0, '', stream))]


async def super_streams(client: RawClient, stream: str) -> list[Any]:
    name, taken = f'{stream}-s', f'{stream}-t'
    parts, keys = tuple(f'{name}-{i}' for i in range(12)), tuple(map(str, range(12)))
    found: list[Any] = [
        await client.code(CreateSuperStream(*item))
        for item in (
            (name, parts, keys, {'max-age': '1h'}),
            (name, parts, keys, {'max-age': '1h'}),
            (name, parts, keys, {}),
            (name, parts[:1], keys[:1], {}),
            (name, (), (), {}),
            (taken, (f'{taken}-0', stream), ('0', '1'), {}),
            (taken, (f'{taken}-0', parts[1]), ('0', '1'), {}),
            (taken, (f'{taken}-0', f'{taken}-0'), ('0', '1'), {}),
            (taken, (f'{taken}-0',), ('0', '1'), {}),
            (taken, (f'{taken}-0', f'{taken}-1'), ('0',), {}),
            (name, parts, keys[:1], {}),
            (taken, (f'{taken}-0', 'amq.test'), ('0', '1'), {}),
            (taken, ('',), ('0',), {}),
            ('', (f'{taken}-0',), ('0',), {}),
            ('amq.test', (f'{taken}-0',), ('0',), {}),
            (taken, (f'{taken}-0',), ('0',), {'initial-cluster-size': '0'}),
        )
    ]
    for other in (name, taken, stream, parts[0], 'nothing'):
        found.append(await client.ask(Partitions(other)))
        found.append(await client.ask(Route('1', other)))
    for other in (taken, stream, parts[0]):
        found.append(await client.code(DeleteSuperStream(other)))
    found.append(await client.code(Delete(name)))
    found.append(await client.ask(Metadata((name, f'{taken}-0'))))
    found.append(await client.ask(Route('01', name)))
    found.append(await client.code(CreateSuperStream(name, parts, keys, {})))
    found.append(await client.code(DeleteSuperStream(name)))
    return [*found, await client.ask(Partitions(name)), await client.code(Delete(parts[0]))]


async def names_of_super_streams(client: RawClient, stream: str) -> list[Any]:
    """A stream and a super stream may have the same name; keys may repeat."""
    found: list[Any] = []
    for names, keys in (((stream, f'{stream}-1'), ('', '')), ((stream,), ('k' * 256,)), ((), ())):
        name = f'{stream}-s\r\n' if names else stream
        found.append(await client.code(Delete(stream)))
        found.append(await client.code(CreateSuperStream(name, names, keys, {})))
        name = name.strip()
        found += [await client.ask(Route(key, name)) for key in {*keys, 'k'}]
        found.append(await client.ask(Partitions(name)))
        found.append(await client.ask(Partitions(f'{name}\n')))
        found.append(await client.code(Create(stream, {})))
        found.append(await client.code(DeleteSuperStream(name)))
        found.append(await client.code(Create(stream, {})))
    return found


async def deleting_partitions(client: RawClient, stream: str) -> list[Any]:
    name = f'{stream}-s'
    parts = tuple(f'{name}-{i}' for i in range(3))
    await client.value(CreateSuperStream(name, parts, ('0', '1', '2'), {}))
    for number, part in enumerate((*parts, parts[0])):
        await client.value(DeclarePublisher(number, '', part))
        await client.value(Subscribe(number, part, Offset.FIRST, 10, {}))
    found: list[Any] = [await client.ask(Delete(parts[1])), *await delivered(client, 1)]
    for item in (Partitions(name), Route('1', name)):
        found.append(await client.ask(item))
    found.append(await client.code(CreateSuperStream(name, parts, ('0', '1', '2'), {})))
    client.write(DeleteSuperStream(name).encode(99))
    found += sorted(await delivered(client, 3), key=repr)
    found += [await client.code(item) for item in (DeletePublisher(0), Unsubscribe(2))]
    return [*found, *await aside(client, stream)]


async def versions(client: RawClient, stream: str) -> list[Any]:
    await client.ask(commands.ExchangeCommandVersions({Key.DELIVER: (1, 2), Key.PUBLISH: (1, 2)}))
    await chunks(client, stream, None, None)
    await client.value(Subscribe(0, stream, Offset.FIRST, 10, {}))
    return await delivered(client, 2)


async def versions_of_a_subscription(client: RawClient, stream: str) -> list[Any]:
    await client.value(DeclarePublisher(0, '', stream))
    await client.value(Subscribe(0, stream, Offset.FIRST, 10, {}))
    found = []
    given: tuple[dict[int, tuple[int, int]], ...] = (
        {},
        {Key.DELIVER: (1, 2)},
        {},
        {Key.DELIVER: (1, 1)},
        {Key.DELIVER: (1, 3)},
    )
    for number, versions in enumerate(given):
        await client.ask(commands.ExchangeCommandVersions(versions))
        client.send(Publish(0, batch(number, b'x')))
        frames = await delivered(client, 2)
        found += [item for item in frames if not isinstance(item, PublishConfirm)]
    return found


async def commands_of_the_version(client: RawClient, stream: str) -> list[Any]:
    found = await client.value(commands.ExchangeCommandVersions({}))
    stats = await client.value(StreamStats(stream))
    client.write(commands.ResolveOffsetSpec(stream, Offset.FIRST, {}).encode(1))
    return [sorted(found.items()), stats, *await delivered(client, 1)]


CONVERSATIONS: dict[str, Conversation] = {
    item.__name__: item
    for item in (
        creating, declaring, publishing, deduplicating, many_names, sequence, starting, crediting,
        filtering, tracking, subscribing, deleting, super_streams, names_of_super_streams,
        deleting_partitions, versions, versions_of_a_subscription, commands_of_the_version,
    )
}  # fmt: skip


def comparable(item: Any) -> Any:
    """Omit what differs between runs: the timestamp of a chunk, and statistics."""
    if isinstance(item, Deliver | DeliverV2):
        chunk = item.chunk[:8] + bytes(8) + item.chunk[16:]
        return type(item).__name__, item.subscription_id, chunk.hex(' ', 8)
    if isinstance(item, Response) and item.command is StreamStats:
        stats = {key: value for key, value in item.value.items() if key != 'committed_offset'}
        return item.code, stats  # RabbitMQ 4.0 does not send committed_offset
    return item.__dict__ if isinstance(item, Response) else item


async def run_conversation(uri: str, stream: str, conversation: Conversation) -> list[Any]:
    """Run a conversation, and return what the broker sent."""
    async with connect_and_open(uri) as client:
        made = conversation is not creating
        if made:
            await client.value(Create(stream, {}))
        try:
            async with connect_and_open(uri) as talking:
                return [comparable(item) for item in await conversation(talking, stream)]
        finally:
            if made:
                await client.value(Delete(stream))


@pytest.mark.parametrize('name', CONVERSATIONS)
async def test_same_conversation(broker: RabbitMQ, name: str) -> None:
    stream, conversation = f'test-{uuid4()}', CONVERSATIONS[name]
    async with connect(broker.uri) as client:
        properties = await client.value(commands.PeerProperties({}))
    version: Any = '.'.join(properties['version'].split('.')[:2])
    async with StreamBroker(version=version) as memory:
        found = await run_conversation(memory.uri, stream, conversation)
    expected = await run_conversation(broker.uri, stream, conversation)
    assert found == expected
    assert found


# -- chunks

# The writes of a client, and the number of chunks that RabbitMQ 4.0 and 4.3 usually store.
WRITES = {
    (1, 1_000, 10, None): 6,
    (20, 50, 10_000, None): 6,
    (1_000, 1, 10_000, None): 8,
    (100, 100, 1_000, None): 9,
    (10_000, 1, 100, None): 10,
    (100, 1, 1_000, 1): 100,
    (100, 100, 100, 1): 201,
    (100, 50, 10_000, 10): 25,
}


async def chunks_of(uri: str, frames: int, per_frame: int, size: int, in_flight: int | None) -> int:
    """Publish frames, and return the number of their chunks.

    :param size: bytes of a message.
    :param in_flight: number of frames that the client sends without a confirm; None for all.
    """
    stream, total = f'test-{uuid4()}', frames * per_frame
    frame = Publish(0, (PublishEntry(0, None, message(bytes(size))),) * per_frame).encode()
    left = frames
    async with connect_and_open(uri) as client, connect_and_open(uri) as reading:
        await client.value(Create(stream, {}))
        await client.value(DeclarePublisher(0, '', stream))

        def send(count: int) -> None:
            nonlocal left
            client.write(frame * min(count, left))
            left -= min(count, left)

        send(in_flight or frames)
        done = 0
        while done < total:
            before, done = done, done + len((await client.receive()).publishing_ids)
            send(done // per_frame - before // per_frame)
        await reading.value(Subscribe(0, stream, Offset.FIRST, 2 * frames + 100, {}))
        found, read = 0, 0
        while read < total:
            read += Chunk.parse((await reading.receive()).chunk).records
            found += 1
        await client.value(Delete(stream))
    return found


@pytest.mark.parametrize('writes', WRITES)
async def test_messages_per_chunk(writes: tuple[int, int, int, int | None]) -> None:
    """The in-memory broker joins what arrives together as RabbitMQ does."""
    async with StreamBroker() as memory:
        found = await chunks_of(memory.uri, *writes)
    assert WRITES[writes] / 2 <= found <= WRITES[writes] * 2


@pytest.mark.parametrize('writes', WRITES)
async def test_messages_per_chunk_of_rabbitmq(
    broker: RabbitMQ, writes: tuple[int, int, int, int | None]
) -> None:
    """The numbers above are RabbitMQ's."""
    for _ in range(5):  # on a busy machine, other messages may arrive together
        found = median([await chunks_of(broker.uri, *writes) for _ in range(5)])
        if WRITES[writes] / 2 <= found <= WRITES[writes] * 2:
            break
    assert WRITES[writes] / 2 <= found <= WRITES[writes] * 2
