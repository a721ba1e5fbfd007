"""Publishes orders, or reads them after a stored offset: with rstream."""

import asyncio
import json
import signal
import sys

from rstream import (
    AMQPMessage,
    Consumer,
    ConsumerOffsetSpecification,
    MessageContext,
    OffsetNotFound,
    OffsetType,
    Producer,
    amqp_decoder,
)

NAME = 'billing'


async def publish(host: str, port: int, stream: str) -> None:
    async with Producer(host, port, username='guest', password='guest') as producer:
        await producer.create_stream(
            stream, {'max-length-bytes': 20 * 2**30}, exists_ok=True
        )
        for i in range(10):
            body = json.dumps({'id': i}).encode()
            message = AMQPMessage(body=body, application_properties={'region': 'emea'})
            await producer.send_wait(stream, message)


async def consume(host: str, port: int, stream: str) -> None:
    consumer = Consumer(host, port, username='guest', password='guest')
    await consumer.start()
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, consumer.stop)

    try:
        stored = await consumer.query_offset(stream, NAME)
        start = ConsumerOffsetSpecification(OffsetType.OFFSET, stored + 1)
    except OffsetNotFound:
        start = ConsumerOffsetSpecification(OffsetType.FIRST)

    async def on_message(message: AMQPMessage, context: MessageContext) -> None:
        region = message.application_properties[b'region'].decode()
        print(context.offset, json.loads(message.body), region, flush=True)
        await consumer.store_offset(stream, NAME, context.offset)

    await consumer.subscribe(
        stream, on_message, decoder=amqp_decoder, offset_specification=start
    )
    await consumer.run()
    await consumer.close()


if __name__ == '__main__':
    _, what, host, port, stream = sys.argv
    asyncio.run({'publish': publish, 'consume': consume}[what](host, int(port), stream))
