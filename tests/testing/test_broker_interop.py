"""rstream publishes to the in-memory broker, and consumes from it."""

import asyncio
from typing import Any

import rstream

import rbfly.streams as rbs
from rbfly.testing import StreamBroker
from tests.brokers import until

HANG = 20.0  # seconds; only a bug makes a test wait that long
BODIES = [b'%d' % i for i in range(500)]


def login(broker: StreamBroker) -> dict[str, Any]:
    return {'host': '127.0.0.1', 'port': broker.port, 'username': 'guest', 'password': 'guest'}


async def test_rstream_publishes() -> None:
    async with StreamBroker() as broker:
        async with rstream.Producer(**login(broker)) as producer:
            await producer.create_stream('orders')
            for body in BODIES[:10]:
                await producer.send_wait('orders', rstream.AMQPMessage(body=body))
            rest = [rstream.AMQPMessage(body=body) for body in BODIES[10:]]
            await producer.send_batch('orders', rest)
            await until(lambda: broker.published == len(BODIES), 'all messages are stored')
        assert broker.messages('orders') == BODIES
        async with (
            rbs.streams_client(broker.uri) as client,
            client.subscribe('orders', offset=rbs.Offset.FIRST, timeout=HANG) as messages,
        ):
            assert [await anext(messages) for _ in BODIES] == BODIES


async def test_rstream_consumes() -> None:
    found: list[bytes] = []
    complete = asyncio.Event()

    def on_message(message: Any, context: Any) -> None:
        found.append(bytes(message.body if message.body is not None else message.value))
        if len(found) == len(BODIES):
            complete.set()

    async with StreamBroker() as broker:
        broker.create_stream('orders')
        broker.publish('orders', *BODIES[:100])
        consumer = rstream.Consumer(**login(broker))
        await consumer.start()
        try:
            await consumer.subscribe(
                'orders',
                on_message,
                decoder=rstream.amqp_decoder,
                offset_specification=rstream.ConsumerOffsetSpecification(rstream.OffsetType.FIRST),
            )
            for body in BODIES[100:]:
                broker.publish('orders', body)
            async with asyncio.timeout(HANG):
                await complete.wait()
            await consumer.store_offset('orders', 'reader', 42)
            assert await consumer.query_offset('orders', 'reader') == 42
        finally:
            await consumer.close()
        assert broker.offsets('orders') == {'reader': 42}
    assert found == BODIES
