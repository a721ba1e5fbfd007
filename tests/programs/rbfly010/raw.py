"""Reads the bytes of messages from a time on, and decodes them itself."""

import asyncio
import sys
import time

import rbfly.streams as rbs
from rbfly.amqp import MessageCtx, decode_amqp, encode_amqp


@rbs.connection
async def publish(client: rbs.StreamsClient, stream: str) -> None:
    await client.create_stream(stream)
    async with client.publisher(stream) as publisher:
        await publisher.send({'id': 1})


@rbs.connection
async def read(client: rbs.StreamsClient, stream: str) -> None:
    start = rbs.Offset.timestamp(time.time() - 60)
    async for data in client.subscribe(stream, offset=start, amqp=False):
        context = decode_amqp(data)
        print(context.body, context.header.priority)

        buffer = bytearray(1024)
        size = encode_amqp(
            buffer, MessageCtx(context.body, None, None, None, None, None, None)
        )
        print(decode_amqp(bytes(buffer[:size])).body)
        break


client = rbs.streams_client(sys.argv[1])
asyncio.run(publish(client, sys.argv[2]))
asyncio.run(read(client, sys.argv[2]))
