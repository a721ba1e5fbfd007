"""Publishes messages with a filter value, and reads those of one value."""

import asyncio
import sys

import rbfly.streams as rbs


def extract(context: rbs.MessageCtx) -> str:
    return str(context.app_properties['region'])


@rbs.connection
async def publish(client: rbs.StreamsClient, stream: str) -> None:
    await client.create_stream(stream)
    async with client.publisher(stream, filter_extract=extract) as publisher:
        for i in range(10):
            region = 'emea' if i % 2 else 'apac'
            await publisher.send(
                rbs.stream_message_ctx(i, app_properties={'region': region})
            )


@rbs.connection
async def read(client: rbs.StreamsClient, stream: str) -> None:
    wanted = rbs.MessageFilter(extract, {'emea'})
    async for message in client.subscribe(
        stream, offset=rbs.Offset.FIRST, filter=wanted
    ):
        print(message, rbs.get_message_ctx().app_properties)
        if message == 9:
            break


async def main(client: rbs.StreamsClient, stream: str) -> None:
    await publish(client, stream)
    await read(client, stream)


client = rbs.streams_client(sys.argv[1])
asyncio.run(main(client, sys.argv[2]))
