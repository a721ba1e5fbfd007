"""Classes for the order that codec lanes decode, and how a program builds them itself."""

from dataclasses import dataclass, field
from typing import Any

import msgspec


@dataclass
class Item:
    """A line of an order."""

    title: str
    price: float
    count: int = 1


@dataclass
class Order:
    """An order, as most programs define it."""

    id: int
    customer: str
    items: list[Item]
    paid: bool = False
    note: str | None = None
    tags: list[str] = field(default_factory=list)


class ItemStruct(msgspec.Struct):
    """A line of an order."""

    title: str
    price: float
    count: int = 1


class OrderStruct(msgspec.Struct):
    """The same order as a Struct."""

    id: int
    customer: str
    items: list[ItemStruct]
    paid: bool = False
    note: str | None = None
    tags: list[str] = []


TYPES: dict[str, type[Any]] = {'decode-typed': Order, 'decode-struct': OrderStruct}


def build(body: dict[str, Any]) -> Order:
    """Build an order from a dict."""
    return Order(
        body['id'],
        body['customer'],
        [Item(item['title'], item['price'], item['count']) for item in body['items']],
        body['paid'],
        body['note'],
        body['tags'],
    )


def typed(kind: type[Any], body: dict[str, Any]) -> Any:
    """The order as an object, for comparison."""
    return msgspec.convert(body, kind)
