"""Publishes orders to a stream, or works on them: with RbFly."""

import asyncio
import signal
import sys
from datetime import timedelta

import rbfly.streams as rbs


async def publish(uri: str, stream: str) -> None:
    async with rbs.streams_client(uri) as client:
        await client.create_stream(stream, max_age=timedelta(days=7))
        async with client.publisher(stream) as publisher:
            for i in range(10):
                await publisher.send({'id': i})


async def consume(uri: str, stream: str) -> None:
    async with (
        rbs.streams_client(uri) as client,
        client.subscribe(stream, group='billing') as orders,
    ):
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, orders.stop)
        async for order in orders:
            print(order['id'], flush=True)


if __name__ == '__main__':
    _, what, uri, stream = sys.argv
    asyncio.run({'publish': publish, 'consume': consume}[what](uri, stream))
