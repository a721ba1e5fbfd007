"""Prints the total of each order; reports the messages that are not orders."""

import asyncio
import sys
from dataclasses import dataclass, field

import rbfly.streams as rbs


@dataclass
class Item:
    price: int
    count: int = 1


@dataclass
class Order:
    id: int
    items: list[Item] = field(default_factory=list[Item])

    def total(self) -> int:
        return sum(item.price * item.count for item in self.items)


async def main(uri: str, stream: str) -> None:
    async with rbs.streams_client(uri) as client:
        orders = client.subscribe(
            stream, type=Order, offset=rbs.Offset.FIRST, until='now'
        )
        async with orders:
            while True:
                try:
                    async for order in orders:
                        print(order.id, order.total())
                    break
                except rbs.AMQPDecoderError as error:
                    print('offset', error.offset, 'is not an order')


if __name__ == '__main__':
    asyncio.run(main(*sys.argv[1:]))
