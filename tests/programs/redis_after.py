"""Publishes orders to three partitions, or works on them in a group: with RbFly."""

import asyncio
import signal
import sys
from datetime import timedelta

import rbfly.streams as rbs

GROUP = 'billing'


async def publish(uri: str, name: str) -> None:
    async with rbs.streams_client(uri) as client:
        orders = client.super_stream(name)
        await orders.create(partitions=3, max_age=timedelta(days=7))
        by_id = rbs.by_hash(lambda order: str(order['id']))
        async with orders.publisher(route=by_id) as publisher:
            for i in range(100):
                await publisher.send({'id': i})


async def consume(uri: str, name: str) -> None:
    async with (
        rbs.streams_client(uri) as client,
        client.super_stream(name).subscribe(group=GROUP) as orders,
    ):
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, orders.stop)
        async for order in orders:
            print(order['id'], flush=True)


if __name__ == '__main__':
    _, what, uri, name = sys.argv
    asyncio.run({'publish': publish, 'consume': consume}[what](uri, name))
