"""Types for the tests of typed messages: the same order in several kinds of classes."""

from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from decimal import Decimal
from enum import Enum, IntEnum
from typing import Any, Literal, NamedTuple, TypedDict
from uuid import UUID

import msgspec
import pydantic


class Status(Enum):
    """A plain enumeration, whose members are no strings."""

    NEW = 'new'
    PAID = 'paid'


class Level(IntEnum):
    """An enumeration of integers."""

    LOW = 1
    HIGH = 2


class Place(NamedTuple):
    """Is sent as a list."""

    x: int
    y: float


@dataclass
class Item:
    title: str
    price: float
    count: int = 1


@dataclass
class Order:
    id: int
    items: list[Item]
    status: Status = Status.NEW
    note: str | None = None
    tags: list[str] = field(default_factory=list)


class ItemStruct(msgspec.Struct):
    title: str
    price: float
    count: int = 1


class OrderStruct(msgspec.Struct):
    id: int
    items: list[ItemStruct]
    status: Status = Status.NEW
    note: str | None = None
    tags: list[str] = []


class ItemDict(TypedDict):
    title: str
    price: float
    count: int


class OrderDict(TypedDict):
    id: int
    items: list[ItemDict]
    status: Literal['new', 'paid']
    note: str | None
    tags: list[str]


class ItemModel(pydantic.BaseModel):
    title: str
    price: float
    count: int = 1


class OrderModel(pydantic.BaseModel):
    id: int
    items: list[ItemModel]
    status: Status = Status.NEW
    note: str | None = None
    tags: list[str] = []


@dataclass(frozen=True, slots=True)
class Everything:
    """A field of each supported kind."""

    number: int
    real: float
    text: str
    data: bytes
    flag: bool
    nothing: None
    when: datetime
    key: UUID
    price: Decimal
    day: date
    status: Status
    level: Level
    kind: Literal['a', 2, None]
    place: Place
    pair: tuple[int, str]
    several: tuple[int, ...]
    names: set[str]
    counts: dict[str, int]
    by_number: dict[int, list[float]]
    either: int | str | None
    anything: Any
    order: Order
    parent: 'Everything | None' = None


RAW: dict[str, Any] = {
    'id': 7,
    'items': [{'title': 'book', 'price': 12.5, 'count': 2}],
    'status': 'paid',
    'note': None,
    'tags': ['red'],
}
ORDER = Order(7, [Item('book', 12.5, 2)], Status.PAID, None, ['red'])
STRUCT = OrderStruct(7, [ItemStruct('book', 12.5, 2)], Status.PAID, None, ['red'])
MODEL = OrderModel(
    id=7, items=[ItemModel(title='book', price=12.5, count=2)], status=Status.PAID, tags=['red']
)
ORDERS: list[tuple[Any, Any]] = [
    (Order, ORDER),
    (OrderStruct, STRUCT),
    (OrderDict, RAW),
    (OrderModel, MODEL),
]
NAMES = ['dataclass', 'Struct', 'TypedDict', 'model']

EVERYTHING = Everything(
    -5,
    0.5,
    'text',
    b'\0\xff',
    True,
    None,
    datetime(2024, 5, 17, 12, 30, tzinfo=UTC),
    UUID(int=17),
    Decimal('12.50'),
    date(2024, 5, 17),
    Status.PAID,
    Level.HIGH,
    'a',
    Place(1, 2.5),
    (1, 'one'),
    (1, 2, 3),
    {'a', 'b'},
    {'a': 1},
    {1: [0.5]},
    'either',
    {'any': [1, None]},
    ORDER,
)
