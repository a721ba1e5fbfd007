"""Properties of AMQP 0.9.1 messages, which RabbitMQ converts to AMQP 1.0 without checking them."""

import asyncio
import copy
import pickle
import random
from datetime import datetime
from typing import Any

import pika
import pytest

import rbfly.streams as rbs
from brokers import RabbitMQ
from rbfly.amqp import MessageCtx, encode_amqp_bytes
from rbfly.types import Symbol

MESSAGES = 300
ODD = [b'\xff\xfe', 'zażółć'.encode(), b'\x80' * 40, bytes(range(256))[-60:]]


def text(rng: random.Random) -> Any:
    """A short string, perhaps not UTF-8."""
    return rng.choice(['', 'plain', 'zażółć', '🐇' * 10, rng.randbytes(16), *ODD])


def header(rng: random.Random, depth: int = 0) -> Any:
    """A value of a table."""
    values: list[Any] = [None, True, rng.randrange(-(2**31), 2**31), rng.randrange(2**62)]
    # not Decimal: RabbitMQ closes the connection with INTERNAL_ERROR
    values += ['text', 'zażółć', 'x' * 300, *ODD, datetime(2024, 1, 2)]
    if depth < 3:
        values += [[header(rng, depth + 1) for _ in range(rng.randrange(3))]]
        values += [{f'k{i}': header(rng, depth + 1) for i in range(rng.randrange(3))}]
    return rng.choice(values)


def properties(rng: random.Random) -> dict[str, Any]:
    every = {
        'content_type': text(rng),
        'content_encoding': text(rng),
        'headers': {f'{name}-ż': header(rng) for name in 'abc'} | {'x-a': header(rng)},
        'delivery_mode': rng.choice([1, 2]),
        'priority': rng.randrange(256),
        'correlation_id': text(rng),
        # RabbitMQ 4.3 closes the channel if this is not UTF-8
        'reply_to': rng.choice(['queue', 'zażółć']),
        'expiration': str(rng.randrange(10**6)),
        'message_id': text(rng),
        'timestamp': rng.randrange(2**40),
        'type': text(rng),
        'user_id': 'guest',
        'app_id': text(rng),
    }
    return {name: value for name, value in every.items() if rng.random() < 0.6}


def write(broker: RabbitMQ, stream: str, messages: list[dict[str, Any]]) -> None:
    with pika.BlockingConnection(pika.URLParameters(str(broker.amqp_uri))) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        for i, fields in enumerate(messages):
            message = pika.BasicProperties(**fields)
            channel.basic_publish('', stream, b'%d' % i, message, mandatory=True)


def as_read(value: str | bytes) -> str | bytes:
    """What a string, or bytes that claim to be one, become."""
    data = value.encode() if isinstance(value, str) else value
    try:
        return data.decode()
    except UnicodeDecodeError:
        return data


def check(ctx: MessageCtx, sent: dict[str, Any]) -> None:
    raw = bytes(ctx.raw or b'')
    assert 'Message(' in repr(ctx)
    found = ctx.properties
    for name in ('correlation_id', 'message_id'):
        if name in sent:
            assert getattr(found, name) == as_read(sent[name])
    for name in ('content_type', 'content_encoding'):
        if name in sent:
            value = getattr(found, name)
            assert type(value) is Symbol
            data = str(value).encode('utf-8', 'surrogateescape')
            assert data == (sent[name].encode() if isinstance(sent[name], str) else sent[name])
    assert set(ctx.app_properties) <= {*sent.get('headers', {})}
    _ = ctx.header, ctx.annotations, ctx.footer, ctx.delivery_annotations
    for other in (ctx, copy.copy(ctx), copy.deepcopy(ctx), pickle.loads(pickle.dumps(ctx))):
        assert other == ctx
        assert encode_amqp_bytes(other) == raw


@pytest.mark.parametrize('policy', ['raise', 'skip'])
async def test_properties_of_amqp_091(
    own_broker: RabbitMQ, own_stream: str, rng: random.Random, policy: Any
) -> None:
    sent = [{'correlation_id': odd, 'content_type': odd, 'message_id': 'i'} for odd in ODD]
    sent += [properties(rng) for _ in range(MESSAGES)]
    await asyncio.to_thread(write, own_broker, own_stream, sent)
    async with (
        rbs.streams_client(own_broker.uri) as client,
        client.subscribe(
            own_stream, offset=rbs.Offset.FIRST, on_decode_error=policy, until='now'
        ) as subscription,
    ):
        found = [ctx async for ctx in subscription.messages()]
    assert [ctx.body for ctx in found] == [b'%d' % i for i in range(len(sent))]
    for ctx, fields in zip(found, sent, strict=True):
        check(ctx, fields)
    assert [ctx.properties.message_id for ctx in found[: len(ODD)]] == ['i'] * len(ODD)
