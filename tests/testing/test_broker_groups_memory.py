"""Groups of the in-memory broker: nodes, timeouts, and groups that are stranded without an active
member.
"""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import pytest
import pytest_asyncio

from rbfly.error import ArgumentError, StreamDoesNotExist
from rbfly.protocol.commands import DeletePublisher, Subscribe
from rbfly.protocol.offset import Offset
from rbfly.testing import StreamBroker
from tests.brokers import until
from tests.raw_client import connect, connect_and_open
from tests.raw_group import (
    GONE,
    OFF,
    ON,
    FilledStream,
    GroupConnection,
    filled_stream,
    properties,
    publish,
)


async def test_mixed_groups_are_refused() -> None:
    """RabbitMQ 4.3 also refuses them; they crash the stream coordinator of 4.0."""
    async with StreamBroker() as memory, filled_stream(memory.uri, 1) as found:
        a, b, c = await found.peers(3)
        await a.join()
        for name in (None, 'nothing'):
            group = properties(super_stream=name)
            command = Subscribe(0, found.stream, Offset.FIRST, 1, group)
            assert await b.client.code(command) == 0x11
        await c.join()
        assert await a.read_events() == [ON, OFF]
        for peer in (a, c):
            await peer.leave()
        await b.client.value(command)  # a new group


@pytest.mark.own_clock
@pytest.mark.parametrize('left', [False, True])
async def test_consumer_update_timeout(left: bool) -> None:
    """The connection is closed, even if the member has left before."""
    async with (
        StreamBroker(consumer_update_timeout=5) as memory,
        filled_stream(memory.uri) as found,
    ):
        a, b = await found.peers(2)
        await a.join()
        await b.join()
        if left:
            await a.leave()
        assert await a.next() == ON
        assert await a.client.receive() is None
        assert await b.next() == ON


@pytest.mark.own_clock
async def test_no_consumer_update_timeout_after_an_answer() -> None:
    async with (
        StreamBroker(consumer_update_timeout=5) as memory,
        filled_stream(memory.uri, 1) as found,
    ):
        a, b = await found.peers(2)
        await a.join()
        assert await a.next() == ON
        await a.answer()
        await b.join()
        await a.leave()  # counts as the answer
        assert await b.next() == ON
        assert await b.client.receive() is None
        await a.join()


async def test_connection_that_was_in_an_earlier_group_is_lost() -> None:
    async with StreamBroker() as memory, filled_stream(memory.uri, 1) as found:
        a, b, c = await found.peers(3)
        await a.join()
        await a.leave()
        await b.join()
        a.client.writer.close()
        await until(lambda: memory.connections == 4, 'the broker has closed the connection')
        await c.join()
        assert len(memory.members(found.stream, 'group')) == 2


@pytest.mark.parametrize('before', [b'', Subscribe.respond(1)])
async def test_connection_is_cut_while_it_joins(before: bytes) -> None:
    """No member stays behind, which would be active for good."""
    async with StreamBroker() as memory:
        memory.create_stream('orders')
        async with connect_and_open(memory.uri) as client:
            frame = Subscribe(0, 'orders', Offset.FIRST, 1, properties()).encode(1)
            memory.cut(after=len(frame + before) + 3)  # within the response, or the ConsumerUpdate
            client.write(frame)
            assert await client.reader.read() == before + bytes(3)
        assert memory.members('orders', 'group') == []


async def test_members() -> None:
    async with StreamBroker(nodes=2) as memory:
        memory.create_super_stream('orders', partitions=2)
        group = properties('billing', 'orders')
        assert memory.members('orders-1', 'billing') == []
        async with (
            connect_and_open(memory.uris[1]) as first,
            connect_and_open(memory.uris[0]) as second,
        ):
            a, b = (GroupConnection(client, 'orders-1', group) for client in (first, second))
            names = ['connection 1.1', 'connection 0.1']
            await a.join()
            assert memory.members('orders-1', 'billing') == [(names[0], 'active')]
            await b.join()
            found = memory.members('orders-1', 'billing')
            assert found == [(names[0], 'deactivating'), (names[1], 'waiting')]
            assert await a.next() == ON
            assert await a.next() == OFF
            await a.answer()
            found = memory.members('orders-1', 'billing')
            assert found == [(names[0], 'waiting'), (names[1], 'active')]
            await b.leave()
            assert memory.members('orders-1', 'billing') == [(names[0], 'active')]
            await a.leave()
            assert memory.members('orders-1', 'billing') == []
        with pytest.raises(StreamDoesNotExist):
            memory.members('nothing', 'billing')


@pytest.mark.parametrize(('name', 'moves'), [('more-1', True), ('more-2', False), ('more', False)])
async def test_partition_that_was_bound(name: str, moves: bool) -> None:
    """The end of its name is its number, as on RabbitMQ."""
    async with StreamBroker() as memory, AsyncExitStack() as stack:
        memory.create_super_stream('orders', partitions=1)
        memory.create_stream(name)
        memory.bind('orders', name, 'key')
        clients = [await stack.enter_async_context(connect_and_open(memory.uri)) for _ in range(2)]
        await publish(clients[0], name, 0)
        a, b = (
            GroupConnection(client, name, properties(super_stream='orders')) for client in clients
        )
        for peer in (a, b):
            await peer.join()
        assert await a.read_events() == ([ON, OFF] if moves else [ON])


async def test_groups_span_nodes_but_not_virtual_hosts() -> None:
    async with StreamBroker(nodes=3, vhosts=('/', 'other')) as memory, AsyncExitStack() as stack:
        peers = []
        for vhost, uri in (('/', memory.uris[1]), ('/', memory.uris[2]), ('other', memory.uri)):
            memory.create_stream('orders', vhost=vhost)
            client = await stack.enter_async_context(connect(uri))
            await client.handshake(vhost)
            await publish(client, 'orders', 0)
            peers.append(GroupConnection(client, 'orders', properties()))
            await peers[-1].join()
        a, b, c = peers
        assert [await peer.read_events() for peer in peers] == [[ON], [], [ON]]
        memory.stop_node(1)
        assert await a.client.receive() is None
        assert await b.next() == ON
        assert await c.read_events() == []


@pytest.mark.parametrize('everywhere', [False, True])
async def test_members_that_metadata_update_removes(everywhere: bool) -> None:
    async with StreamBroker(nodes=2) as memory, AsyncExitStack() as stack:
        memory.create_stream('orders')
        clients = [await stack.enter_async_context(connect_and_open(uri)) for uri in memory.uris]
        await publish(clients[0], 'orders', 0)
        await clients[0].value(DeletePublisher(0))
        a, b = (GroupConnection(client, 'orders', properties()) for client in clients)
        for peer in (a, b):
            await peer.join()
        assert await a.next() == ON
        if everywhere:
            memory.metadata_update('orders')
        else:
            memory.move_leader('orders', 1)  # removes the subscriptions at the old leader
        assert await a.next() == GONE
        assert await b.read_events() == [GONE if everywhere else ON]
        assert len(memory.members('orders', 'group')) == (0 if everywhere else 1)


async def test_connection_with_several_members_is_lost() -> None:
    """The group changes once, as on RabbitMQ 4.3: the active member stays."""
    async with StreamBroker() as memory, filled_stream(memory.uri, 1) as found:
        a, b, c = await found.peers(3)
        await a.join(id=1)
        await b.join()
        assert await a.read_events() == [(1, ON), (1, OFF)]
        await a.answer()
        await a.join(id=2)
        assert await b.read_events() == [ON]
        a.client.writer.close()
        await until(lambda: memory.connections == 4, 'the broker has closed the connection')
        assert await b.read_events() == []
        await c.join()
        assert await b.read_events() == [OFF]


# -- stranded groups

Stranded = tuple[StreamBroker, FilledStream, GroupConnection, GroupConnection]


@pytest_asyncio.fixture
async def stranded() -> AsyncIterator[Stranded]:
    """A group of two members, whose active member has received everything."""
    async with StreamBroker() as memory, filled_stream(memory.uri) as found:
        a, b = await found.peers(2)
        for peer in (a, b):
            await peer.join(credit=20)
        assert await a.next() == ON
        await a.answer()
        assert await a.read_events() == [0, 1, 2, 3, 4, 5]
        yield memory, found, a, b


def states(memory: StreamBroker, stream: str) -> list[str]:
    return [state for _, state in memory.members(stream, 'group')]


async def test_strand(stranded: Stranded) -> None:
    memory, found, a, b = stranded
    memory.strand(found.stream, 'group')
    memory.strand(found.stream, 'group')
    await found.publish(6)
    assert await a.read_events() == [OFF]
    await a.answer()
    assert [await peer.read_events() for peer in (a, b)] == [[], []]
    await a.leave()
    assert await b.read_events() == []
    assert states(memory, found.stream) == ['waiting']
    await a.join()
    assert [await peer.read_events() for peer in (a, b)] == [[ON], []]
    assert states(memory, found.stream) == ['waiting', 'active']
    c = await found.peer()
    await c.join()
    assert [await peer.read_events() for peer in (a, b, c)] == [[], [], []]


async def test_strand_a_group_that_hands_over() -> None:
    async with StreamBroker() as memory, filled_stream(memory.uri, 1) as found:
        a, b, c = await found.peers(3)
        for peer in (a, b):
            await peer.join()
        assert await a.read_events() == [ON, OFF]
        memory.strand(found.stream, 'group')
        await a.answer()
        assert [await peer.read_events() for peer in (a, b)] == [[], []]
        await c.join()
        assert [await peer.read_events() for peer in (a, b, c)] == [[], [ON], []]


async def test_stubborn(stranded: Stranded) -> None:
    memory, found, a, b = stranded
    memory.strand(found.stream, 'group', stubborn=True)
    memory.strand(found.stream, 'group', stubborn=True)
    assert await a.read_events() == [OFF]
    await a.answer()
    assert states(memory, found.stream) == ['active', 'waiting']
    await b.leave()
    await b.join()
    await a.leave()
    await a.join()
    assert [await peer.read_events() for peer in (a, b)] == [[], []]
    assert states(memory, found.stream) == ['active', 'waiting', 'waiting']
    a.client.writer.close()
    assert await b.next() == ON
    assert states(memory, found.stream) == ['active']


async def test_stubborn_partition() -> None:
    """A new member that would be active changes nothing."""
    async with StreamBroker() as memory, filled_stream(memory.uri, 1) as found:
        a, b = await found.peers(2)
        await a.join()
        memory.strand(found.stream, 'group', stubborn=True)
        await b.join()
        assert [await peer.read_events() for peer in (a, b)] == [[ON, OFF], []]
        await a.answer()
        assert [await peer.read_events() for peer in (a, b)] == [[], []]
        a.client.writer.close()
        assert await b.next() == ON


async def test_strand_a_partition_of_an_old_version() -> None:
    """Only a member that joins the empty group is activated."""
    async with StreamBroker(version='4.0') as memory, filled_stream(memory.uri, 1) as found:
        a, b = await found.peers(2)
        await a.join()
        memory.strand(found.stream, 'group')
        assert await a.read_events() == [ON, OFF]
        await a.answer()
        await b.join()
        await a.leave()
        await a.join()
        assert [await peer.read_events() for peer in (a, b)] == [[], []]
        await b.leave()
        await a.leave()
        await b.join()
        assert [await peer.read_events() for peer in (a, b)] == [[], [ON]]


@pytest.mark.parametrize('stubborn', [False, True])
@pytest.mark.parametrize('left', [False, True])
async def test_heal(stranded: Stranded, stubborn: bool, left: bool) -> None:
    memory, found, a, b = stranded
    memory.strand(found.stream, 'group', stubborn=stubborn)
    assert await a.read_events() == [OFF]
    if left:
        await a.leave()
    memory.heal()
    memory.heal()
    assert [await peer.read_events() for peer in (a, b)] == ([[], [ON]] if left else [[ON], []])
    assert states(memory, found.stream) == (['active'] if left else ['active', 'waiting'])


async def test_heal_a_group_that_all_have_left(stranded: Stranded) -> None:
    memory, found, a, b = stranded
    memory.strand(found.stream, 'group', stubborn=True)
    for peer in (a, b):
        await peer.leave()
    assert states(memory, found.stream) == ['active']
    memory.heal()
    assert states(memory, found.stream) == []


def test_nothing_to_strand() -> None:
    memory = StreamBroker()
    with pytest.raises(StreamDoesNotExist):
        memory.strand('orders', 'billing')
    memory.create_stream('orders')
    with pytest.raises(ArgumentError, match="stream 'orders' has no group 'billing'"):
        memory.strand('orders', 'billing')
