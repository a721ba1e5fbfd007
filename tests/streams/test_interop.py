"""Exchange byte strings with rstream and pika (AMQP 0.9.1) in every direction.

Further tests check which bodies and application properties AMQP 0.9.1 receives.
"""

import asyncio
import random
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import urlsplit

import pika
import pytest
import rstream

import rbfly.streams as rbs
from brokers import RabbitMQ
from rbfly.amqp import DataBody, SequenceBody, decode_amqp, stream_message_ctx
from rbfly.types import AMQPArray, Int

SIZES = (1, 254, 255, 256, 257, 4000, 65535, 65536, 200_000)
BODIES = [
    b'',
    b'\0',
    b'text',
    'zażółć'.encode(),
    bytes(range(256)),
    *(b'%d' % i for i in range(200)),
]
Read = Callable[[RabbitMQ, str, int], Any]


async def write_rbfly(broker: RabbitMQ, stream: str, bodies: list[bytes]) -> None:
    async with rbs.streams_client(broker.uri) as client:
        async with client.publisher(stream) as publisher:
            await publisher.send(bodies[0])
        async with client.publisher(stream) as batch:
            for body in bodies[1:]:
                batch.batch(body)
            await batch.flush()


async def read_rbfly(broker: RabbitMQ, stream: str, n: int) -> list[Any]:
    async with (
        rbs.streams_client(broker.uri) as client,
        client.subscribe(stream, offset=rbs.Offset.FIRST, timeout=20) as messages,
    ):
        return [await anext(messages) for _ in range(n)]


def channel(broker: RabbitMQ) -> Iterator[Any]:
    with pika.BlockingConnection(pika.URLParameters(str(broker.amqp_uri))) as connection:
        yield connection.channel()


def pika_write(broker: RabbitMQ, stream: str, bodies: list[bytes]) -> None:
    for amqp in channel(broker):
        amqp.confirm_delivery()
        for body in bodies:
            amqp.basic_publish('', stream, body, mandatory=True)


def pika_messages(broker: RabbitMQ, stream: str, n: int) -> list[tuple[Any, bytes]]:
    """Return the properties and body of each message."""
    found: list[tuple[Any, bytes]] = []
    for amqp in channel(broker):
        amqp.basic_qos(prefetch_count=100)
        for method, properties, body in amqp.consume(
            stream, arguments={'x-stream-offset': 'first'}, inactivity_timeout=20
        ):
            assert method is not None, f'pika received only {len(found)} of {n} messages'
            found.append((properties, body))
            amqp.basic_ack(method.delivery_tag)
            if len(found) == n:
                break
        amqp.cancel()
    return found


def pika_read(broker: RabbitMQ, stream: str, n: int) -> list[bytes]:
    return [body for _, body in pika_messages(broker, stream, n)]


async def write_pika(broker: RabbitMQ, stream: str, bodies: list[bytes]) -> None:
    await asyncio.to_thread(pika_write, broker, stream, bodies)


async def read_pika(broker: RabbitMQ, stream: str, n: int) -> list[bytes]:
    return await asyncio.to_thread(pika_read, broker, stream, n)


def login(broker: RabbitMQ) -> dict[str, Any]:
    address = urlsplit(broker.uri)
    return {
        'host': address.hostname,
        'port': address.port,
        'username': 'guest',
        'password': 'guest',
    }


async def write_rstream(broker: RabbitMQ, stream: str, bodies: list[bytes]) -> None:
    async with rstream.Producer(**login(broker)) as producer:
        for body in bodies:
            await producer.send_wait(stream, rstream.AMQPMessage(body=body))


async def read_rstream(broker: RabbitMQ, stream: str, n: int) -> list[bytes]:
    found: list[bytes] = []
    complete = asyncio.Event()

    def on_message(message: Any, context: Any) -> None:
        # rstream stores the body of an amqp-value section in `value`
        body = message.body if message.body is not None else message.value
        found.append(bytes(body))
        if len(found) == n:
            complete.set()

    consumer = rstream.Consumer(**login(broker))
    await consumer.start()
    try:
        await consumer.subscribe(
            stream,
            on_message,
            decoder=rstream.amqp_decoder,
            offset_specification=rstream.ConsumerOffsetSpecification(rstream.OffsetType.FIRST),
        )
        async with asyncio.timeout(30):
            await complete.wait()
    finally:
        await consumer.close()
    return found


WRITE = {'rbfly': write_rbfly, 'rstream': write_rstream, 'pika': write_pika}
READ: dict[str, Read] = {'rbfly': read_rbfly, 'rstream': read_rstream, 'pika': read_pika}


@pytest.mark.parametrize(
    ('writer', 'reader'),
    [
        ('rbfly', 'rbfly'),
        ('rbfly', 'rstream'),
        ('rbfly', 'pika'),
        ('rstream', 'rbfly'),
        ('pika', 'rbfly'),
    ],
)
async def test_byte_strings_between_clients(
    own_broker: RabbitMQ, own_stream: str, writer: str, reader: str, rng: random.Random
) -> None:
    bodies = BODIES + [rng.randbytes(size) for size in SIZES]
    # rstream writes an empty body as a message of no bytes at all, which has no body
    if writer == 'rstream' and reader != 'rbfly':
        bodies.remove(b'')
    await WRITE[writer](own_broker, own_stream, bodies)
    expected = [None if writer == 'rstream' and not body else body for body in bodies]
    assert await READ[reader](own_broker, own_stream, len(bodies)) == expected


# -- other bodies, and application properties


async def test_amqp_091_reads_bodies_of_every_kind(own_broker: RabbitMQ, own_stream: str) -> None:
    sections = DataBody([b'one', b'', b'two'])
    values: list[Any] = [None, '', 'text', {'k': 1}, SequenceBody([[1, 'a'], []])]
    async with rbs.streams_client(own_broker.uri) as client, client.publisher(own_stream) as p:
        for body in (b'', sections, *values, b'last'):
            await p.send(body)
    found = await asyncio.to_thread(pika_messages, own_broker, own_stream, len(values) + 3)
    assert [body for _, body in found[:2]] == [b'', b'onetwo']
    assert [properties.type for properties, _ in found[:2]] == [None, None]
    # other bodies arrive encoded, with a type that says so
    for value, (properties, body) in zip(values, found[2:-1], strict=True):
        assert properties.type == 'amqp-1.0'
        assert decode_amqp(body).body == value
    assert found[-1][1] == b'last'


async def test_amqp_091_reads_nested_application_properties(
    own_broker: RabbitMQ, own_stream: str
) -> None:
    properties = {'list': [1, 'a', []], 'map': {'k': {'x': True}}, 'array': AMQPArray(Int, [1, 2])}
    async with rbs.streams_client(own_broker.uri) as client, client.publisher(own_stream) as p:
        await p.send(stream_message_ctx(b'', app_properties=properties))
    [(found, _)] = await asyncio.to_thread(pika_messages, own_broker, own_stream, 1)
    headers = {key: value for key, value in found.headers.items() if not key.startswith('x-')}
    assert headers == {**properties, 'array': [1, 2]}
