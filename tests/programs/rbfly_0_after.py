"""Publishes orders, and reads them from where it has stopped: with RbFly 1.0."""

import asyncio
import sys

import rbfly.streams as rbs


async def publish(client: rbs.StreamsClient, stream: str) -> None:
    await client.create_stream(stream)
    async with client.publisher(stream) as publisher:
        await publisher.send_many({'id': i} for i in range(10))


async def consume(client: rbs.StreamsClient, stream: str) -> None:
    async with client.subscribe(
        stream, offset=rbs.Offset.reference('billing'), commit='auto', until='now'
    ) as orders:
        async for message in orders.messages():
            print(message.stream_offset, message.body)
    print('no more orders')


async def main(what: str, uri: str, stream: str) -> None:
    async with rbs.streams_client(uri) as client:
        await {'publish': publish, 'consume': consume}[what](client, stream)


if __name__ == '__main__':
    asyncio.run(main(*sys.argv[1:]))
