"""Publishes orders, or reads them after a stored offset: with RbFly."""

import asyncio
import json
import signal
import sys

import rbfly.streams as rbs

NAME = 'billing'


async def publish(uri: str, stream: str) -> None:
    async with rbs.streams_client(uri) as client:
        await client.create_stream(stream, max_length_bytes=20 * 2**30)
        async with client.publisher(stream) as publisher:
            for i in range(10):
                body = json.dumps({'id': i}).encode()
                await publisher.send(
                    rbs.Message(body, app_properties={'region': 'emea'})
                )


async def consume(uri: str, stream: str) -> None:
    async with rbs.streams_client(uri) as client:
        messages = client.subscribe(
            stream, offset=rbs.Offset.reference(NAME), commit='manual'
        )
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, messages.stop)
        async with messages:
            async for message in messages.messages():
                region = message.app_properties['region']
                print(
                    message.stream_offset, json.loads(message.body), region, flush=True
                )
                await messages.commit()


if __name__ == '__main__':
    _, what, uri, stream = sys.argv
    asyncio.run({'publish': publish, 'consume': consume}[what](uri, stream))
