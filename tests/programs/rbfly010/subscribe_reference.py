"""Reads five messages after those that it has read before, and stores where it was."""

import asyncio
import sys

import rbfly.streams as rbs


@rbs.connection
async def read(client: rbs.StreamsClient, stream: str) -> None:
    count = 0
    async for message in client.subscribe(stream, offset=rbs.Offset.reference('demo')):
        print(message)
        await client.write_offset(stream, 'demo')
        count += 1
        if count == 5:
            break


client = rbs.streams_client(sys.argv[1])
asyncio.run(read(client, sys.argv[2]))
