"""Prints the total of each order; reports messages that are not orders: by hand."""

import asyncio
import sys
from dataclasses import dataclass, field
from typing import Any

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


def integer(data: dict[Any, Any], name: str) -> int:
    value = data[name]
    if type(value) is not int:
        raise ValueError(f'{name} is {value!r}')
    return value


def mapping(data: Any) -> dict[Any, Any]:
    if not isinstance(data, dict):
        raise ValueError(f'{data!r} is not a map')
    return data


def build_item(body: Any) -> Item:
    data = mapping(body)
    item = Item(integer(data, 'price'))
    if 'count' in data:
        item.count = integer(data, 'count')
    return item


def build_order(body: Any) -> Order:
    data = mapping(body)
    items = data.get('items', [])
    if not isinstance(items, list):
        raise ValueError(f'items is {items!r}')
    return Order(integer(data, 'id'), [build_item(item) for item in items])


async def main(uri: str, stream: str) -> None:
    async with rbs.streams_client(uri) as client:
        messages = client.subscribe(stream, offset=rbs.Offset.FIRST, until='now')
        async with messages:
            async for message in messages.messages():
                try:
                    order = build_order(message.body)
                except (KeyError, ValueError):
                    print('offset', message.stream_offset, 'is not an order')
                else:
                    print(order.id, order.total())


if __name__ == '__main__':
    asyncio.run(main(*sys.argv[1:]))
