"""Publishers that connect in the background (`wait=False`), perhaps while their broker is down."""

import asyncio
import ssl
from collections.abc import Awaitable, Callable
from typing import Any
from urllib.parse import urlsplit

import pytest
import trustme

import rbfly.streams as rbs
from brokers.proxy import Proxy
from rbfly.net import retry
from rbfly.streams.error import (
    AuthenticationError,
    ConfirmTimeout,
    ProtocolError,
    PublisherError,
    PublishError,
    RbFlyError,
    StreamConnectionError,
    StreamDoesNotExist,
    TLSError,
    VirtualHostError,
    WindowTimeout,
)
from rbfly.testing import StreamBroker
from tests import fake_broker as wire
from tests.brokers import until
from tests.fake_broker import FakeBroker, Handler, Step, refuse
from tests.inside import cluster_of
from tests.streams.publish.test_publish import stored
from tests.streams.publish.test_publish_recovery import missing, published
from tests.streams.test_tls import copy

own_clock = pytest.mark.own_clock

HANG = 30.0  # seconds; only a safeguard

Call = Callable[[Any], Awaitable[Any]]

SEND: dict[str, Call] = {
    'send': lambda p: p.send('x'),
    'submit': lambda p: submitted(p),
    'send_many': lambda p: p.send_many(iter(['x'])),
    'send_many of a list': lambda p: p.send_many(['x']),
}


async def submitted(publisher: rbs.Publisher) -> None:
    await (await publisher.submit('x'))


def now() -> float:
    return asyncio.get_running_loop().time()


def last_id(value: int) -> Handler:
    """Answer QueryPublisherSequence with an id."""
    return lambda connection, request: connection.respond(request, value)


def count_requests(fake: FakeBroker, key: int) -> int:
    return sum(peer.commands().count(key) for peer in fake.connections)


async def failed(publisher: Any) -> None:
    """Wait until the publisher has given up connecting."""
    client = publisher._client
    await until(lambda: not cluster_of(client).registrations, 'the publisher gives up')


@own_clock
@pytest.mark.parametrize('name', [None, 'shop'])
@pytest.mark.parametrize('how', SEND)
async def test_connecting_continues_beyond_connect_timeout(
    how: str, name: str | None, down: FakeBroker
) -> None:
    async with rbs.streams_client(down.uri, connect_timeout=1, reconnect_timeout=1) as client:
        publisher = await client.publisher('test', name=name, wait=False)
        assert not down.connections
        sending = asyncio.ensure_future(SEND[how](publisher))
        await asyncio.sleep(1000)
        assert count_requests(down, wire.PEER_PROPERTIES) > 10
        assert not sending.done()
        down.handlers.clear()
        await sending
        await publisher.send('y')
        await publisher.close()
        assert published(down) == [[1], [2]]


@own_clock
async def test_messages_fill_the_window_and_are_sent_once_the_publisher_is_open(
    down: FakeBroker,
) -> None:
    async with rbs.streams_client(down.uri, connect_timeout=1) as client:
        publisher = await client.publisher('test', max_unconfirmed=3, wait=False)
        confirmations = [await publisher.submit(i) for i in range(3)]
        assert (publisher.unconfirmed, publisher.capacity) == (3, 0)
        with pytest.raises(WindowTimeout, match='window'):
            await publisher.submit(3, timeout=100)
        with pytest.raises(WindowTimeout, match='window'):
            await publisher.send(3, timeout=100)
        sending = asyncio.create_task(publisher.send_many(range(3, 10)))
        await asyncio.sleep(100)
        down.handlers.clear()
        await asyncio.gather(*confirmations)
        assert await sending == 7
        assert [i for ids in published(down) for i in ids] == [*range(1, 11)]
        await publisher.close()


@own_clock
async def test_batch_without_a_name_before_the_publisher_is_open(down: FakeBroker) -> None:
    async with rbs.streams_client(down.uri, connect_timeout=1) as client:
        publisher = await client.publisher('test', wait=False)
        assert publisher.message_id == 1
        for number in range(5):
            publisher.batch(number)
        with pytest.raises(ConfirmTimeout):
            await publisher.flush(timeout=100)
        assert publisher.message_id == 6
        down.handlers.clear()
        await publisher.flush()
        await publisher.close()
        assert published(down) == [[1, 2, 3, 4, 5]]


async def test_publisher_with_a_name_continues_after_the_last_id_of_the_broker(
    client: rbs.StreamsClient, stream: str
) -> None:
    async with client.publisher(stream, name='shop', amqp=False) as publisher:
        await publisher.send_many([b'1', b'2', b'3'])
    publisher = await client.publisher(stream, name='shop', amqp=False, wait=False)
    assert publisher.capacity == 0
    waiting = '`send`, `submit`, `send_many` and `flush` wait for it'
    with pytest.raises(PublisherError, match=f'still connecting: .*{waiting}'):
        _ = publisher.message_id
    await asyncio.gather(*(publisher.send(b'%d' % i) for i in (4, 5, 6)))
    assert publisher.message_id == 7
    assert publisher.capacity == 10_000
    await publisher.close()
    assert await stored(client, stream) == [b'%d' % i for i in range(1, 7)]


@pytest.mark.parametrize('cls', [rbs.PublisherBatchFast, rbs.PublisherBatchLimit])
async def test_batch_with_a_name_takes_no_messages_until_it_is_declared(
    client: rbs.StreamsClient, stream: str, cls: type[Any]
) -> None:
    async def batch(message: bytes) -> None:
        if cls is rbs.PublisherBatchLimit:
            await publisher.batch(message, max_len=10)
        else:
            publisher.batch(message)

    async with client.publisher(stream, name='shop', amqp=False) as first:
        await first.send(b'1')
    publisher = await client.publisher(stream, name='shop', cls=cls, amqp=False, wait=False)
    for _ in range(2):
        with pytest.raises(PublisherError, match=r'still connecting: .*`flush` wait for it'):
            await batch(b'lost')
    await publisher.flush()  # waits until it is declared
    assert publisher.message_id == 2
    await batch(b'2')
    await publisher.close()
    assert await stored(client, stream) == [b'1', b'2']


@own_clock
async def test_timeouts_of_a_publisher_with_a_name_that_is_not_declared(down: FakeBroker) -> None:
    async with rbs.streams_client(down.uri, connect_timeout=1) as client:
        publisher = await client.publisher('test', name='shop', wait=False)
        for call in (publisher.send, publisher.submit):
            begin = now()
            with pytest.raises(WindowTimeout, match='not declared within 100 s; the message'):
                await call('x', timeout=100)
            assert 99 < now() - begin < 101
        for messages in (['x'], iter(['x'])):
            progress = rbs.SendProgress()
            with pytest.raises(ConfirmTimeout) as caught:
                await publisher.send_many(messages, timeout=100, progress=progress)
            assert (caught.value.outcome, caught.value.retriable) == ('not_sent', True)
            assert progress.taken == 0
        batches = await client.publisher('test', name='other', wait=False)
        with pytest.raises(WindowTimeout, match='not declared within 100 s'):
            await batches.flush(timeout=100)

        # None of these messages is left behind.
        down.handlers.clear()
        await publisher.send('y')
        await batches.flush()
        assert published(down) == [[1]]
        await publisher.close()
        await batches.close()


async def test_explicit_ids_of_a_list_are_checked_once_the_next_id_is_known() -> None:
    async with (
        FakeBroker(on={wire.QUERY_PUBLISHER_SEQUENCE: last_id(100)}) as fake,
        rbs.streams_client(fake.uri) as client,
    ):
        publisher = await client.publisher('test', name='shop', wait=False)
        with pytest.raises(ValueError, match='5 is not above 101'):
            await publisher.send_many(['x', rbs.stream_message_ctx('y', publish_id=5)])
        assert not published(fake)
        await publisher.close()


async def test_name_that_has_used_the_highest_id() -> None:
    async with (
        FakeBroker(on={wire.QUERY_PUBLISHER_SEQUENCE: last_id(2**64 - 1)}) as fake,
        rbs.streams_client(fake.uri) as client,
    ):
        publisher = await client.publisher('test', name='shop', wait=False)
        with pytest.raises(PublisherError, match=f'{2**64 - 1}'):
            await publisher.send('x')
        await publisher.close()
        await until(lambda: count_requests(fake, wire.DELETE_PUBLISHER) == 1, 'it is undeclared')


FINAL: dict[str, tuple[int, Handler, type[Exception]]] = {
    'wrong password': (Step.SASL_AUTHENTICATE, refuse(0x08), AuthenticationError),
    'no such virtual host': (Step.OPEN, refuse(0x0C), VirtualHostError),
    'no such stream': (wire.METADATA, missing, StreamDoesNotExist),
    'refused': (wire.DECLARE_PUBLISHER, refuse(0x10), ProtocolError),
}


@pytest.mark.parametrize('early', [True, False], ids=['before the call', 'during the call'])
@pytest.mark.parametrize('name', [None, 'shop'])
@pytest.mark.parametrize('reason', FINAL)
@pytest.mark.parametrize('how', SEND)
async def test_first_send_raises_a_final_error(
    how: str, reason: str, name: str | None, early: bool
) -> None:
    key, handler, error = FINAL[reason]
    async with FakeBroker(on={key: handler}) as fake, rbs.streams_client(fake.uri) as client:
        publisher = await client.publisher('test', name=name, wait=False)
        if early:
            await failed(publisher)
        with pytest.raises(error):
            await SEND[how](publisher)
        # The next message starts a new attempt.
        fake.handlers.clear()
        await publisher.send('y')
        await publisher.close()
        assert published(fake) == [[1 if name else 2]]


@pytest.mark.parametrize('early', [True, False], ids=['before the call', 'during the call'])
@pytest.mark.parametrize('name', [None, 'shop'])
@pytest.mark.parametrize('reason', FINAL)
async def test_flush_raises_a_final_error(reason: str, name: str | None, early: bool) -> None:
    key, handler, error = FINAL[reason]
    async with FakeBroker(on={key: handler}) as fake, rbs.streams_client(fake.uri) as client:
        publisher = await client.publisher('test', name=name, wait=False)
        if early:
            await failed(publisher)
        if name is None:
            publisher.batch('x')
        elif early:
            with pytest.raises(error) as caught:
                publisher.batch('x')
            assert getattr(caught.value, 'outcome', None) == 'not_sent'
            with pytest.raises(PublisherError, match='still connecting'):
                publisher.batch('x')
        with pytest.raises(error):
            await publisher.flush()
        fake.handlers.clear()
        await publisher.flush()
        publisher.batch('y')
        await publisher.flush()
        await publisher.close()


async def test_final_error_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    async with (
        FakeBroker(on={wire.METADATA: missing}) as fake,
        rbs.streams_client(fake.uri) as client,
    ):
        publisher = await client.publisher('test', wait=False)
        await failed(publisher)
        await until(lambda: bool(caplog.records), 'the error is logged')
        [record] = caplog.records
        assert record.levelname == 'WARNING'
        assert "publisher of 'test'" in record.message
        assert 'does not exist' in record.message
        await publisher.close()


@own_clock
@pytest.mark.parametrize('name', [None, 'shop'])
async def test_reconnect_timeout_limits_an_outage_after_the_first_declaration(
    name: str | None, down: FakeBroker
) -> None:
    async with rbs.streams_client(down.uri, reconnect_timeout=5) as client:
        publisher = await client.publisher('test', name=name, wait=False)
        sending = asyncio.create_task(publisher.send('x'))
        await asyncio.sleep(100)
        down.handlers = {wire.PUBLISH: wire.CLOSING}
        await until(lambda: bool(published(down)), 'the publisher is declared')
        begin = now()
        with pytest.raises(StreamConnectionError):
            await sending
        assert now() - begin <= 5.001
        await publisher.close()


async def test_message_too_large_for_the_broker_that_it_is_sent_to() -> None:
    async with (
        FakeBroker(tune=(1000, 60)) as fake,
        rbs.streams_client(fake.uri) as client,
        client.publisher('test', wait=False) as publisher,
    ):
        with pytest.raises(PublishError, match='do not fit into a frame'):
            await publisher.send('x' * 2000)
        await publisher.send('y')


def tls_server(*names: str) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """The contexts of a server with these names, and of a client that trusts it."""
    authority = trustme.CA()
    server = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert(*names).configure_cert(server)
    client = ssl.create_default_context()
    authority.configure_trust(client)
    return server, client


@pytest.mark.both_loops
@pytest.mark.parametrize('reset', [True, False])
async def test_tls_proxy_that_accepts_while_its_node_is_down(
    reset: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Others get the error at once: the port may not be one for TLS."""
    refused = 0

    async def cut(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal refused
        refused += 1
        if not reset:
            await reader.read(1)
        writer.transport.abort() if reset else writer.close()

    async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        to_reader, to_writer = await asyncio.open_connection('127.0.0.1', urlsplit(broker.uri).port)
        await asyncio.gather(copy(reader, to_writer), copy(to_reader, writer))

    monkeypatch.setattr(retry, 'BACKOFF_LAST', 0.1)
    server, context = tls_server('127.0.0.1')
    async with StreamBroker() as broker:
        broker.create_stream('orders')
        async with await asyncio.start_server(cut, '127.0.0.1', 0) as down:
            port = down.sockets[0].getsockname()[1]
            uri = f'rabbitmq-stream+tls://guest:guest@127.0.0.1:{port}/'
            client = rbs.streams_client(uri, ssl=context, load_balancer=True)
            publisher = await client.publisher('orders', wait=False)
            sending = asyncio.create_task(publisher.send('x'))
            await until(lambda: refused > 3, 'it tries again')
            with pytest.raises(TLSError, match='is it a TLS port'):
                await client.ping(HANG)
            assert not sending.done()
        async with await asyncio.start_server(relay, '127.0.0.1', port, ssl=server):
            await asyncio.wait_for(sending, HANG)
            await publisher.close()
            await client.disconnect()
        assert broker.messages('orders') == ['x']


async def test_certificate_that_is_not_trusted_is_a_final_error() -> None:
    server, _ = tls_server('127.0.0.1')
    _, context = tls_server('127.0.0.1')
    async with await asyncio.start_server(lambda *_: None, '127.0.0.1', 0, ssl=server) as proxy:
        uri = f'rabbitmq-stream+tls://127.0.0.1:{proxy.sockets[0].getsockname()[1]}/'
        async with rbs.streams_client(uri, ssl=context) as client:
            publisher = await client.publisher('orders', wait=False)
            with pytest.raises(TLSError, match=r'(?i)certificate verify failed'):
                await publisher.send('x', HANG)
            await publisher.close()


# -- closing while connecting


@own_clock
@pytest.mark.parametrize('cls', [rbs.Publisher, rbs.PublisherBatchFast])
@pytest.mark.parametrize('name', [None, 'shop'])
@pytest.mark.parametrize('how', ['close', 'async with', 'disconnect'])
async def test_closing_without_messages_is_prompt(
    how: str, name: str | None, cls: type[Any]
) -> None:
    async with FakeBroker(at={Step.OPEN: wire.SILENT}) as fake:
        async with rbs.streams_client(fake.uri, connect_timeout=1) as client:
            begin = now()
            if how == 'async with':
                async with client.publisher('test', name=name, cls=cls, wait=False) as publisher:
                    await until(lambda: bool(fake.connections), 'the client connects')
            else:
                publisher = await client.publisher('test', name=name, cls=cls, wait=False)
                await until(lambda: bool(fake.connections), 'the client connects')
                await (publisher.close() if how == 'close' else client.disconnect())
            assert now() - begin < 1
            assert not cluster_of(client).registrations
        if how == 'disconnect':
            await publisher.close()
        with pytest.raises(PublisherError, match='closed'):
            await (publisher.send('x') if cls is rbs.Publisher else publisher.flush())


@own_clock
@pytest.mark.parametrize('how', [*SEND, 'flush'])
async def test_close_ends_calls_that_wait_for_the_declaration(how: str, down: FakeBroker) -> None:
    cls: type[Any] = rbs.PublisherBatchFast if how == 'flush' else rbs.Publisher
    async with rbs.streams_client(down.uri, connect_timeout=1) as client:
        publisher = await client.publisher('test', name='shop', cls=cls, wait=False)
        call: Any = publisher.flush() if how == 'flush' else SEND[how](publisher)
        waiting = asyncio.ensure_future(call)
        await asyncio.sleep(50)
        begin = now()
        await publisher.close()
        assert now() == begin
        with pytest.raises(PublisherError, match='closed before the message was sent'):
            await waiting
        down.handlers.clear()
        async with client.publisher('test', name='shop') as other:
            await other.send('x')
        assert published(down) == [[1]]


@own_clock
async def test_close_reports_messages_that_were_never_sent(down: FakeBroker) -> None:
    async with rbs.streams_client(down.uri, connect_timeout=1, close_timeout=5) as client:
        publisher = await client.publisher('test', wait=False)
        confirmation = await publisher.submit('x')
        begin = now()
        with pytest.raises(ConfirmTimeout) as caught:
            await publisher.close()
        assert now() - begin == pytest.approx(5)
        assert (caught.value.unconfirmed, caught.value.unsent) == (0, 1)
        with pytest.raises(PublisherError, match='closed before the message was sent'):
            await confirmation


@own_clock
async def test_close_sends_the_messages_if_the_broker_returns_in_time(down: FakeBroker) -> None:
    async with rbs.streams_client(down.uri, connect_timeout=1, close_timeout=100) as client:
        publisher = await client.publisher('test', wait=False)
        confirmation = await publisher.submit('x')
        closing = asyncio.create_task(publisher.close())
        await asyncio.sleep(50)
        down.handlers.clear()
        await closing
        await confirmation
        assert published(down) == [[1]]


async def test_disconnect_ends_calls_that_wait_for_the_declaration() -> None:
    async with FakeBroker(at={Step.OPEN: wire.SILENT}) as fake:
        async with rbs.streams_client(fake.uri) as client:
            publishers = [
                await client.publisher('test', name=name, wait=False) for name in (None, 'shop')
            ]
            sending = [asyncio.create_task(publisher.send('x')) for publisher in publishers]
            await until(lambda: bool(fake.connections), 'the client connects')
        for task in sending:
            with pytest.raises(StreamConnectionError):
                await task
        for publisher in publishers:
            with pytest.raises(StreamConnectionError):
                await publisher.send('y')
            await publisher.close()


async def test_client_that_was_disconnected_while_a_publisher_connected() -> None:
    async with FakeBroker(at={Step.OPEN: wire.SILENT}) as fake:
        client = rbs.streams_client(fake.uri)
        publisher = await client.publisher('test', wait=False)
        await until(lambda: bool(fake.connections), 'the client connects')
        await client.disconnect()
        await publisher.close()
        fake.handlers.clear()
        async with client, client.publisher('test', wait=False) as other:  # can be used again
            await other.send('x')


async def test_cancelled_block_of_a_publisher_that_is_connecting() -> None:
    async def serve() -> None:
        async with client.publisher('test', name='shop', wait=False) as publisher:
            await publisher.send('x')

    async with (
        FakeBroker(at={Step.OPEN: wire.SILENT}) as fake,
        rbs.streams_client(fake.uri) as client,
    ):
        task = asyncio.create_task(serve())
        await until(lambda: bool(fake.connections), 'the client connects')
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert not cluster_of(client).registrations
        fake.handlers.clear()
        await serve()


# -- a program


class Shop:
    """A service that starts and stops whether its broker is up or not."""

    def __init__(self, uri: str, stream: str, name: str | None) -> None:
        self.client = rbs.streams_client(uri, connect_timeout=0.01)
        self.stream = stream
        self.name = name

    async def start(self) -> None:
        self.publisher = await self.client.publisher(
            self.stream, name=self.name, amqp=False, wait=False
        )

    async def order(self, order: bytes, timeout: float) -> int:
        """Return an HTTP status."""
        try:
            await self.publisher.send(order, timeout)
        except RbFlyError:
            return 503
        return 201

    async def stop(self) -> None:
        try:
            await self.publisher.close()
        finally:
            await self.client.disconnect()


@pytest.mark.parametrize('name', [None, 'shop'])
async def test_service_starts_while_its_broker_is_down(
    client: rbs.StreamsClient,
    stream: str,
    name: str | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(retry, 'BACKOFF_LAST', 0.1)
    [address] = cluster_of(client).settings.endpoints
    async with Proxy((address.host, address.port)) as proxy:
        proxy.refuse()
        shop = Shop(proxy.uri, stream, name)
        await shop.start()
        assert await shop.order(b'too early', 0.05) == 503
        proxy.accept()
        assert [await shop.order(b'%d' % i, HANG) for i in range(10)] == [201] * 10
        await shop.stop()
        assert proxy.connections
    expected = [b'%d' % i for i in range(10)]
    found = await stored(client, stream)
    assert found[-10:] == expected
    if name is not None:  # a message that waits for the declaration is not sent after a timeout
        assert found == expected
