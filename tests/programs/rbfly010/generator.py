"""Reads the last chunk with a generator that closes the connection at its end."""

import asyncio
import sys
from collections.abc import AsyncIterator

import rbfly.streams as rbs


@rbs.connection
async def read(client: rbs.StreamsClient, stream: str) -> AsyncIterator[rbs.AMQPBody]:
    async for message in client.subscribe(stream, offset=rbs.Offset.LAST):
        yield message
        break


async def main(client: rbs.StreamsClient, stream: str) -> None:
    await client.create_stream(stream)
    async with client.publisher(stream) as publisher:
        await publisher.send('last')
    async for message in read(client, stream):
        print(message, client.connected)
    print('connected:', client.connected)
    await client.disconnect()
    await client.disconnect()  # does nothing
    await client.delete_stream(stream)  # connects again
    await client.disconnect()


client = rbs.streams_client(sys.argv[1])
asyncio.run(main(client, sys.argv[2]))
