"""Frames that the in-memory broker sends, which are those of RabbitMQ."""

import asyncio
import random
import struct
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import pytest_asyncio

from rbfly.protocol import commands
from rbfly.protocol._chunk import Chunk
from rbfly.protocol.chunks import PublishEntry, message
from rbfly.protocol.commands import (
    Create,
    Credit,
    CreditError,
    DeclarePublisher,
    Delete,
    DeletePublisher,
    Metadata,
    MetadataUpdate,
    QueryOffset,
    QueryPublisherSequence,
    StoreOffset,
    StreamStats,
    Subscribe,
    Unsubscribe,
)
from rbfly.protocol.const import KEYS, Key
from rbfly.protocol.fields import TIME_MAX
from rbfly.protocol.message_frames import (
    Deliver,
    DeliverV2,
    Publish,
    PublishConfirm,
    PublishError,
    PublishV2,
)
from rbfly.protocol.offset import Offset
from rbfly.testing import StreamBroker
from tests.brokers import until
from tests.raw_client import TIMEOUT, RawClient, connect, connect_and_open, numbered_entries


@pytest_asyncio.fixture
async def memory() -> AsyncIterator[StreamBroker]:
    async with StreamBroker(users={'guest': 'guest', 'other': 'secret'}) as memory:
        memory.create_stream('s')
        yield memory


@pytest_asyncio.fixture
async def client(memory: StreamBroker) -> AsyncIterator[RawClient]:
    async with connect_and_open(memory.uri) as client:
        yield client


def filtered(*items: tuple[int, bytes | None]) -> tuple[PublishEntry, ...]:
    return tuple(PublishEntry(i, value, message(b'%d' % i)) for i, value in items)


async def publish(client: RawClient, *ids: int, publisher: int = 0) -> None:
    """Publish a chunk, and wait for its confirms."""
    client.send(Publish(publisher, numbered_entries(*ids)))
    assert await client.receive() == PublishConfirm(publisher, ids)


async def chunk(client: RawClient) -> Chunk:
    found = await client.receive()
    assert isinstance(found, Deliver | DeliverV2)
    data = found.chunk
    parsed = Chunk.parse(data, getattr(found, 'committed_chunk_id', None))
    parsed.verify()
    return parsed


async def nothing_more(client: RawClient) -> None:
    """Check that the broker sends nothing before the response to a request."""
    before = len(client.aside)
    await client.ask(Metadata(()))
    assert len(client.aside) == before


async def subscribe(client: RawClient, offset: Offset, credit: int = 10, id: int = 0) -> None:
    assert await client.code(Subscribe(id, 's', offset, credit, {})) == 1


# -- handshake and closing


async def test_handshake(memory: StreamBroker) -> None:
    async with connect(memory.uri) as client:
        properties = await client.value(commands.PeerProperties({'connection_name': 'test'}))
        assert properties['product'] == 'RabbitMQ'
        assert 'PLAIN' in await client.value(commands.SaslHandshake())
        await client.value(commands.SaslAuthenticate('PLAIN', b'\0guest\0guest'))
        assert await client.receive() == commands.Tune(2**20, 60)
        client.send(commands.Tune(4096, 0))
        address = await client.value(commands.Open('/'))
        assert address == {'advertised_host': '127.0.0.1', 'advertised_port': str(memory.port)}
        versions = await client.value(commands.ExchangeCommandVersions({Key.DELIVER: (1, 2)}))
        assert versions[Key.PUBLISH] == (1, 2)
        assert Key.DELIVER not in versions
        assert await client.code(commands.Close()) == 1
        assert await client.receive() is None


@pytest.mark.parametrize(
    ('mechanism', 'data', 'code'),
    [
        ('ANONYMOUS', b'', 0x14),
        ('PLAIN', b'\0other\0secret', 0x15),
        ('PLAIN', b'\0guest\0x', 0x08),
    ],
)
async def test_authenticating_again(
    client: RawClient, mechanism: str, data: bytes, code: int
) -> None:
    again = commands.SaslAuthenticate
    assert await client.code(again('PLAIN', b'\0guest\0guest')) == 0x01
    assert await client.code(again('PLAIN', b'\0guest\0guest')) == 0x01
    assert await client.code(again(mechanism, data)) == code
    assert await client.receive() is None


async def test_frame_too_large(memory: StreamBroker) -> None:
    async with connect_and_open(memory.uri) as client:
        client.write(struct.pack('>IHH', 2**20 + 1, Key.PUBLISH, 1), b'junk' * 1000)
        assert await client.receive() == commands.Close(0x0E, 'frame too large')
    async with connect(memory.uri) as client:
        client.write(commands.PeerProperties({'x': 'y' * 10_000}).encode(1))
        assert await client.receive() is None


@pytest.mark.both_loops
async def test_stop_while_a_client_does_not_read() -> None:
    async with StreamBroker() as memory:
        memory.create_stream('s')
        for _ in range(8):
            memory.publish('s', bytes(2**22))
        async with connect_and_open(memory.uri) as client:
            client.write(
                Subscribe(0, 's', Offset.FIRST, 8, {}).encode(1), commands.Close().encode(2)
            )
            await until(lambda: not memory.connections, 'the Close is answered')
            await asyncio.wait_for(memory.__aexit__(), TIMEOUT)


async def test_cut_within_a_frame(memory: StreamBroker) -> None:
    async with connect_and_open(memory.uri) as client:
        request = Metadata(()).encode(1)
        memory.cut(after=len(request) + 5)
        client.write(request)
        assert len(await asyncio.wait_for(client.reader.read(), TIMEOUT)) == 5


async def test_frames_in_pieces(client: RawClient) -> None:
    data = b''.join(Create(f'stream-{i}' * 20, {}).encode(i) for i in range(20))
    for start in range(0, len(data), 97):
        client.write(data[start : start + 97])
        await asyncio.sleep(0)
    for i in range(20):
        response = await client.receive()
        assert (response.correlation_id, response.code) == (i, 1)


async def test_heartbeats(memory: StreamBroker) -> None:
    async with connect(memory.uri) as client:
        await client.value(commands.PeerProperties({}))
        await client.value(commands.SaslHandshake())
        await client.value(commands.SaslAuthenticate('ANONYMOUS', b''))
        await client.receive()
        client.send(commands.Tune(0, 1))
        await client.value(commands.Open('/'))
        begun = time.monotonic()
        found = []
        while (item := await client.receive()) is not None:
            found.append(item)
        assert found
        assert all(item == commands.Heartbeat() for item in found)
        assert time.monotonic() - begun > 1.9


async def test_heartbeats_of_the_client(client: RawClient) -> None:
    client.send(commands.Heartbeat())
    await nothing_more(client)


async def test_broker_survives_random_frames(memory: StreamBroker, rng: random.Random) -> None:
    keys = [*KEYS, *(0x8000 | key for key in KEYS), 0x7000]
    for _ in range(100):
        if 's' not in memory.streams:  # a random frame has deleted it
            memory.create_stream('s')
        async with connect_and_open(memory.uri) as client:
            await client.value(DeclarePublisher(0, 'p', 's'))
            for _ in range(rng.randrange(1, 20)):
                body = rng.randbytes(rng.randrange(40))
                if rng.random() < 0.5:  # starts like a correlation id and a stream name
                    body = bytes(4) + commands.string('s') + body
                client.write(commands.frame(rng.choice(keys), body))
            client.write(rng.randbytes(rng.randrange(20)))
    memory.create_stream('after')
    async with connect_and_open(memory.uri) as client:
        await client.value(DeclarePublisher(0, '', 'after'))
        await publish(client, 1)


# -- streams


@pytest.mark.parametrize(
    ('name', 'arguments', 'code'),
    [
        ('t', {}, 0x01),
        ('t\r\n', {'unknown': 'x', 'max-age': '7D', 'max-length-bytes': '-1'}, 0x01),
        ('s', {}, 0x05),
        ('s', {'max-age': '1h'}, 0x11),
        ('', {}, 0x11),
        ('amq.t', {}, 0x11),
        ('t', {'stream-max-segment-size-bytes': '3000000000'}, 0x01),
        ('t', {'stream-max-segment-size-bytes': '3000000001'}, 0x11),
        ('t', {'initial-cluster-size': '0'}, 0x11),
        ('t', {'queue-leader-locator': 'nearest'}, 0x11),
        ('t', {'queue-leader-locator': 'balanced'}, 0x01),
        ('t', {'stream-filter-size-bytes': '15'}, 0x11),
        ('t', {'stream-filter-size-bytes': '255'}, 0x01),
    ],
)
async def test_create(
    memory: StreamBroker, client: RawClient, name: str, arguments: dict[str, str], code: int
) -> None:
    assert await client.code(Create(name, arguments)) == code
    assert memory.streams == (['s', 't'] if code == 1 else ['s'])


async def test_delete(client: RawClient) -> None:
    assert await client.code(Delete('nothing')) == 0x02
    assert await client.code(Delete('s')) == 0x01
    assert await client.code(Delete('s')) == 0x02


async def test_metadata(memory: StreamBroker, client: RawClient) -> None:
    found = await client.value(Metadata(('nothing', 's')))
    here = commands.NodeAddress('127.0.0.1', memory.port)
    assert found == {
        'nothing': commands.StreamMetadata(0x02, None, ()),
        's': commands.StreamMetadata(0x01, here, ()),
    }
    assert await client.value(Metadata(())) == {}


async def test_stream_stats(client: RawClient) -> None:
    assert set((await client.value(StreamStats('s'))).values()) == {-1}
    assert await client.code(StreamStats('nothing')) == 0x02
    await client.value(DeclarePublisher(0, '', 's'))
    await publish(client, 1, 2, 3)
    await publish(client, 4)
    assert await client.value(StreamStats('s')) == {
        'first_chunk_id': 0,
        'last_chunk_id': 3,
        'committed_chunk_id': 3,
        'committed_offset': 3,
    }


# -- publishing


async def test_declare_publisher(client: RawClient) -> None:
    assert await client.code(DeclarePublisher(0, '', 'nothing')) == 0x02
    assert await client.code(DeclarePublisher(0, '', 's')) == 0x01
    assert await client.code(DeclarePublisher(0, '', 's')) == 0x11
    assert await client.code(DeclarePublisher(1, '', 's')) == 0x01
    assert await client.code(DeclarePublisher(2, 'name', 's')) == 0x01
    assert await client.code(DeclarePublisher(255, 'name', 's')) == 0x11
    # written by hand: the encoder refuses a name of this length
    long = struct.pack('>IBH', 99, 3, 256) + b'x' * 256 + commands.string('s')
    client.write(commands.frame(Key.DECLARE_PUBLISHER, long))
    assert (await client.receive()).code == 0x11
    assert await client.code(DeletePublisher(0)) == 0x01
    assert await client.code(DeletePublisher(0)) == 0x12


async def test_unknown_publisher(memory: StreamBroker, client: RawClient) -> None:
    client.send(Publish(7, numbered_entries(1, 2)))
    assert await client.receive() == PublishError(7, ((1, 0x12), (2, 0x12)))
    client.send(PublishV2(7, filtered((3, None))))
    assert await client.receive() == PublishError(7, ((3, 0x12),))
    client.send(Publish(7, ()))
    assert await client.receive() == PublishError(7, ())
    assert memory.published == 0


async def test_frames_of_one_turn_form_one_chunk(memory: StreamBroker, client: RawClient) -> None:
    await client.value(DeclarePublisher(0, '', 's'))
    await client.value(DeclarePublisher(1, '', 's'))
    client.send(
        Publish(0, numbered_entries(1, 2)),
        Publish(1, numbered_entries(7)),
        Publish(0, ()),
        Publish(0, numbered_entries(3)),
    )
    assert await client.receive() == PublishConfirm(0, (1, 2, 3))
    assert await client.receive() == PublishConfirm(1, (7,))
    await subscribe(client, Offset.FIRST)
    found = await chunk(client)
    assert found.messages() == [b'1', b'2', b'7', b'3']
    assert memory.messages('s', raw=True) == [b'1', b'2', b'7', b'3']


async def test_many_entries(memory: StreamBroker, client: RawClient) -> None:
    await client.value(DeclarePublisher(0, '', 's'))
    client.send(Publish(0, numbered_entries(*range(20_000))))
    confirmed: list[int] = []
    while len(confirmed) < 20_000:
        confirmed += (await client.receive()).publishing_ids
    assert confirmed == [*range(20_000)]
    await subscribe(client, Offset.FIRST)
    found: list[bytes] = []
    while len(found) < 20_000:
        part = await chunk(client)
        assert part.offset == len(found)
        assert 0 < part.entries <= 8192
        found += part.messages()
    assert found == [b'%d' % i for i in range(20_000)]


async def test_deduplication(memory: StreamBroker, client: RawClient) -> None:
    assert await client.value(QueryPublisherSequence('p', 's')) == 0
    assert await client.code(QueryPublisherSequence('p', 'nothing')) == 0x02
    await client.value(DeclarePublisher(0, 'p', 's'))
    client.send(Publish(0, numbered_entries(3, 4, 2, 4, 10, 9)))
    assert await client.receive() == PublishConfirm(0, (2, 4, 9))
    assert await client.receive() == PublishConfirm(0, (3, 4, 10))
    assert memory.messages('s', raw=True) == [b'3', b'4', b'10']
    assert await client.value(QueryPublisherSequence('p', 's')) == 10
    assert await client.value(QueryPublisherSequence('q', 's')) == 0
    async with connect_and_open(memory.uri) as other:
        await other.value(DeclarePublisher(0, 'p', 's'))
        other.send(PublishV2(0, filtered((10, b'a'), (11, b'b'))))
        assert await other.receive() == PublishConfirm(0, (10,))
        assert await other.receive() == PublishConfirm(0, (11,))
    assert memory.messages('s', raw=True)[3:] == [b'11']


async def test_deleted_publisher_receives_no_confirms(
    memory: StreamBroker, client: RawClient
) -> None:
    await client.value(DeclarePublisher(0, '', 's'))
    client.write(
        Publish(0, numbered_entries(1)).encode(),
        DeletePublisher(0).encode(99),
        DeclarePublisher(0, '', 's').encode(100),
    )
    assert [(await client.receive()).correlation_id for _ in range(2)] == [99, 100]
    await nothing_more(client)
    assert memory.messages('s', raw=True) == [b'1']


# -- chunks


async def test_chunk_layout(memory: StreamBroker, client: RawClient) -> None:
    await client.value(DeclarePublisher(0, '', 's'))
    before = time.time() * 1000
    batch = struct.pack('>BHII', 0xF0, 5, 99, 4) + b'junk'  # unknown compression
    client.send(Publish(0, (*numbered_entries(1), PublishEntry(2, None, batch))))
    await client.receive()
    await publish(client, 3)
    await client.deliver_v2()
    await subscribe(client, Offset.FIRST)
    found = await client.receive()
    assert isinstance(found, DeliverV2)
    assert found.committed_chunk_id == 6
    assert found.chunk[0] == 0x50
    assert found.chunk[48:] == message(b'1') + batch
    parsed = Chunk.parse(found.chunk)
    parsed.verify()
    assert (parsed.offset, parsed.entries, parsed.records) == (0, 2, 6)
    assert (parsed.type, parsed.epoch) == (0, 1)
    assert before - 1 <= parsed.timestamp <= time.time() * 1000 + 1
    assert (await chunk(client)).offset == 6


@asynccontextmanager
async def five_chunks(memory: StreamBroker) -> AsyncIterator[RawClient]:
    """Publish five chunks of ten messages, an hour apart, the first three with filter values."""
    async with connect_and_open(memory.uri) as client:
        await client.value(DeclarePublisher(0, '', 's'))
        for i, value in enumerate((b'a', b'b', b'c', b'', None)):
            items = [(10 * i + k, value) for k in range(10)]
            client.send(PublishV2(0, filtered(*items)))
            await client.receive()
            memory.advance(3600)
        yield client


async def test_answer_follows_what_credit_permits(memory: StreamBroker, client: RawClient) -> None:
    """Even if the client reads slowly."""
    for _ in range(24):
        memory.publish('s', bytes(2**20))
    client.write(Subscribe(7, 's', Offset.FIRST, 30, {}).encode(1), StreamStats('s').encode(2))
    client.sent = 2
    found = [await client.receive() for _ in range(26)]
    assert [isinstance(item, Deliver | DeliverV2) for item in found[1:-1]] == [True] * 24
    assert found[-1].command is StreamStats


HOUR = 3600.0


@pytest.mark.parametrize(
    ('offset', 'first'),
    [
        (Offset.FIRST, 0),
        (Offset.LAST, 40),
        (Offset.NEXT, None),
        (Offset.offset(0), 0),
        (Offset.offset(25), 20),
        (Offset.offset(29), 20),
        (Offset.offset(30), 30),
        (Offset.offset(50), None),
        (Offset.offset(2**64 - 1), None),
        (Offset.timestamp(-TIME_MAX / 1000), 0),
        (Offset.timestamp(TIME_MAX / 1000), None),
    ],
)
async def test_starting_offset(memory: StreamBroker, offset: Offset, first: int | None) -> None:
    async with five_chunks(memory) as client:
        await subscribe(client, offset)
        if first is not None:
            assert (await chunk(client)).offset == first
            return
        await nothing_more(client)
        await client.value(DeclarePublisher(1, '', 's'))
        await publish(client, 50, publisher=1)
        assert (await chunk(client)).offset == 50


async def test_starting_timestamp(memory: StreamBroker) -> None:
    async with five_chunks(memory) as client:
        await subscribe(client, Offset.FIRST)
        times = [(await chunk(client)).timestamp for _ in range(5)]
        for number, milliseconds in enumerate((times[2], times[2] + 1, times[2] - 1), 1):
            start = Offset.timestamp(milliseconds / 1000)
            await subscribe(client, start, id=number)
            expected = 30 if milliseconds > times[2] else 20
            assert (await chunk(client)).offset == expected
            await client.value(Unsubscribe(number))
            client.aside.clear()


async def test_empty_stream(client: RawClient) -> None:
    for number, offset in enumerate((Offset.FIRST, Offset.LAST, Offset.NEXT, Offset.offset(3))):
        await subscribe(client, offset, id=number)
    await nothing_more(client)
    await client.value(DeclarePublisher(0, '', 's'))
    client.send(Publish(0, numbered_entries(1)))
    found = [await client.receive() for _ in range(5)]
    assert [item.subscription_id for item in found if isinstance(item, Deliver)] == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ('properties', 'offsets'),
    [
        ({}, [0, 10, 20, 30, 40]),
        ({'filter.0': 'b'}, [10]),
        ({'filter.0': 'a', 'filter.x': 'c'}, [0, 20]),
        ({'filter.0': 'a', 'match-unfiltered': 'true'}, [0, 30, 40]),
        ({'filter.0': 'a', 'match-unfiltered': 'True'}, [0]),
        ({'match-unfiltered': 'true'}, [0, 10, 20, 30, 40]),
        ({'filter.0': ''}, [30, 40]),
        ({'filter.0': 'nothing'}, []),
    ],
)
async def test_filters(
    memory: StreamBroker, properties: dict[str, str], offsets: list[int]
) -> None:
    async with five_chunks(memory) as client:
        command = Subscribe(0, 's', Offset.FIRST, 10, properties)
        assert await client.code(command) == 1
        assert [(await chunk(client)).offset for _ in offsets] == offsets
        await nothing_more(client)


async def test_chunk_with_filtered_and_unfiltered_messages(
    memory: StreamBroker, client: RawClient
) -> None:
    await client.value(DeclarePublisher(0, '', 's'))
    client.send(PublishV2(0, filtered((1, b'a'), (2, None))))
    await client.receive()
    for number, value in enumerate(('a', '', 'b')):
        properties = {'filter.0': value}
        assert await client.code(Subscribe(number, 's', Offset.FIRST, 1, properties)) == 1
    found = [await client.receive() for _ in range(2)]
    assert [item.subscription_id for item in found] == [0, 1]
    await nothing_more(client)
    chunk = found[0].chunk
    assert chunk[44] == 16  # size of the Bloom filter, which is not sent
    assert len(chunk) == 48 + 5 + 5


# -- credit and subscriptions


@pytest.mark.parametrize(
    ('initial', 'delivered'),
    [(0, [0, 1, 1, 1]), (1, [1, 1, 1, 1]), (2, [2, 0, 2, 0]), (4, [4, 0, 0, 3])],
)
async def test_credit(client: RawClient, initial: int, delivered: list[int]) -> None:
    await client.value(DeclarePublisher(0, '', 's'))
    for i in range(20):
        await publish(client, i)
    await subscribe(client, Offset.FIRST, initial)
    found = []
    for _ in delivered:
        await client.ask(Metadata(()))
        found.append(len(client.aside))
        client.aside.clear()
        client.send(Credit(0, 1))
    assert found == delivered


async def test_subscriptions(client: RawClient) -> None:
    assert await client.code(Subscribe(0, 'nothing', Offset.FIRST, 1, {})) == 0x02
    assert await client.code(Subscribe(0, 's', Offset.FIRST, 1, {})) == 0x01
    assert await client.code(Subscribe(0, 's', Offset.FIRST, 1, {})) == 0x03
    assert await client.code(Subscribe(1, 's', Offset.FIRST, 1, {'name': 'x' * 256})) == 0x11
    client.send(Credit(9, 1))
    assert await client.receive() == CreditError(0x04, 9)
    assert await client.code(Unsubscribe(0)) == 0x01
    assert await client.code(Unsubscribe(0)) == 0x04


# -- stored offsets


async def test_stored_offsets(memory: StreamBroker, client: RawClient) -> None:
    assert await client.code(QueryOffset('r', 's')) == 0x13
    assert await client.code(QueryOffset('r', 'nothing')) == 0x02
    client.send(StoreOffset('r', 'nothing', 5))
    for offset in (5, 3, 2**64 - 1):
        client.send(StoreOffset('r', 's', offset), StoreOffset('', 's', 1))
        assert await client.value(QueryOffset('r', 's')) == offset
    long = struct.pack('>H', 256) + b'x' * 256 + commands.string('s') + bytes(8)
    client.write(commands.frame(Key.STORE_OFFSET, long))
    await nothing_more(client)
    assert memory.offsets('s') == {'r': 2**64 - 1, '': 1}


async def test_stored_offset_uses_up_an_offset(client: RawClient) -> None:
    await client.value(DeclarePublisher(0, '', 's'))
    client.send(StoreOffset('r', 's', 5))
    await client.value(QueryOffset('r', 's'))
    await publish(client, 1)
    client.send(StoreOffset('r', 's', 6), Publish(0, numbered_entries(2)))  # in one chunk
    assert await client.receive() == PublishConfirm(0, (2,))
    await subscribe(client, Offset.FIRST)
    found = [await chunk(client) for _ in range(2)]
    assert [item.offset for item in found] == [1, 2]
    assert [item.messages() for item in found] == [[b'1'], [b'2']]


async def test_resolve_offset_spec(memory: StreamBroker) -> None:
    async with five_chunks(memory) as client:
        for spec, offset in ((Offset.LAST, 40), (Offset.offset(25), 20), (Offset.NEXT, 50)):
            found = await client.value(commands.ResolveOffsetSpec('s', spec, {}))
            assert found == Offset.offset(offset)


# -- deletion


@pytest.mark.parametrize('who', ['client', 'other', 'broker'])
async def test_stream_deleted_while_in_use(
    memory: StreamBroker, client: RawClient, who: str
) -> None:
    await client.value(DeclarePublisher(0, '', 's'))
    await subscribe(client, Offset.FIRST)
    if who == 'client':
        client.write(Delete('s').encode(99))
        response: Any = await client.receive()
        assert (response.correlation_id, response.code) == (99, 1)
    elif who == 'other':
        async with connect_and_open(memory.uri) as other:
            await other.value(Delete('s'))
    else:
        memory.delete_stream('s')
    assert await client.receive() == MetadataUpdate(0x06, 's')
    client.send(Publish(0, numbered_entries(1)))
    assert await client.receive() == PublishError(0, ((1, 0x12),))
    assert await client.code(DeletePublisher(0)) == 0x12
    assert await client.code(Unsubscribe(0)) == 0x04
    memory.create_stream('s')
    assert await client.code(DeclarePublisher(0, '', 's')) == 0x01
