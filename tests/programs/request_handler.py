"""A service: a connection sends an order as JSON, and receives an HTTP status."""

import asyncio
import json
import signal
import sys
from typing import Any

import rbfly.streams as rbs


class Shop:
    def __init__(self, publisher: rbs.Publisher) -> None:
        self.publisher = publisher

    async def store(self, order: dict[str, Any]) -> int:
        """Return 201 if the order is stored, 503 if not, 504 if that is unknown."""
        try:
            await self.publisher.send(order, timeout=order['patience'])
        except rbs.RbFlyError as ex:
            return 504 if ex.outcome == 'unknown' else 503
        return 201

    async def handle(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        order = json.loads(await reader.readline())
        writer.write(b'%d\n' % await self.store(order))
        writer.close()
        await writer.wait_closed()


async def main(uri: str, stream: str) -> None:
    stopped = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopped.set)
    async with rbs.streams_client(uri, load_balancer=True) as client:
        # The service starts whether the broker is up or not.
        publisher = await client.publisher(stream, wait=False)
        shop = Shop(publisher)
        server = await asyncio.start_server(shop.handle, '127.0.0.1', backlog=1000)
        print(server.sockets[0].getsockname()[1], flush=True)
        await stopped.wait()
        server.close()
        await publisher.close()


if __name__ == '__main__':
    asyncio.run(main(*sys.argv[1:]))
