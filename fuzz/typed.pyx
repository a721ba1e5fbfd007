# cython: language_level=3str
"""Target: decode arbitrary bytes as a message whose body has a type; the first byte selects it."""

from dataclasses import dataclass, field, is_dataclass
from datetime import date, datetime
from decimal import Decimal
from enum import Enum
from types import UnionType
from typing import (
    Any, Literal, NamedTuple, TypedDict, get_args, get_origin, get_type_hints, is_typeddict,
)
from uuid import UUID

from cpython.buffer cimport PyBUF_READ
from cpython.memoryview cimport PyMemoryView_FromMemory
from cpython.object cimport PyObject
from libc.stdint cimport uint8_t

from fuzz.checks cimport finding, same
from rbfly.amqp._codec cimport decode_body
from rbfly.amqp._plan cimport Plan
from rbfly.amqp._typed cimport decode_typed

from rbfly.amqp import decode_amqp, encode_amqp_bytes
from rbfly.amqp.schema import plan_of
from rbfly.error import AMQPDecoderError, AMQPEncoderError
from rbfly.types import Symbol

cdef extern from 'Python.h':
    Py_ssize_t Py_REFCNT(PyObject *o) noexcept


# --- types ---

class Colour(Enum):
    RED = 1
    GREEN = 'g'


class Place(NamedTuple):
    x: int
    y: float


@dataclass
class Item:
    a: str
    b: float
    c: int = 1


@dataclass(frozen=True, slots=True)
class Order:
    i: int
    l: list[Item]
    k: Colour = Colour.RED
    n: 'Order | None' = None
    t: list[str] = field(default_factory=list)


@dataclass(kw_only=True)
class Checked:
    a: int
    b: int = 3

    def __post_init__(self):
        if self.a > self.b:
            raise ValueError('a is above b')


class Pairs(TypedDict, total=False):
    a: int
    b: str
    c: 'list[Pairs]'


class Rows(TypedDict):
    a: list[Item]
    b: dict[str, float]
    c: bytes
    d: bool
    e: datetime
    f: UUID | None
    g: str


@dataclass
class Many:
    """More fields than fit on the stack."""

    a: Any = None
    p: Place = Place(0, 0.0)
    s: set[int] = field(default_factory=set)
    u: tuple[int, str] = (0, '')
    v: tuple[bool, ...] = ()
    w: dict[int, list[bytes]] = field(default_factory=dict)
    x: Literal['a', 2, None] = None
    y: Decimal = Decimal(0)
    z: date = date.min
    f00: int = 0
    f01: int = 0
    f02: int = 0
    f03: int = 0
    f04: int = 0
    f05: int = 0
    f06: int = 0
    f07: int = 0
    f08: int = 0
    f09: int = 0
    f10: int = 0
    f11: int = 0
    f12: int = 0
    f13: int = 0
    f14: int = 0
    f15: int = 0
    f16: int = 0
    f17: int = 0
    f18: int = 0
    f19: int = 0
    f20: int = 0
    f21: int = 0
    f22: int = 0
    f23: int = 0


cdef list KINDS = [
    Item, Order, Checked, Pairs, Rows, Many, list[Order], dict[str, Item | int], list[Pairs],
    Any, int, float, str, bytes, bool, type(None), datetime, UUID, Colour, Place, Symbol,
    list[int], list[str], list[list[float]], dict[Any, Any], dict[int, str],
    tuple[int, str, float], tuple[()], set[int], frozenset[str], Decimal, date,
    int | str | bytes | list[int] | Item | None, float | None, Literal[1, 'a', None, True],
]
cdef list PLANS = [plan_of(kind) for kind in KINDS]
cdef dict HINTS = {}        # of the fields of classes
cdef object NOTHING = object()


cdef dict hints_of(object kind):
    if kind not in HINTS:
        HINTS[kind] = get_type_hints(kind)
    return HINTS[kind]


# --- checks ---

cdef bint all_fit(object kind, object values) except -1:
    for value in values:
        if not fits(kind, value):
            return False
    return True


cdef bint fits(object kind, object value) except -1:
    """Whether a value is of a type, and so is everything in it."""
    cdef dict hints
    origin, args = get_origin(kind), get_args(kind)
    if kind is Any:
        return True
    if kind is None or kind is type(None):
        return value is None
    if origin is UnionType or str(origin) == 'typing.Union':
        return any([fits(arg, value) for arg in args])
    if origin is Literal:
        return any([value == arg and type(value) is type(arg) for arg in args])
    if origin in (list, set, frozenset):
        return type(value) is origin and all_fit(args[0], value)
    if origin is dict:
        return type(value) is dict and all_fit(args[0], value) and all_fit(args[1], value.values())
    if kind == tuple[()]:
        return value == ()
    if origin is tuple and args[len(args) - 1] is ...:
        return type(value) is tuple and all_fit(args[0], value)
    if origin is tuple:
        return type(value) is tuple and len(value) == len(args) and all(
            [fits(arg, item) for arg, item in zip(args, value)]
        )
    if is_typeddict(kind):
        hints = hints_of(kind)
        return type(value) is dict and (kind is Pairs or len(value) == len(hints)) and all(
            [key in hints and fits(hints[key], item) for key, item in value.items()]
        )
    if type(value) is not kind and not issubclass(kind, Enum):
        return False
    if is_dataclass(kind):
        return all([fits(hint, getattr(value, name)) for name, hint in hints_of(kind).items()])
    if kind is Place:
        return fits(int, value.x) and fits(float, value.y)
    return isinstance(value, kind)


cdef int check_error(object error, Py_ssize_t size) except -1:
    """Check that an error has a path and a text, and that its position is in the message."""
    if error.position is not None and not 0 <= error.position <= size:
        finding(f'decoder error with position {error.position!r}: {error!r}')
    # the structure of the message is checked without a path
    if not error.args[0] or error.path is not None and not error.path.startswith('$'):
        finding(f'decoder error without text or path: {error!r}, {error.path!r}')
    return 0


cdef int check_again(object kind, Plan plan, object found) except -1:
    """Encode a decoded body: decoding it returns the same."""
    cdef bytes raw
    try:
        raw = encode_amqp_bytes(found)
    except AMQPEncoderError:        # strings and symbols that can only be received
        return 0
    again = decode_typed(plan, raw, len(raw))
    # a NaN is not equal to itself, and the order of a set is not fixed
    if again != found and repr(again) != repr(found):
        finding(f'{kind}: round trip changes {found!r} to {again!r}')
    return 0


cdef int check(object kind, Plan plan, object view, const uint8_t *p, Py_ssize_t size) except -1:
    try:
        found = decode_typed(plan, p, size)
    except AMQPDecoderError as ex:
        check_error(ex, size)
        found = NOTHING
    try:
        other = decode_amqp(view, type=kind).body
    except AMQPDecoderError as ex:
        check_error(ex, size)
        other = NOTHING
    if found is NOTHING or other is NOTHING:
        if found is not other:
            finding(f'{kind}: decode_typed returns {found!r}, decode_amqp {other!r}')
        return 0
    if not same(found, other) and repr(found) != repr(other):
        finding(f'{kind}: decode_typed returns {found!r}, decode_amqp {other!r}')
    if not fits(kind, found):
        finding(f'{found!r} is not of type {kind}')
    if kind is Any and not same(found, decode_body(p, size)):
        finding(f'{found!r} differs from the body without a type')
    check_again(kind, plan, found)
    return 0


cdef api int target(const uint8_t *data, Py_ssize_t size) except -1:
    cdef Py_ssize_t chosen
    if size < 1:
        return 0
    chosen = data[0] % len(KINDS)
    view = PyMemoryView_FromMemory(<char *> data + 1, size - 1, PyBUF_READ)
    check(KINDS[chosen], PLANS[chosen], view, data + 1, size - 1)
    if Py_REFCNT(<PyObject *> view) != 1:
        finding('an object still holds a reference to the input')
    return 0
