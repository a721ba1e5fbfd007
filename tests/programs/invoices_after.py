"""Publishes an invoice for each order, exactly once."""

import asyncio
import sys

import rbfly.streams as rbs
from rbfly.processing import Stream, pipe


def invoice(order: dict[str, int]) -> dict[str, int]:
    return {'order': order['id'], 'total': order['price'] * 119 // 100}


async def main(uri: str, orders: str, invoices: str) -> None:
    async with rbs.streams_client(uri) as client:
        source, target = Stream(client, orders), Stream(client, invoices)
        await pipe(source, target, invoice, name='billing', until='now')


if __name__ == '__main__':
    asyncio.run(main(*sys.argv[1:]))
