"""Reads a stream from its first message on, until no message arrives."""

import asyncio
import sys

import rbfly.streams as rbs


@rbs.connection
async def read(client: rbs.StreamsClient, stream: str) -> None:
    try:
        async for message in client.subscribe(
            stream, offset=rbs.Offset.FIRST, timeout=5
        ):
            context = rbs.get_message_ctx()
            print(context.stream_offset, message)
    except TimeoutError:
        print('no message for five seconds')


client = rbs.streams_client(sys.argv[1])
asyncio.run(read(client, sys.argv[2]))
