"""Decoding to the types of a program: objects that are built, and errors that name a place."""

import copy
import pickle
import sys
import typing
from collections.abc import Mapping, Sequence
from dataclasses import InitVar, dataclass, field, replace
from datetime import UTC, date, datetime
from decimal import Decimal
from enum import Enum
from random import Random
from typing import Annotated, Any, Generic, Literal, NotRequired, TypedDict, TypeVar
from uuid import UUID

import msgspec
import pydantic
import pytest
from amqp_values import VALUE
from hypothesis import given, settings
from hypothesis import strategies as st
from typed_values import (
    EVERYTHING,
    NAMES,
    ORDER,
    ORDERS,
    RAW,
    Everything,
    Item,
    Level,
    Order,
    OrderDict,
    OrderModel,
    OrderStruct,
    Place,
    Status,
)

import rbfly.types as t
from rbfly.amqp import DataBody, SequenceBody, decode_amqp, encode_amqp_bytes, stream_message_ctx
from rbfly.error import AMQPDecoderError, ArgumentTypeError
from tests.sizes import sized

T = TypeVar('T')


class Planet(Enum):
    """Members whose values are sent as lists."""

    MARS = (0.6, 3)
    EARTH = (5.9, 6)


class Special(Enum):
    """Members whose values are sent as other types."""

    PRICE = Decimal('1.50')
    DAY = date(2026, 3, 1)
    NESTED = ((1, 2), 3)
    NONE = None


Lists: Any = Enum('Lists', {'SHORT': [1]})


def decode(body: Any, kind: Any) -> Any:
    return decode_amqp(encode_amqp_bytes(body), type=kind).body


def error_of(body: Any, kind: Any) -> str:
    with pytest.raises(AMQPDecoderError) as caught:
        decode(body, kind)
    assert caught.value.path is not None
    assert str(caught.value).startswith(f'{caught.value.path}: ')
    return str(caught.value)


# --- objects ---


@pytest.mark.parametrize(('kind', 'expected'), ORDERS, ids=NAMES)
def test_order(kind: Any, expected: Any) -> None:
    found = decode(RAW, kind)
    assert found == expected
    assert type(found) is type(expected)
    assert decode([RAW, RAW], list[kind]) == [expected, expected]
    assert decode({'a': RAW}, dict[str, kind]) == {'a': expected}
    assert decode(None, kind | None) is None


def test_every_kind_of_field() -> None:
    assert decode(EVERYTHING, Everything) == EVERYTHING
    nested = replace(EVERYTHING, parent=EVERYTHING)
    assert decode(nested, Everything) == nested


@pytest.mark.parametrize(
    ('kind', 'body', 'expected'),
    [
        (float, 3, 3.0),
        (float, t.Float32(0.5), 0.5),
        (int, t.UInt(0), 0),
        (int, 2**64 - 1, 2**64 - 1),
        (int, -(2**31) - 1, -(2**31) - 1),
        (int, t.Byte(-3), -3),
        (str, t.Symbol('a'), 'a'),
        (str, t.Char('a'), 'a'),
        (str, 'é' * 300, 'é' * 300),
        (bytes, b'data', b'data'),
        (bytes, DataBody([b'a', b'b']), b'ab'),
        (t.UInt, 5, t.UInt(5)),
        (t.Symbol, t.Symbol('a'), t.Symbol('a')),
        (list, [1, 'a'], [1, 'a']),
        (dict, {'a': 1}, {'a': 1}),
        (Sequence[int], [1], [1]),
        (Mapping[str, int], {'a': 1}, {'a': 1}),
        (frozenset[int], [1, 2, 1], frozenset({1, 2})),
        (tuple[()], [], ()),
        (tuple, [1, 'a'], (1, 'a')),
        (list[int] | None, [], []),
        (int | float, 1, 1),
        (int | float, 1.5, 1.5),
        (float | None, 1, 1.0),
        (Annotated[int, 'note'], 1, 1),
        (list[Annotated[int, ['note']]], [1], [1]),
        (typing.NewType('Id', int), 1, 1),
        (Literal[1, 'a'], 'a', 'a'),
        (list[Literal[1, True, 0]], [True, 1, 0], [True, 1, 0]),
        (Literal[Status.NEW, None], 'new', Status.NEW),
        (Literal[Level.HIGH], 2, Level.HIGH),
        (Level | str, 2, Level.HIGH),
        (Planet, [5.9, 6], Planet.EARTH),
        (Planet | None, [5.9, 6], Planet.EARTH),
        (list[Planet], [[0.6, 3], [5.9, 6]], [*Planet]),
        (list[Special], ['1.50', '2026-03-01', [[1, 2], 3], None], [*Special]),
        (Lists, [1], Lists.SHORT),
        (Place, [1, 2], Place(1, 2.0)),
        (Any, {'a': None}, {'a': None}),
        (None, 1, 1),  # no type
    ],
)
def test_value(kind: Any, body: Any, expected: Any) -> None:
    found = decode(body, kind)
    assert found == expected
    assert type(found) is type(expected)


def test_items_and_keys_with_chosen_hashes_are_refused() -> None:
    """A set or dict would compare each of them with all others."""
    ids = [UUID(int=i * sys.hash_info.modulus) for i in range(1, 66)]
    assert decode(ids[:64] * 2, set[UUID]) == {*ids[:64]}
    assert 'got [UUID(' in error_of(ids, set[UUID])
    assert decode(dict.fromkeys(ids[:64], 1), dict[UUID, int]) == dict.fromkeys(ids[:64], 1)
    assert 'hash' in error_of(dict.fromkeys(ids, 1), dict[UUID, int])
    prices = [str(i * sys.hash_info.modulus) for i in range(1, 66)]
    assert 'expected frozenset[Decimal]' in error_of(prices, frozenset[Decimal])
    assert 'hash' in error_of(dict.fromkeys(prices, 1), dict[Decimal, int])


def test_fields_in_any_order_unknown_fields_and_defaults() -> None:
    for kind, expected in ORDERS:
        assert decode(dict(reversed(RAW.items())), kind) == expected
        assert decode({'new': [1, {}], **RAW, 5: 5, 'x' * 300: 1}, kind) == expected
    assert decode({'id': 1, 'items': []}, Order) == Order(1, [])
    first, second = decode([{'id': 1, 'items': []}] * 2, list[OrderStruct])
    assert first.tags == second.tags == []
    assert first.tags is not second.tags
    symbols = {t.Symbol(key): value for key, value in RAW.items()}
    assert decode(symbols, Order) == ORDER


def test_of_a_field_that_occurs_twice_the_last_value_counts() -> None:
    pair = bytes.fromhex('a101785401'), bytes.fromhex('a101785402')
    raw = VALUE + bytes([0xC1, 11, 4]) + b''.join(pair)
    assert decode_amqp(raw, type=dict[str, int]).body == {'x': 2}
    assert decode_amqp(raw, type=Point).body == Point(2)


@dataclass
class Point:
    x: int


@dataclass
class Checked:
    low: int
    high: int = 10
    total: int = field(init=False)

    def __post_init__(self) -> None:
        if self.low > self.high:
            raise ValueError('low is above high')
        self.total = self.low + self.high


@dataclass
class Scaled:
    value: int
    factor: InitVar[int] = 2

    def __post_init__(self, factor: int) -> None:
        self.value *= factor


@dataclass
class Frozen:
    value: int

    def __setattr__(self, name: str, value: Any) -> None:
        object.__setattr__(self, name, value * 2)


@dataclass
class Own:
    value: int

    def __init__(self, value: int) -> None:
        self.value = -value


def test_constructors_of_dataclasses_run() -> None:
    assert decode({'low': 1}, Checked) == Checked(1)
    assert decode({'low': 1, 'total': 1}, Checked).total == 11
    assert (
        error_of([{'low': 11}], list[Checked])
        == '$[0]: Checked refused the values: low is above high'
    )
    assert decode({'value': 3, 'factor': 5}, Scaled) == Scaled(3, 5)
    assert decode({'value': 3}, Frozen).value == 6
    assert decode({'value': 3}, Own).value == -3


@dataclass
class Box(Generic[T]):
    content: T
    boxes: 'list[Box[T]]' = field(default_factory=list)


class Page(msgspec.Struct, Generic[T]):
    items: list[T]


def test_generic_classes() -> None:
    body = {'content': 1, 'boxes': [{'content': 2}]}
    assert decode(body, Box[int]) == Box(1, [Box(2)])
    assert error_of(body, Box[str]) == '$.content: expected str, got int'
    assert decode({'content': 'a'}, Box) == Box('a')
    assert decode({'items': [RAW]}, Page[Order]).items == [ORDER]


class Renamed(msgspec.Struct, rename='camel', kw_only=True, forbid_unknown_fields=True):
    first_name: str
    last_name: str = ''


class Tagged(msgspec.Struct, tag=True):
    x: Annotated[int, msgspec.Meta(gt=0)]


class Other(msgspec.Struct, tag=True):
    y: list[Tagged] = []


def test_settings_of_structs() -> None:
    found = decode({'firstName': 'Ada'}, Renamed)
    assert found == Renamed(first_name='Ada')
    assert decode(found, Any) == {'firstName': 'Ada', 'lastName': ''}
    assert error_of({'firstName': '', 'x': 1}, Renamed) == "$: unknown field 'x'"
    for value in (Tagged(1), Other([Tagged(2)])):
        assert decode(value, Tagged | Other) == value
    bad = {'type': 'Other', 'y': [{'type': 'Tagged', 'x': 0}]}
    assert error_of(bad, Tagged | Other) == '$.y[0].x: expected int >= 1'


class Strict(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra='forbid')
    number: int = pydantic.Field(gt=0, alias='n')


def test_models_validate_by_their_own_rules() -> None:
    assert decode({'n': 1}, Strict) == Strict(n=1)
    assert decode(Strict(n=1), Any) == {'n': 1}
    assert error_of({'n': 0}, Strict) == '$.n: Input should be greater than 0'
    with pytest.raises(AMQPDecoderError) as caught:
        decode({'a': [{'n': 0, 'x': 1}]}, dict[str, list[Strict]])
    assert caught.value.path == "$['a'][0].n"
    assert isinstance(caught.value.__cause__, pydantic.ValidationError)


class Partial(TypedDict):
    a: int
    b: NotRequired[str]


def test_fields_of_a_typed_dict_that_may_be_missing() -> None:
    assert decode({'a': 1}, Partial) == {'a': 1}
    assert decode({'b': 'x', 'a': 1}, Partial) == {'a': 1, 'b': 'x'}
    assert error_of({'b': 'x'}, Partial) == '$.a: required field of Partial is missing'


# --- errors ---


@pytest.mark.parametrize(
    ('kind', 'body', 'text'),
    [
        (Order, RAW | {'id': 'x'}, '$.id: expected int, got str'),
        (Order, RAW | {'id': True}, '$.id: expected int, got bool'),
        (Order, RAW | {'id': 1.0}, '$.id: expected int, got float'),
        (Order, RAW | {'id': None}, '$.id: expected int, got None'),
        (Order, RAW | {'note': 5}, '$.note: expected str | None, got int'),
        (Order, RAW | {'status': 'lost'}, "$.status: expected Status, got 'lost'"),
        (Order, RAW | {'status': []}, '$.status: expected Status, got []'),
        (
            OrderDict,
            RAW | {'status': 'lost'},
            "$.status: expected Literal['new', 'paid'], got 'lost'",
        ),
        (Order, RAW | {'tags': ['a', 1]}, '$.tags[1]: expected str, got int'),
        (tuple[()], [1], '$: expected tuple[()], got a list with 1 items'),
        (Order, RAW | {'items': {}}, '$.items: expected list[Item], got dict'),
        (Order, [], '$: expected Order, got list'),
        (Order, None, '$: expected Order, got None'),
        (Order, b'{}', '$: expected Order, got bytes'),
        (Order, {'id': 1}, '$.items: required field of Order is missing'),
        (list[Order], SequenceBody([[RAW]]), '$: expected list[Order], got SequenceBody'),
        (tuple[int, str], [1], '$: expected tuple[int, str], got a list with 1 items'),
        (tuple[int, str], [1, 2], '$[1]: expected str, got int'),
        (dict[int, str], {1: 'a', 'b': 'c'}, '$ (a key): expected int, got str'),
        (dict[str, int], {'a b': 'c'}, "$['a b']: expected int, got str"),
        (Literal[1], True, '$: expected Literal[1], got True'),
        (datetime, '2024-05-17', '$: expected datetime, got str'),
        (float, '1', '$: expected float, got str'),
        (bytes, 'a', '$: expected bytes, got str'),
        (str, t.AMQPArray(str, ['a']), '$: expected str, got AMQPArray'),
    ],
)
def test_wrong_value(kind: Any, body: Any, text: str) -> None:
    assert error_of(body, kind) == text


def test_path_of_a_nested_value() -> None:
    items = [*RAW['items'], {'title': 'pen', 'price': 'free'}]
    raw = encode_amqp_bytes(stream_message_ctx([RAW | {'items': items}], app_properties={'a': 1}))
    with pytest.raises(AMQPDecoderError) as caught:
        decode_amqp(raw, type=list[Order])
    assert caught.value.path == '$[0].items[1].price'
    assert caught.value.position == raw.index(b'\xa1\x04free')
    other = pickle.loads(pickle.dumps(caught.value))
    assert (str(other), other.path) == (str(caught.value), caught.value.path)


def test_a_text_that_is_not_utf8_is_no_str() -> None:
    raw = VALUE + b'\xa1\x01\xff'
    with pytest.raises(AMQPDecoderError, match='expected str, got a string that is not UTF-8'):
        decode_amqp(raw, type=str)


class Recursive:
    """No type that can be decoded."""


@dataclass
class Unsupported:
    value: Recursive


@dataclass
class Undefined:
    value: 'Missing'  # type: ignore[name-defined]  # noqa: F821


BRACKETED: Any = [int]


@dataclass
class Bracketed:
    value: BRACKETED


@pytest.mark.parametrize(
    ('kind', 'text'),
    [
        (Bracketed, "Bracketed.value: cannot decode [<class 'int'>] from AMQP 1.0"),
        ({'a': int}, 'cannot decode {'),
        (Recursive, 'cannot decode Recursive from AMQP 1.0'),
        (Unsupported, 'Unsupported.value: cannot decode Recursive from AMQP 1.0'),
        (
            Undefined,
            "cannot decode Undefined from AMQP 1.0: cannot read its annotations: name 'Mis",
        ),
        (Order | Item, 'Order and Item are both sent as dict'),
        (list[int] | tuple[str, ...], 'are both sent as list'),
        (Status | str, 'Status and str are both sent as str'),
        ('Order', "cannot decode 'Order'"),
        (5, 'cannot decode 5'),
        (Literal[Planet.MARS], 'cannot decode Literal['),
        (complex, 'cannot decode complex'),
    ],
)
def test_type_that_cannot_be_decoded(kind: Any, text: str) -> None:
    with pytest.raises(ArgumentTypeError) as caught:
        decode(RAW, kind)
    assert text in str(caught.value)


# --- the message around the body ---


def test_other_sections_are_those_of_the_message() -> None:
    raw = encode_amqp_bytes(stream_message_ctx(RAW, app_properties={'a': 1}, annotations={'b': 2}))
    ctx = decode_amqp(raw, type=Order)
    typing.assert_type(ctx.body, Order)
    assert ctx.body == ORDER
    assert ctx.app_properties == {'a': 1}
    assert bytes(ctx.raw or b'') == raw
    assert copy.copy(ctx).body == ctx.body


def test_a_changed_instance_is_encoded_and_an_unchanged_message_is_sent_as_received() -> None:
    raw = encode_amqp_bytes(stream_message_ctx(RAW, app_properties={'a': 1}))
    ctx = decode_amqp(raw, type=Order)
    assert encode_amqp_bytes(ctx) == raw
    for changed in (pickle.loads(pickle.dumps(ctx)), copy.deepcopy(ctx), ctx):
        changed.body.tags.append('blue')
        for sent in (changed, pickle.loads(pickle.dumps(changed))):
            other = decode_amqp(encode_amqp_bytes(sent), type=Order)
            assert other.body.tags == ['red', 'blue']
            assert other.app_properties == {'a': 1}


# Bodies of which a type keeps only a part, or another form.
LOSSY: list[tuple[Any, Any]] = [
    (RAW | {'new': 2}, Order),
    (RAW | {'new': 2}, OrderDict),
    ([RAW | {'new': 2}], list[Order]),
    ('12.50', Decimal),
]


@pytest.mark.parametrize(('body', 'kind'), [*LOSSY, (['a', 'b'], set[str])])
def test_an_unchanged_message_is_sent_with_what_its_type_lacks(body: Any, kind: Any) -> None:
    """Such as the fields that a publisher has added."""
    raw = encode_amqp_bytes(stream_message_ctx(body, app_properties={'a': 1}))
    ctx = decode_amqp(raw, type=kind)
    assert encode_amqp_bytes(ctx) == encode_amqp_bytes(copy.copy(ctx)) == raw
    ctx.app_properties['b'] = 2
    assert decode_amqp(encode_amqp_bytes(ctx)).body == body


@pytest.mark.parametrize(('body', 'kind'), LOSSY)
def test_a_copy_or_pickle_of_an_unchanged_message_is_sent_as_received(body: Any, kind: Any) -> None:
    raw = encode_amqp_bytes(stream_message_ctx(body))
    ctx = decode_amqp(raw, type=kind)
    for _ in range(2):  # also a copy of a copy
        ctx = copy.deepcopy(pickle.loads(pickle.dumps(ctx)))
        assert encode_amqp_bytes(ctx) == raw


def test_a_message_that_its_type_refuses_now_is_encoded() -> None:
    accepts = [True]

    class Open(pydantic.BaseModel):
        tags: list[str]

        @pydantic.field_validator('tags')
        @classmethod
        def check(cls, tags: list[str]) -> list[str]:
            assert accepts.pop()
            return tags

    ctx = decode_amqp(encode_amqp_bytes({'tags': ['a']}), type=Open)
    accepts.append(False)
    ctx.app_properties = {'a': 1}
    assert decode_amqp(encode_amqp_bytes(ctx)).body == {'tags': ['a']}


def test_messages_without_a_body_or_with_unusual_sections() -> None:
    with pytest.raises(AMQPDecoderError, match='expected Order, got None'):
        decode_amqp(b'', type=Order)
    assert decode_amqp(b'', type=Order | None).body is None
    symbolic = b'\0\xa3\x11amqp:amqp-value:*' + encode_amqp_bytes(RAW)[3:]
    assert decode_amqp(symbolic, type=Order).body == ORDER


# --- hostile bytes ---


@dataclass
class Node:
    value: Any = None
    nodes: 'list[Node] | None' = None
    by_name: 'dict[str, Node]' = field(default_factory=dict)


def nested(depth: int) -> Any:
    return {'nodes': [nested(depth - 1)]} if depth else {'value': 1}


def test_depth_is_limited() -> None:
    raw = encode_amqp_bytes(nested(49))
    node = decode_amqp(raw, type=Node).body
    for _ in range(49):
        assert node.nodes is not None
        (node,) = node.nodes
    assert node == Node(1)
    inner = raw[3:]
    for _ in range(2):
        inner = b'\xd0' + (len(inner) + 4).to_bytes(4, 'big') + b'\0\0\0\1' + inner
        body = b'\xa1\x05nodes' + inner
        inner = b'\xd1' + (len(body) + 4).to_bytes(4, 'big') + b'\0\0\0\2' + body
    for kind in (Node, Any):
        with pytest.raises(AMQPDecoderError, match='nested more than 100 deep'):
            assert decode_amqp(VALUE + inner, type=kind).body


KINDS: list[Any] = [
    Node, Everything, Order, OrderStruct, OrderDict, OrderModel, list[Order], dict[str, list[int]],
    tuple[int, str], Any, str, bytes | int | None, Box[Node],
]  # fmt: skip


def test_damaged_messages_raise_decoder_errors(rng: Random) -> None:
    positions = []  # distances from the end
    sources = [encode_amqp_bytes(body) for body in (EVERYTHING, ORDER, nested(5), [RAW, 1, 'a'])]
    for _ in range(sized(3000, 60_000)):
        data = bytearray(rng.choice(sources))
        for _ in range(rng.choice([1, 1, 2, 5])):
            data[rng.randrange(3, len(data))] = rng.choice(
                [0, 1, 255, 0xA1, 0xC0, 0xD1, 0x45, rng.randrange(256)]
            )
        if rng.random() < 0.2:
            del data[rng.randrange(3, len(data)) :]
        for kind in rng.sample(KINDS, 3):
            try:
                decode_amqp(bytes(data), type=kind)
            except AMQPDecoderError as ex:
                positions.append(len(data) - (ex.position or 0))
    assert min(positions) >= 0


def test_counts_that_do_not_fit_allocate_nothing() -> None:
    for code in (b'\xd0', b'\xd1'):
        raw = VALUE + code + b'\0\0\0\x08' + b'\x7f\xff\xff\xfe' + b'\x40' * 4
        for kind in (list[int], dict[str, int], Order, tuple[int, int]):
            with pytest.raises(AMQPDecoderError):
                decode_amqp(raw, type=kind)


# --- random types and values ---

times = st.datetimes(timezones=st.just(UTC)).map(lambda time: time.replace(microsecond=0))
SIMPLE: list[tuple[Any, st.SearchStrategy[Any]]] = [
    (int, st.integers(-(2**63), 2**64 - 1)),
    (str, st.text(max_size=20) | st.text(min_size=250, max_size=260)),
    (float, st.floats(allow_nan=False)),
    (bool, st.booleans()),
    (bytes, st.binary(max_size=300)),
    (datetime, times),
    (None, st.none()),
    (Status, st.sampled_from(Status)),
    (Level, st.sampled_from(Level)),
]


@st.composite
def typed(draw: st.DrawFn, depth: int = 0) -> tuple[Any, Any]:
    """A type and a value of it."""
    choice = draw(st.integers(0, 3 if depth == 0 else 5))
    if depth > 3 or choice > 3:
        kind, values = draw(st.sampled_from(SIMPLE))
        return kind, draw(values)
    kind, value = draw(typed(depth + 1))
    if choice == 0:
        return list.__class_getitem__(kind), [value] * draw(st.integers(0, 3))
    if choice == 1:
        names = draw(st.lists(st.text(max_size=40), max_size=3, unique=True))
        return dict.__class_getitem__((str, kind)), dict.fromkeys(names, value)
    other, second = draw(typed(depth + 1))
    if choice == 2:
        return tuple.__class_getitem__((kind, other)), (value, second)
    made = msgspec.defstruct if draw(st.booleans()) else make_class
    names = ['first', draw(st.sampled_from(['second', 'x' * 300, 'größe']))]
    cls: Any = made('Made', list(zip(names, [kind, other], strict=True)))
    return cls, cls(value, second)


def make_class(name: str, fields: Any) -> Any:
    from dataclasses import make_dataclass

    return make_dataclass(name, fields, frozen=True)


@settings(max_examples=sized(60, 1000), deadline=None)
@given(typed())
def test_random_types(pair: tuple[Any, Any]) -> None:
    kind, value = pair
    generic: Any = Box
    body = Box([value, {'a': value}])  # members of enumerations are encoded in fields
    pair_of = tuple.__class_getitem__((kind, dict.__class_getitem__((str, kind))))
    assert decode(body, generic[pair_of]) == Box((value, {'a': value}))
