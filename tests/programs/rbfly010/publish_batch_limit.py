"""Two coroutines fill a bounded batch, another one sends it."""

import asyncio
import sys

import rbfly.streams as rbs


async def produce(publisher: rbs.PublisherBatchLimit, start: int) -> None:
    for i in range(start, start + 100):
        await publisher.batch(i, max_len=10)


async def send(publisher: rbs.PublisherBatchLimit) -> None:
    while True:
        await publisher.flush()
        await asyncio.sleep(0.001)


@rbs.connection
async def publish(client: rbs.StreamsClient, stream: str) -> None:
    await client.create_stream(stream)
    async with client.publisher(stream, cls=rbs.PublisherBatchLimit) as publisher:
        task = asyncio.create_task(send(publisher))
        await asyncio.gather(produce(publisher, 0), produce(publisher, 100))
        task.cancel()


client = rbs.streams_client(sys.argv[1])
asyncio.run(publish(client, sys.argv[2]))
