"""Creates a stream, and publishes orders."""

import asyncio
import sys

import rbfly.streams as rbs


async def main(uri: str, stream: str) -> None:
    async with rbs.streams_client(uri) as client:
        await client.create_stream(stream, max_length_bytes=20 * 2**30)
        async with client.publisher(stream) as publisher:
            await publisher.send({'id': 0, 'items': ['book', 'pen']})
            count = await publisher.send_many({'id': i} for i in range(1, 1000))
    print(1 + count, 'orders are stored')


if __name__ == '__main__':
    asyncio.run(main(*sys.argv[1:]))
