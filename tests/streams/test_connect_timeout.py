"""A timeout of connecting is a `ConnectTimeout`, whatever the last try met: that is its cause."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

import rbfly.streams as rbs
from tests import fake_broker as wire
from tests.closed_port import closed_port
from tests.fake_broker import CLOSING, SILENT, FakeBroker, Handler, Step, refuse

own_clock = pytest.mark.own_clock

Call = Callable[[rbs.StreamsClient], Awaitable[object]]


async def open_publisher(client: rbs.StreamsClient) -> None:
    async with client.publisher('orders'):
        pytest.fail('the publisher was opened')


async def read(client: rbs.StreamsClient) -> None:
    async with client.subscribe('orders') as messages:
        await anext(messages)


CALLS: dict[str, Call] = {
    'get_protocol': lambda client: client.get_protocol(),
    'create_stream': lambda client: client.create_stream('orders'),
    'stream_exists': lambda client: client.stream_exists('orders'),
    'read_offset': lambda client: client.read_offset('orders', 'reader'),
    'publisher': open_publisher,
    'subscribe': read,
}
each_call = pytest.mark.parametrize('call', CALLS.values(), ids=list(CALLS))


@each_call
async def test_refused_connection(call: Call) -> None:
    with closed_port() as port:
        client = rbs.streams_client(f'rabbitmq-stream://127.0.0.1:{port}/', connect_timeout=1)
        with pytest.raises(rbs.ConnectTimeout, match=r'^gave up after 1 s: ') as caught:
            await call(client)
    refusal = caught.value.__cause__
    assert isinstance(refusal, rbs.StreamConnectionError)
    assert not isinstance(refusal, TimeoutError)
    assert isinstance(refusal.__cause__, ConnectionRefusedError)
    assert str(port) in str(refusal)
    assert str(refusal) in str(caught.value)
    assert isinstance(caught.value, ConnectionError)
    assert caught.value.retriable


@own_clock
@pytest.mark.parametrize('timeout', [5, 60.0])
async def test_connection_that_ends_in_the_handshake(timeout: float, down: FakeBroker) -> None:
    client = rbs.streams_client(down.uri, connect_timeout=timeout)
    with pytest.raises(rbs.ConnectTimeout, match=rf'^gave up after {timeout:.0f} s: ') as caught:
        await client.get_protocol()
    assert type(caught.value.__cause__) is rbs.StreamConnectionError
    assert 'connection lost while opening the virtual host' in str(caught.value.__cause__)


@own_clock
async def test_silent_broker_has_no_cause_but_a_step() -> None:
    async with FakeBroker(at={Step.OPEN: SILENT}) as fake:
        client = rbs.streams_client(fake.uri, connect_timeout=5)
        with pytest.raises(rbs.ConnectTimeout) as caught:
            await client.get_protocol()
        assert caught.value.__cause__ is None
        assert str(caught.value).endswith('no answer within 5 s, while opening the virtual host')


@own_clock
@pytest.mark.parametrize('order', [1, -1])
async def test_cause_is_the_last_failure(order: int) -> None:
    """One node refuses, another one does not answer; the address that fails is in the error."""
    async with (
        FakeBroker(at={Step.OPEN: CLOSING}) as closing,
        FakeBroker(at={Step.OPEN: SILENT}) as silent,
    ):
        uris = [closing.uri, silent.uri][::order]
        client = rbs.streams_client(uris, connect_timeout=60)
        with pytest.raises(rbs.ConnectTimeout) as caught:
            await client.get_protocol()
        cause = caught.value.__cause__
        assert isinstance(cause, rbs.StreamConnectionError)
        assert str(closing.port) in str(cause) or str(silent.port) in str(cause)


@own_clock
@pytest.mark.parametrize(
    ('call', 'key', 'handler', 'cause'),
    [
        (open_publisher, wire.METADATA, CLOSING, rbs.StreamConnectionError),
        (open_publisher, wire.DECLARE_PUBLISHER, refuse(0x06), rbs.ProtocolError),
        (read, wire.METADATA, CLOSING, rbs.StreamConnectionError),
        (read, wire.SUBSCRIBE, refuse(0x06), rbs.ProtocolError),
    ],
)
async def test_request_that_fails_until_the_timeout(
    call: Call, key: int, handler: Handler, cause: type[rbs.RbFlyError]
) -> None:
    async with (
        FakeBroker(on={key: handler}) as fake,
        rbs.streams_client(fake.uri, connect_timeout=20, reconnect_timeout=20) as client,
    ):
        with pytest.raises(rbs.ConnectTimeout, match=r'^gave up after 20 s: ') as caught:
            await call(client)
        assert type(caught.value.__cause__) is cause
        assert str(caught.value.__cause__) in str(caught.value)


@own_clock
async def test_reconnect_timeout_has_the_same_error() -> None:
    async with (
        FakeBroker() as fake,
        rbs.streams_client(fake.uri, reconnect_timeout=5) as client,
        client.publisher('orders') as publisher,
    ):
        fake.handlers[Step.OPEN] = CLOSING
        for peer in fake.connections:
            peer.transport.abort()
        with pytest.raises(rbs.ConnectTimeout, match=r'^gave up after 5 s: ') as caught:
            await publisher.send('x')
        assert 'while opening the virtual host' in str(caught.value.__cause__)
        fake.handlers.clear()
        await publisher.send('y')


@own_clock
async def test_each_caller_raises_its_own_error(down: FakeBroker) -> None:
    client = rbs.streams_client(down.uri, connect_timeout=5)
    calls = [client.get_protocol() for _ in range(5)]
    found = await asyncio.gather(*calls, return_exceptions=True)
    assert {type(error) for error in found} == {rbs.ConnectTimeout}
    assert len({id(error) for error in found}) == 5
    causes = [error.__cause__ for error in found if isinstance(error, BaseException)]
    assert len({id(cause) for cause in causes}) == 5


@own_clock
async def test_errors_that_no_try_can_fix_are_raised_as_they_are() -> None:
    async with FakeBroker(at={Step.SASL_AUTHENTICATE: refuse(0x08)}) as fake:
        client = rbs.streams_client(fake.uri, connect_timeout=0.2)
        with pytest.raises(rbs.AuthenticationError, match='the user or the password is wrong'):
            await client.get_protocol()
        assert len(fake.connections) == 1
