"""The errors of mistakes that new users make say what to do instead."""

import asyncio
import contextvars
import enum
import re
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest

import rbfly.streams as rbs
from rbfly.amqp import encode_amqp_bytes
from tests import fake_broker as wire
from tests.brokers import until
from tests.fake_broker import CLOSING, FakeBroker, Step
from tests.inside import session_of
from tests.super_streams import subscribe_to


def exactly(text: str) -> str:
    return f'^{re.escape(text)}$'


@pytest.fixture
def offline() -> Any:
    """A client that never connects, without its types."""
    return rbs.streams_client('rabbitmq-stream://127.0.0.1:1/')


# -- await, async for, async with


async def test_publisher_that_was_not_awaited(offline: Any) -> None:
    for opening in (
        offline.publisher('s'),
        offline.super_stream('s').publisher(route=rbs.by_hash(str)),
    ):
        for name in ('batch', 'flush', 'name'):
            with pytest.raises(AttributeError, match=rf'{name}.: await client.publisher'):
                getattr(opening, name)
        with pytest.raises(TypeError, match=r'no publisher is open: await client\.publisher'):
            opening.send('x')
        with pytest.raises(TypeError, match='needs `async with`, not `with`'), opening:
            pass


@pytest.mark.parametrize('super_stream', [False, True])
async def test_subscription_in_for_or_with(offline: Any, super_stream: bool) -> None:
    messages = subscribe_to(offline, 's', super_stream=super_stream)
    name = type(messages).__name__
    with pytest.raises(TypeError, match=exactly(f'{name} needs `async for`, not `for`')):
        for _ in messages:
            pass
    text = f'{name} needs `async with`, not `with`'
    with pytest.raises(rbs.RbFlyError, match=exactly(text)), messages:
        pass
    with pytest.raises(TypeError, match=f'^{name} needs `async for` or `async with`, not `await`'):
        await messages


@pytest.mark.parametrize(
    ('offset', 'advice'),
    [
        (5, 'int: pass Offset.offset(5)'),
        ('first', 'str: pass Offset.FIRST'),
        ('billing', "str: pass Offset.reference('billing') to start after a stored offset"),
        (datetime(2026, 3, 1, tzinfo=UTC), 'datetime: pass Offset.timestamp(time)'),
    ],
)
@pytest.mark.parametrize('super_stream', [False, True])
def test_offset_of_another_type(
    offline: Any, offset: object, advice: str, super_stream: bool
) -> None:
    types = 'Offset or Callable or Mapping' if super_stream else 'Offset or Callable'
    with pytest.raises(TypeError, match=exactly(f'offset must be {types}, not {advice}')):
        subscribe_to(offline, 's', super_stream=super_stream, offset=offset)


# -- ports


@pytest.mark.parametrize(
    ('data', 'text'),
    [
        (b'AMQP\0\0\x09\x01', "the port is one for AMQP: it answered 'AMQP'; streams usually"),
        (b'HTTP/1.1 400 Bad', "the port is one for HTTP: it answered 'HTTP'; streams usually"),
        (b'\x15\x03\x03\0\x02\x02\x0a', r'answered with TLS 15030300; is it a TLS port\?'),
        (b'\x7f\0\0\0', 'a frame of 2130706432 bytes exceeds the limit of 65536'),
    ],
)
async def test_port_of_another_protocol(data: bytes, text: str) -> None:
    answer = {Step.PEER_PROPERTIES: lambda peer, _: peer.transport.write(data)}
    async with FakeBroker(at=answer) as fake:
        with pytest.raises(rbs.FrameError, match=text):
            await rbs.streams_client(fake.uri).get_protocol()


@pytest.mark.own_clock
@pytest.mark.parametrize(('step', 'asks'), [(Step.PEER_PROPERTIES, True), (Step.OPEN, False)])
async def test_connection_lost_before_the_first_answer_may_be_a_tls_port(
    step: Step, asks: bool
) -> None:
    async with FakeBroker(at={step: CLOSING}) as fake:
        client = rbs.streams_client(fake.uri, connect_timeout=5)
        with pytest.raises(rbs.ConnectTimeout) as caught:
            await client.get_protocol()
        assert str(caught.value).endswith('; is it a TLS port?') is asks


# -- values


class Color(enum.Enum):
    RED = 1


@pytest.mark.parametrize(
    ('value', 'instead'),
    [
        (Decimal('3.5'), 'str(value)'),
        (Color.RED, 'value.value'),
        ({1, 2}, 'list(value)'),
        (object(), 'str(value)'),
    ],
    ids=lambda item: type(item).__name__,
)
def test_value_without_an_amqp_type(value: Any, instead: str) -> None:
    with pytest.raises(rbs.AMQPEncoderTypeError, match=re.escape(f'; send {instead}') + '$'):
        encode_amqp_bytes(value)


def test_key_that_is_a_number() -> None:
    route: Any = rbs.by_hash(lambda message: message)
    with pytest.raises(
        rbs.ArgumentTypeError,
        match=exactly('the key of a message must be str, not int: return str(key)'),
    ):
        route(5, ['a', 'b'])


async def test_context_in_a_task_without_a_message() -> None:
    text = 'this task has received no message: pass it the context, .* messages\\(\\)$'
    with pytest.raises(rbs.MessageContextError, match=text):
        contextvars.Context().run(rbs.get_message_ctx)


# -- publishers


@pytest.mark.parametrize(('name', 'who'), [(None, ''), ('till', " 'till'")])
@pytest.mark.parametrize('cls', [rbs.Publisher, rbs.PublisherBatchFast])
async def test_closed_publisher_is_named(
    client: rbs.StreamsClient, stream: str, cls: Any, name: str | None, who: str
) -> None:
    publisher: Any = await client.publisher(stream, cls=cls, name=name)
    shown = f'<{cls.__name__} stream={stream!r} name={name!r} '
    assert repr(publisher) == shown + "state='open' unconfirmed=0 reconnects=0>"
    await publisher.close()
    with pytest.raises(
        rbs.PublisherError, match=exactly(f'publisher{who} of {stream!r} is closed')
    ):
        await publisher.send('x') if cls is rbs.Publisher else publisher.batch('x')


@pytest.mark.parametrize(('count', 'text'), [(1, 'the message'), (2, 'messages without a confirm')])
async def test_deleted_stream_says_what_became_of_the_message(count: int, text: str) -> None:
    received: list[Any] = []
    handlers: Any = {wire.PUBLISH: lambda _, frame: received.append(frame)}
    async with (
        FakeBroker(on=handlers) as fake,
        rbs.streams_client(fake.uri) as client,
        client.publisher('orders') as publisher,
    ):
        tasks = [asyncio.create_task(publisher.send(i)) for i in range(count)]
        await until(lambda: bool(received), 'all messages are sent, in one frame')
        session_of(publisher).on_failed(rbs.StreamDoesNotExist('orders'))
        for task in tasks:
            with pytest.raises(rbs.StreamDoesNotExist, match=f'; {text} may still be stored$'):
                await task


async def test_route_to_a_plain_stream(client: rbs.StreamsClient, stream: str) -> None:
    with pytest.raises(
        rbs.StreamDoesNotExist,
        match=r'not a super stream: use client\.publisher and client\.subscribe',
    ):
        await client.super_stream(stream).publisher(route=rbs.by_hash(str))
