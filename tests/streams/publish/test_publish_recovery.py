"""Publishers that lose their connection, their declaration, their leader or their stream.

Proofs run full restarts, also of a cluster: `python -m perf prove publish-restart`,
`publish-leader`.
"""

import asyncio
import struct
from collections.abc import AsyncIterator, Callable, Iterator
from itertools import chain, repeat
from unittest.mock import Mock

import pytest

import rbfly.streams as rbs
from brokers import RabbitMQ
from rbfly.error import RbFlyError
from rbfly.net import retry
from rbfly.streams._publish.session import PublisherSession
from rbfly.streams.error import (
    AuthenticationError,
    ConfirmTimeout,
    PublishError,
    StreamConnectionError,
    StreamDoesNotExist,
)
from tests import fake_broker as wire
from tests.brokers import until
from tests.fake_broker import FakeBroker, Frame, Handler, Step, refuse
from tests.fake_broker import FakeConnection as Peer
from tests.inside import cluster_of, connection_of
from tests.registrations import FakeRegistration
from tests.streams.publish.test_publish import stored


@pytest.fixture(autouse=True)
def _retry_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retry, 'BACKOFF_FIRST', 0.001)


def once(handler: Handler, other: Handler) -> Handler:
    """Use one handler for the first request, another one for the following."""
    handlers: Iterator[Handler] = iter([handler])
    return lambda connection, request: next(handlers, other)(connection, request)


def default(connection: Peer, request: Frame) -> None:
    connection.broker.default(connection, request)


def moved(connection: Peer, request: Frame) -> None:
    """The stream is no longer available on the node."""
    connection.send(wire.frame(wire.METADATA_UPDATE, b'\x00\x06' + wire.string('test')))


def missing(connection: Peer, request: Frame) -> None:
    """Metadata of a stream that does not exist."""
    name = request.body[8:]
    body = request.body[:4] + struct.pack('>II', 0, 1) + name + struct.pack('>HHI', 2, 0xFFFF, 0)
    connection.send(wire.frame(0x8000 | wire.METADATA, body))


def cluster(connection: Peer, request: Frame) -> None:
    """Metadata of a stream whose leader is one of two nodes."""
    brokers = struct.pack('>I', 2)
    for number, host in enumerate(('elsewhere', 'leader')):
        brokers += struct.pack('>H', number) + wire.string(host) + struct.pack('>I', 5552)
    stream = struct.pack('>I', 1) + request.body[8:] + struct.pack('>HHIH', 1, 1, 1, 0)
    connection.send(wire.frame(0x8000 | wire.METADATA, request.body[:4] + brokers + stream))


def published(fake: FakeBroker) -> list[list[int]]:
    """Publishing ids of each received frame."""
    return [
        request.publishing_ids
        for connection in fake.connections
        for request in connection.frames
        if request.key == wire.PUBLISH
    ]


# -- connections of publishers and of other requests are lost separately


async def test_lost_connections_are_independent() -> None:
    async with (
        FakeBroker() as fake,
        rbs.streams_client(fake.uri) as client,
        client.publisher('test') as publisher,
    ):
        locator, publishing = fake.connections
        locator.transport.abort()
        await locator.lost
        await publisher.send('x')
        await client.create_stream('other')  # on a new connection
        assert publishing.commands().count(wire.PUBLISH) == 1
        assert len(fake.connections) == 3

        publishing.transport.abort()
        await until(lambda: len(fake.connections) == 4, 'the client reconnects')
        await publisher.send('x')
        await client.create_stream('third')
        assert fake.connections[2].commands().count(wire.CREATE) == 2


# -- unsettled messages are resent on a new connection


@pytest.mark.parametrize('how', [wire.RESETTING, wire.CLOSING, refuse(0x12), moved])
@pytest.mark.parametrize('name', [None, 'me'])
async def test_unsettled_messages_are_resent(how: Handler, name: str | None) -> None:
    async with (
        FakeBroker(on={wire.PUBLISH: once(how, default)}) as fake,
        rbs.streams_client(fake.uri) as client,
        client.publisher('test', name=name) as publisher,
    ):
        await asyncio.gather(*(publisher.send(i) for i in range(5)))
        await publisher.send('behind')
        first, *others = published(fake)
        assert first == [1]  # written at once; the others wait for the end of the turn
        again = list(chain(*others))
        assert again in ([1, 2, 3, 4, 5, 6], [2, 3, 4, 5, 1, 2, 3, 4, 5, 6])
        assert publisher.message_id == 7


async def test_batch_is_resent() -> None:
    async with (
        FakeBroker(on={wire.PUBLISH: once(wire.RESETTING, default)}) as fake,
        rbs.streams_client(fake.uri) as client,
        client.publisher('test') as publisher,
    ):
        for i in range(5):
            publisher.batch(i)
        await publisher.flush()
        assert published(fake) == [[1, 2, 3, 4, 5]] * 2


async def test_messages_batched_before_the_loss_are_sent_after_those_in_flight() -> None:
    async with (
        FakeBroker() as fake,
        rbs.streams_client(fake.uri) as client,
        client.publisher('test') as publisher,
    ):
        publisher.batch('x')
        for connection in fake.connections:
            connection.transport.abort()
        await until(lambda: len(fake.connections) > 2, 'the client reconnects')
        publisher.batch('y')
        await publisher.flush()
        assert list(chain(*published(fake))) == [1, 2]


async def test_only_unsettled_messages_are_resent() -> None:
    def confirm_one(connection: Peer, request: Frame) -> None:
        first = request.publishing_ids[0]
        body = struct.pack('>BIQ', request.body[0], 1, first)
        connection.send(wire.frame(wire.PUBLISH_CONFIRM, body))
        connection.transport.close()

    async with (
        FakeBroker(on={wire.PUBLISH: once(confirm_one, default)}) as fake,
        rbs.streams_client(fake.uri) as client,
        client.publisher('test') as publisher,
    ):
        for i in range(3):
            publisher.batch(i)
        await publisher.flush()
        assert published(fake) == [[1, 2, 3], [2, 3]]


async def test_backoff_restarts_after_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    backoff = Mock(side_effect=lambda: repeat(0.001))

    def confirm_one(connection: Peer, request: Frame) -> None:
        body = struct.pack('>BIQ', request.body[0], 1, request.publishing_ids[0])
        connection.send(wire.frame(wire.PUBLISH_CONFIRM, body))
        connection.transport.close()

    monkeypatch.setattr('rbfly.net.retry.backoff', backoff)
    async with (
        FakeBroker(on={wire.PUBLISH: confirm_one}) as fake,
        rbs.streams_client(fake.uri) as client,
        client.publisher('test') as publisher,
    ):
        assert await publisher.send_many(range(4)) == 4
        assert backoff.call_count >= 3


async def test_metadata_update_is_one_outage() -> None:
    async with (
        FakeBroker(on={wire.PUBLISH: once(moved, default)}) as fake,
        rbs.streams_client(fake.uri) as client,
        client.publisher('test') as first,
        client.publisher('test') as second,
        client.publisher('other') as third,
    ):
        await first.send('x')
        await second.send('y')
        await third.send('z')
        declared = [
            request.body[-4:]
            for connection in fake.connections
            for request in connection.frames
            if request.key == wire.DECLARE_PUBLISHER
        ]
        assert declared.count(b'test') == 4
        assert len(declared) == 5  # the other stream has not moved


# -- an unavailable stream is retried, a missing one is not


@pytest.mark.parametrize('code', [0x06, 0x11])
async def test_redeclaring_is_retried_until_it_succeeds(code: int) -> None:
    tries = 0

    def declare(connection: Peer, request: Frame) -> None:
        nonlocal tries
        tries += 1
        refused = 2 <= tries <= 4
        (refuse(code) if refused else default)(connection, request)

    async with (
        FakeBroker(
            on={
                wire.PUBLISH: once(wire.RESETTING, default),
                wire.DECLARE_PUBLISHER: declare,
            }
        ) as fake,
        rbs.streams_client(fake.uri) as client,
        client.publisher('test') as publisher,
    ):
        await publisher.send('x')
        assert tries == 5


async def test_publisher_waits_for_an_unavailable_stream() -> None:
    async with (
        FakeBroker(on={wire.DECLARE_PUBLISHER: once(refuse(0x06), default)}) as fake,
        rbs.streams_client(fake.uri) as client,
        client.publisher('test') as publisher,
    ):
        await publisher.send('x')


async def test_deleted_stream_ends_the_publisher() -> None:
    async with (
        FakeBroker(on={wire.PUBLISH: moved}) as fake,
        rbs.streams_client(fake.uri) as client,
        client.publisher('test') as publisher,
    ):
        fake.handlers[wire.METADATA] = missing
        for _ in range(2):
            with pytest.raises(StreamDoesNotExist):
                await publisher.send('x')


async def test_stream_deleted_while_publishing(client: rbs.StreamsClient, stream: str) -> None:
    async def send() -> None:
        while True:
            await publisher.send('x')

    async with asyncio.timeout(60):
        with pytest.raises(StreamDoesNotExist):  # noqa: PT012
            async with client.publisher(stream, max_unconfirmed=50) as publisher:
                tasks = [asyncio.create_task(send()) for _ in range(10)]
                many = asyncio.create_task(publisher.send_many(iter(lambda: 'y', None)))
                await publisher.send('z')
                await client.delete_stream(stream)
                outcomes = await asyncio.gather(*tasks, many, return_exceptions=True)
                assert {type(item) for item in outcomes} == {StreamDoesNotExist}
                await publisher.send('late')


async def test_wrong_password_at_the_reconnect_is_raised_at_once() -> None:
    async with (
        FakeBroker(on={wire.PUBLISH: wire.RESETTING}) as fake,
        rbs.streams_client(fake.uri) as client,
        client.publisher('test') as publisher,
    ):
        fake.handlers[Step.SASL_AUTHENTICATE] = refuse(0x08)
        with pytest.raises(AuthenticationError):
            await publisher.send('x')


@pytest.mark.own_clock
async def test_reconnect_timeout() -> None:
    async with (
        FakeBroker(on={wire.PUBLISH: wire.RESETTING}) as fake,
        rbs.streams_client(fake.uri, reconnect_timeout=0.2) as client,
        client.publisher('test') as publisher,
    ):
        fake.handlers[Step.PEER_PROPERTIES] = wire.CLOSING
        with pytest.raises(StreamConnectionError, match=r'0\.2 s'):
            await publisher.send('x')
        with pytest.raises(StreamConnectionError, match=r'0\.2 s'):
            await publisher.send('y')


@pytest.mark.parametrize('cls', [rbs.Publisher, rbs.PublisherBatchFast])
async def test_disconnect_ends_a_publisher_that_reconnects(cls: type) -> None:
    async with FakeBroker(on={wire.PUBLISH: wire.RESETTING}) as fake:
        client = rbs.streams_client(fake.uri)
        async with client.publisher('test') as publisher:
            sending = asyncio.create_task(publisher.send('x'))
            fake.handlers[Step.OPEN] = wire.SILENT
            await until(lambda: len(fake.connections) == 3, 'the client reconnects')
            await client.disconnect()
            with pytest.raises(StreamConnectionError, match='disconnected'):
                await sending
        assert not client.connected


async def test_close_while_reconnecting() -> None:
    async with (
        FakeBroker(on={wire.PUBLISH: wire.RESETTING}) as fake,
        rbs.streams_client(fake.uri, close_timeout=0.2) as client,
    ):
        sending = []
        with pytest.raises(ConfirmTimeout):  # noqa: PT012
            async with client.publisher('test') as publisher:
                sending.append(asyncio.create_task(publisher.send('x')))
                fake.handlers[Step.OPEN] = wire.SILENT
                await until(lambda: len(fake.connections) == 3, 'the client reconnects')
        with pytest.raises(RbFlyError, match='closed before the confirm'):
            await sending[0]
        await publisher.close()


async def test_close_cancelled_while_reconnecting() -> None:
    async with (
        FakeBroker(on={wire.PUBLISH: wire.RESETTING}) as fake,
        rbs.streams_client(fake.uri) as client,
        client.publisher('test') as publisher,
    ):
        sending = asyncio.create_task(publisher.send('x'))
        fake.handlers[Step.OPEN] = wire.SILENT
        await until(lambda: len(fake.connections) == 3, 'the client reconnects')
        closing = asyncio.create_task(publisher.close())
        await asyncio.sleep(0)
        closing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await closing
        with pytest.raises(RbFlyError, match='closed before the confirm'):
            await sending


async def test_close_in_the_turn_in_which_the_connection_is_lost() -> None:
    async with (
        FakeBroker() as fake,
        rbs.streams_client(fake.uri) as client,
        client.publisher('test') as publisher,
    ):
        closing: list[asyncio.Task[None]] = []
        connection = connection_of(publisher)
        assert connection is not None
        registration = FakeRegistration(
            lost=lambda error: closing.append(asyncio.create_task(publisher.close()))
        )
        connection.registrations[registration] = None
        fake.connections[1].transport.abort()
        await until(lambda: bool(closing), 'the connection is lost')
        await closing[0]
        assert cluster_of(client).registrations == {}


async def test_close_of_an_idle_publisher_without_a_connection() -> None:
    async with (
        FakeBroker() as fake,
        rbs.streams_client(fake.uri) as client,
        client.publisher('test') as publisher,
    ):
        await publisher.send('x')
        fake.handlers[Step.PEER_PROPERTIES] = wire.CLOSING
        for connection in fake.connections:
            connection.transport.abort()
        await until(lambda: not client.connected, 'the connection is lost')


# -- recovery during recovery, close during recovery


@pytest.mark.parametrize('key', [wire.DECLARE_PUBLISHER, wire.METADATA, Step.OPEN])
async def test_publisher_recovers_if_the_reconnect_fails(key: int) -> None:
    async with (
        FakeBroker(on={wire.PUBLISH: once(wire.RESETTING, default)}) as fake,
        rbs.streams_client(fake.uri) as client,
        client.publisher('test', name='me') as publisher,
    ):
        fake.handlers[key] = once(wire.RESETTING, default)
        await publisher.send('x')
        assert published(fake) == [[1], [1]]


# -- a half-open socket


async def test_silent_connection_is_closed() -> None:
    async with (
        FakeBroker(on={wire.PUBLISH: once(wire.SILENT, default)}, tune=(1048576, 1)) as fake,
        rbs.streams_client(fake.uri, heartbeat=1) as client,
        client.publisher('test') as publisher,
    ):
        await publisher.send('x')
        assert published(fake) == [[1], [1]]


async def test_latency_loses_and_duplicates_nothing() -> None:
    delay = 0.2

    def write(peer: Peer, data: bytes) -> None:
        def late() -> None:
            if not peer.transport.is_closing():
                peer.transport.write(data)

        asyncio.get_running_loop().call_later(delay, late)

    async with (
        FakeBroker(write=write) as fake,
        rbs.streams_client(fake.uri) as client,
        client.publisher('test', max_unconfirmed=100) as publisher,
    ):
        assert await publisher.send_many(range(200)) == 200
        await asyncio.gather(*(publisher.send(i) for i in range(100)))
        assert sorted(chain(*published(fake))) == list(range(1, 301))


async def test_smaller_frames_after_the_reconnect() -> None:
    def shrink(connection: Peer, request: Frame) -> None:
        connection.broker.tune = (200, 60)
        connection.transport.abort()

    async with (
        FakeBroker(on={wire.PUBLISH: once(shrink, default)}) as fake,
        rbs.streams_client(fake.uri) as client,
        client.publisher('test', amqp=False) as publisher,
    ):
        messages = [b'a' * 50, b'b' * 500, b'c' * 50]
        outcomes = await asyncio.gather(*map(publisher.send, messages), return_exceptions=True)
        assert [type(item) for item in outcomes] == [type(None), PublishError, type(None)]
        assert isinstance(outcomes[1], PublishError)
        assert (outcomes[1].code, outcomes[1].publish_id) == (0x0E, 2)
        assert '512 bytes with its headers do not fit into a frame' in str(outcomes[1])
        assert 'the limit is 191 bytes' in str(outcomes[1])
        with pytest.raises(RbFlyError, match='the limit is 179 bytes'):
            await publisher.send(b'd' * 180)
        await publisher.send(b'e' * 179)


async def test_senders_beyond_the_window_wait_through_a_reconnect() -> None:
    async with (
        FakeBroker(on={wire.PUBLISH: once(wire.RESETTING, default)}) as fake,
        rbs.streams_client(fake.uri) as client,
        client.publisher('test', max_unconfirmed=3) as publisher,
    ):
        await asyncio.gather(*(publisher.send(i) for i in range(20)))
        ids = chain(*published(fake))
        assert sorted(set(ids)) == list(range(1, 21))


# -- several addresses, and a load balancer


async def test_next_address_when_the_first_is_unreachable() -> None:
    async with (
        FakeBroker() as second,
        FakeBroker(on={wire.PUBLISH: wire.RESETTING}) as first,
        rbs.streams_client([first.uri, second.uri]) as client,
        client.publisher('test') as publisher,
    ):
        sending = asyncio.create_task(publisher.send('x'))
        first.handlers[Step.PEER_PROPERTIES] = wire.RESETTING
        await sending
        assert published(second) == [[1]]


async def test_leader_that_has_no_replica_yet_is_dialled_at_its_address() -> None:
    # as right after an election: Metadata names only the leader, and another node answers
    async with FakeBroker() as leader:

        def new_leader(connection: Peer, request: Frame) -> None:
            leader.default(connection, request)

        async with (
            FakeBroker(on={wire.METADATA: new_leader}) as first,
            rbs.streams_client(first.uri) as client,
            client.publisher('test') as publisher,
        ):
            await publisher.send('x')
            assert published(leader) == [[1]]
            assert published(first) == []


@pytest.mark.own_clock
async def test_load_balancer_that_never_leads_to_the_leader() -> None:
    def elsewhere(connection: Peer, request: Frame) -> None:
        body = wire.string_map({'advertised_host': 'elsewhere', 'advertised_port': '5552'})
        connection.answer(request, body)

    async with (
        FakeBroker(on={wire.METADATA: cluster}, at={Step.OPEN: elsewhere}) as fake,
        rbs.streams_client(
            fake.uri, load_balancer=True, connect_timeout=0.2, reconnect_timeout=0.2
        ) as client,
    ):
        with pytest.raises(StreamConnectionError, match='reached elsewhere:5552, not leader:5552'):
            async with client.publisher('test'):
                pass


async def test_load_balancer_is_dialled_until_it_leads_to_the_leader() -> None:
    opened = 0

    def other_node(connection: Peer, request: Frame) -> None:
        nonlocal opened
        opened += 1
        host = 'elsewhere' if opened < 5 else 'leader'
        connection.answer(
            request, wire.string_map({'advertised_host': host, 'advertised_port': '5552'})
        )

    async with (
        FakeBroker(on={wire.METADATA: cluster}, at={Step.OPEN: other_node}) as fake,
        rbs.streams_client(fake.uri, load_balancer=True) as client,
        client.publisher('test') as publisher,
    ):
        await publisher.send('x')
        assert opened == 5


async def test_broker_restart_loses_and_duplicates_nothing(
    private_broker: Callable[[], RabbitMQ], private_stream: str
) -> None:
    broker = private_broker()
    async with (
        rbs.streams_client(broker.uri) as client,
        client.publisher(private_stream, name='me', amqp=False) as publisher,
    ):
        count = 0

        async def publish() -> None:
            nonlocal count
            while not restarted.done() or count < 1000:
                count += 1
                await publisher.send(b'%d' % count)

        restarted = asyncio.ensure_future(asyncio.to_thread(broker.restart_node))
        tasks = [asyncio.create_task(publish()) for _ in range(10)]
        await asyncio.gather(restarted, *tasks)
        found = await stored(client, private_stream)
        assert sorted(map(int, found)) == list(range(1, count + 1))


async def test_message_too_large_for_a_new_connection_ends_the_wait_for_an_iterator() -> None:
    """A message too large for the new connection raises before the iterator yields another one."""
    asked = asyncio.Event()

    async def messages() -> AsyncIterator[bytes]:
        yield bytes(5000)
        asked.set()
        await asyncio.Event().wait()

    async with (
        FakeBroker(on={wire.PUBLISH: wire.SILENT}) as fake,
        rbs.streams_client(fake.uri) as client,
        client.publisher('test', amqp=False) as publisher,
    ):
        sending = asyncio.ensure_future(publisher.send_many(messages()))
        await asked.wait()
        fake.tune = (600, 60)
        for peer in fake.connections:
            peer.transport.abort()
        with pytest.raises(PublishError, match='do not fit into a frame of the new connection'):
            await asyncio.wait_for(sending, 20)


async def test_failure_to_resend_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    """For example for lack of memory: no call waits forever, and the next one tries again."""
    async with (
        FakeBroker(on={wire.PUBLISH: once(wire.CLOSING, default)}) as fake,
        rbs.streams_client(fake.uri) as client,
        client.publisher('test', amqp=False) as publisher,
    ):
        with monkeypatch.context() as patch:
            patch.setattr(PublisherSession, 'on_open', Mock(side_effect=MemoryError))
            with pytest.raises(MemoryError):
                await asyncio.wait_for(publisher.send(b'x'), 20)
        await publisher.send(b'y')
        answered = [wire.DELETE_PUBLISHER in peer.commands() for peer in fake.connections]
        assert answered.count(True) == 1  # what could not be used was removed
