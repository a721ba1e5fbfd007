"""Bills the orders of a super stream, many at a time."""

import asyncio
import signal
import sys

import rbfly.streams as rbs
from rbfly.processing import dead_letter, process, retry


async def bill(order: dict[str, str]) -> None:
    await asyncio.sleep(0.001)  # such as a request to another service
    print(order['id'], flush=True)


async def main(uri: str, super_stream: str, failed: str) -> None:
    async with rbs.streams_client(uri) as client, client.publisher(failed) as letters:
        orders = client.super_stream(super_stream)
        messages = orders.subscribe(group='billing', commit='manual')
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, messages.stop)
        await process(
            messages,
            bill,
            key=lambda order: order['customer'],
            on_error=retry([0.1, 0.1], then=dead_letter(letters)),
        )


if __name__ == '__main__':
    asyncio.run(main(*sys.argv[1:]))
