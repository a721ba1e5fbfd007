"""Publishes orders to three partitions, or reads them in a group: with RbFly."""

import asyncio
import signal
import sys

import rbfly.streams as rbs

GROUP = 'billing'


async def publish(uri: str, topic: str) -> None:
    async with rbs.streams_client(uri) as client:
        orders = client.super_stream(topic)
        await orders.create(partitions=3)
        by_customer = rbs.by_hash(lambda order: order['customer'])
        async with orders.publisher(route=by_customer) as publisher:
            for i in range(100):
                await publisher.submit({'id': i, 'customer': f'customer {i % 10}'})
            await publisher.flush()


async def consume(uri: str, topic: str) -> None:
    async with rbs.streams_client(uri) as client:
        orders = client.super_stream(topic)
        messages = orders.subscribe(group=GROUP, commit='manual')
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, messages.stop)
        async with messages:
            async for batch in messages.batches():
                for order in batch:
                    print(batch.stream, order, flush=True)
                await messages.commit()


if __name__ == '__main__':
    _, what, uri, topic = sys.argv
    asyncio.run({'publish': publish, 'consume': consume}[what](uri, topic))
