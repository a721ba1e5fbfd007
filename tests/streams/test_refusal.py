"""A client that the broker refuses for good says so, also in calls shorter than the refusal."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest

import rbfly.streams as rbs
from tests import fake_broker as wire
from tests.fake_broker import CLOSING, SILENT, FakeBroker, Frame, Step
from tests.fake_broker import FakeConnection as Peer

pytestmark = pytest.mark.own_clock

Call = Callable[[rbs.StreamsClient], Awaitable[object]]
DELAY = 3.0  # seconds until RabbitMQ refuses a password


def refuse_late(code: int) -> wire.Handler:
    def handler(peer: Peer, request: Frame) -> None:
        asyncio.get_running_loop().call_later(DELAY, wire.refuse(code), peer, request)

    return handler


def refusing(code: int = 0x08, step: Step = Step.SASL_AUTHENTICATE) -> FakeBroker:
    return FakeBroker(at={step: refuse_late(code)})


async def ping(client: rbs.StreamsClient) -> None:
    await client.ping(timeout=1)


@asynccontextmanager
async def publisher_of(client: rbs.StreamsClient, **options: Any) -> AsyncIterator[Any]:
    publisher: Any = await client.publisher('orders', wait=False, **options)
    try:
        yield publisher
    finally:
        with suppress(rbs.RbFlyError):  # the error of the call is the one to see
            await publisher.close()


async def send(client: rbs.StreamsClient) -> None:
    async with publisher_of(client) as publisher:
        await publisher.send('x', timeout=1)


async def send_many(client: rbs.StreamsClient) -> None:
    async with publisher_of(client) as publisher:
        await publisher.send_many(['x', 'y'], timeout=1)


async def flush(client: rbs.StreamsClient) -> None:
    async with publisher_of(client) as publisher:
        publisher.batch('x')
        await publisher.flush(timeout=1)


async def named(client: rbs.StreamsClient) -> None:
    async with publisher_of(client, name='till') as publisher:
        await publisher.send('x', timeout=1)


# What becomes of the message: after these calls, the publisher goes on to send it.
OUTCOMES: dict[Call, str | None] = {
    ping: None,
    send: 'not_sent',
    named: 'not_sent',
    send_many: 'unknown',
    flush: 'unknown',
}


@pytest.mark.parametrize('call', OUTCOMES, ids=lambda call: call.__name__)
@pytest.mark.parametrize(
    ('code', 'step', 'error'),
    [
        (0x08, Step.SASL_AUTHENTICATE, rbs.AuthenticationError),
        (0x0C, Step.OPEN, rbs.VirtualHostError),
    ],
)
async def test_each_short_call_raises_the_refusal(
    code: int, step: Step, error: type[rbs.RbFlyError], call: Call
) -> None:
    async with refusing(code, step) as fake, rbs.streams_client(fake.uri) as client:
        with pytest.raises(error):
            await client.ping(timeout=5)
        for count in range(2, 5):
            with pytest.raises(error) as caught:
                await call(client)
            assert len(fake.connections) >= count  # each call has tried again
            assert not caught.value.retriable
            assert caught.value.outcome == OUTCOMES[call]
            await asyncio.sleep(DELAY)  # the attempt of the ping ends


async def test_full_batch_and_close_name_the_refusal() -> None:
    async with refusing() as fake, rbs.streams_client(fake.uri, close_timeout=1) as client:
        with pytest.raises(rbs.AuthenticationError):
            await client.ping(timeout=5)
        publisher = await client.publisher('orders', wait=False, max_unconfirmed=2)
        publisher.batch('x')
        flush = asyncio.create_task(publisher.flush())
        publisher.batch('x')
        with pytest.raises(rbs.AuthenticationError, match='queued or in flight') as full:
            publisher.batch('x')
        assert full.value.outcome == 'not_sent'
        with pytest.raises(rbs.ConfirmTimeout, match='the password is wrong') as caught:
            await publisher.close()
        assert caught.value.unsent == 2
        assert isinstance(caught.value.__cause__, rbs.AuthenticationError)
        with suppress(rbs.RbFlyError):
            await flush


async def test_connect_timeout_shorter_than_the_refusal() -> None:
    async with refusing() as fake, rbs.streams_client(fake.uri, connect_timeout=1) as client:
        with pytest.raises(rbs.ConnectTimeout):
            await client.get_protocol()  # nothing is known yet
        with pytest.raises(rbs.ConnectTimeout):
            await client.ping(timeout=1)
        fake.handlers[Step.SASL_AUTHENTICATE] = wire.refuse(0x08)
        with pytest.raises(rbs.AuthenticationError):
            await client.get_protocol()
        fake.handlers[Step.SASL_AUTHENTICATE] = refuse_late(0x08)
        for _ in range(3):
            with pytest.raises(rbs.AuthenticationError) as caught:
                await client.get_protocol()
            assert caught.value.__cause__ is None


@pytest.mark.parametrize('how', ['opens', 'closes', 'is silent', 'disconnected'])
async def test_refusal_is_forgotten_when_a_connect_ends_otherwise(how: str) -> None:
    async with refusing() as fake, rbs.streams_client(fake.uri) as client:
        with pytest.raises(rbs.AuthenticationError):
            await client.ping(timeout=5)
        if how == 'opens':
            del fake.handlers[Step.SASL_AUTHENTICATE]
            await client.ping(timeout=5)
            fake.handlers[wire.METADATA] = SILENT
            with pytest.raises(rbs.RequestTimeout):
                await client.ping(timeout=1)
            return
        if how == 'closes':
            fake.handlers[Step.SASL_AUTHENTICATE] = CLOSING
        elif how == 'is silent':
            fake.handlers[Step.PEER_PROPERTIES] = SILENT
        else:
            await client.disconnect()
        if how == 'is silent':
            # the first try, which still waits, is no news
            with pytest.raises(rbs.AuthenticationError):
                await client.ping(timeout=1)
            await asyncio.sleep(60)
        with pytest.raises(rbs.ConnectTimeout):
            await client.ping(timeout=1)


async def test_message_of_unknown_outcome_stays_unknown() -> None:
    async with (
        FakeBroker(on={wire.PUBLISH: SILENT}) as fake,
        rbs.streams_client(fake.uri) as client,
    ):
        publisher = await client.publisher('orders')
        first = asyncio.create_task(publisher.send('x', timeout=60))
        await asyncio.sleep(1)
        fake.handlers[Step.SASL_AUTHENTICATE] = refuse_late(0x08)
        for peer in fake.connections:
            peer.transport.abort()
        with pytest.raises(rbs.AuthenticationError) as caught:
            await first
        assert caught.value.outcome == 'unknown'
        second = asyncio.create_task(publisher.send('y', timeout=1))
        with pytest.raises(rbs.AuthenticationError, match='could not send') as late:
            await second
        assert late.value.outcome == 'not_sent'
        assert late.value.stream == 'orders'
        await publisher.close()
