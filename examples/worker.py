"""Bills orders: 16 at a time, and those of a customer in order, until SIGTERM.

An order that has failed three times goes to a stream of its own.
"""

import asyncio
import signal
import sys
from datetime import timedelta
from typing import TypedDict

import rbfly.streams as rbs
from rbfly.processing import dead_letter, process, retry


class Order(TypedDict):
    id: int
    customer: str
    amount: float


async def bill(order: Order) -> None:
    """Stands for a request to a payment service."""
    if order['amount'] < 0:
        raise ValueError(f'the amount is {order["amount"]}')
    await asyncio.sleep(0.01)
    print('billed', order['id'], flush=True)


async def main(uri: str, stream: str) -> None:
    async with rbs.streams_client(uri, connection_name='billing') as client:
        failed = f'{stream}-failed'
        await client.create_stream(failed, max_age=timedelta(days=30))
        orders = client.subscribe(stream, group='billing', commit='manual', type=Order)
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, orders.stop)
        async with client.publisher(failed) as publisher:
            summary = await process(
                orders,
                bill,
                workers=16,
                key=lambda order: order['customer'],
                on_error=retry([0.1, 1], then=dead_letter(publisher)),
                timeout=30,
            )
        print(summary)


if __name__ == '__main__':
    asyncio.run(main(*sys.argv[1:]))
