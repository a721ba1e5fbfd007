"""Publishes orders to a queue, or works on them: with aio-pika."""

import asyncio
import json
import signal
import sys

import aio_pika

QUORUM = {'x-queue-type': 'quorum'}


async def publish(uri: str, queue: str) -> None:
    async with await aio_pika.connect_robust(uri) as connection:
        channel = await connection.channel()  # with confirms
        await channel.declare_queue(queue, durable=True, arguments=QUORUM)
        for i in range(10):
            message = aio_pika.Message(json.dumps({'id': i}).encode())
            await channel.default_exchange.publish(message, routing_key=queue)


async def consume(uri: str, name: str) -> None:
    async with await aio_pika.connect_robust(uri) as connection:
        channel = await connection.channel()
        await channel.set_qos(prefetch_count=16)
        queue = await channel.declare_queue(name, durable=True, arguments=QUORUM)
        loop = asyncio.get_running_loop()
        async with queue.iterator() as messages:
            loop.add_signal_handler(
                signal.SIGTERM, lambda: asyncio.ensure_future(messages.close())
            )
            async for message in messages:
                async with message.process():
                    print(json.loads(message.body)['id'], flush=True)


if __name__ == '__main__':
    _, what, uri, queue = sys.argv
    asyncio.run({'publish': publish, 'consume': consume}[what](uri, queue))
