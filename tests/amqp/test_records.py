"""Objects with fields are encoded as maps, or in the form that their library chooses."""

import dataclasses
from collections import OrderedDict, deque
from datetime import date, time
from decimal import Decimal
from enum import Enum
from typing import Any, NamedTuple

import msgspec
import pydantic
import pytest
from typed_values import EVERYTHING, MODEL, NAMES, ORDER, RAW, STRUCT, Level, Order, Place, Status

import rbfly.streams as rbs
import rbfly.types as t
from rbfly.amqp import decode_amqp, encode_amqp_bytes, stream_message_ctx
from rbfly.error import AMQPEncoderIntegerError, AMQPEncoderTypeError, AMQPEncoderValueError


def sent(body: Any) -> Any:
    return decode_amqp(encode_amqp_bytes(body)).body


INSTANCES: list[Any] = [ORDER, STRUCT, MODEL]


@pytest.mark.parametrize('body', INSTANCES, ids=[name for name in NAMES if name != 'TypedDict'])
def test_instances_are_maps(body: Any) -> None:
    for _ in range(2):  # the class is known the second time
        assert sent(body) == RAW
    assert sent([body, (body,)]) == [RAW, [RAW]]
    assert sent({'a': body}) == {'a': RAW}
    assert sent(t.Described(1, body)).value == RAW
    ctx = decode_amqp(encode_amqp_bytes(stream_message_ctx(body, app_properties={'b': 1})))
    assert (ctx.body, ctx.app_properties) == (RAW, {'b': 1})


def test_values_of_fields() -> None:
    found = sent(EVERYTHING)
    assert found['price'] == '12.50'
    assert found['day'] == '2024-05-17'
    assert found['status'] == 'paid'
    assert (found['level'], type(found['level'])) == (2, int)
    assert found['place'] == [1, 2.5]
    assert sorted(found['names']) == ['a', 'b']
    assert found['when'] == EVERYTHING.when
    assert found['key'] == EVERYTHING.key
    assert found['order'] == RAW


@dataclasses.dataclass
class Holder:
    value: Any


class Pair(NamedTuple):
    price: Decimal
    status: Status


class Prices(list[Decimal]):
    """A list with its own class."""


def test_values_in_lists_and_dicts_of_fields() -> None:
    value = [Decimal(1), {'a': (Status.NEW, {date(2024, 5, 17)})}, Place(1, 2.0), Level.LOW]
    expected = ['1', {'a': ['new', ['2024-05-17']]}, [1, 2.0], 1]
    assert sent(Holder(value)) == {'value': expected}
    assert sent(Holder({Status.NEW: time(12)})) == {'value': {'new': '12:00:00'}}
    prices = [Decimal('1.5')]
    others = [Pair(Decimal(1), Status.NEW), deque(prices), OrderedDict(a=prices), Prices(prices)]
    assert sent(Holder(others)) == {'value': [['1', 'new'], ['1.5'], {'a': ['1.5']}, ['1.5']]}
    assert sent(Holder(Holder(Status.NEW))) == {'value': {'value': 'new'}}


@pytest.mark.parametrize('key', [(1, 2), Place(1, 2.0), frozenset({1})])
def test_a_key_in_a_field_that_has_no_type(key: Any) -> None:
    with pytest.raises(AMQPEncoderTypeError, match=r"^body\['value'\]\["):
        encode_amqp_bytes(Holder({key: 1}))


class Colour(Enum):
    RED = Decimal('0.5')


class Sparse(msgspec.Struct):
    value: int | msgspec.UnsetType = msgspec.UNSET
    colour: Colour = Colour.RED


def test_fields_of_structs_that_are_not_set_are_omitted() -> None:
    assert sent(Sparse()) == {'colour': '0.5'}
    assert sent(Sparse(1)) == {'value': 1, 'colour': '0.5'}


class Model(pydantic.BaseModel):
    names: set[str] = set()
    price: Decimal = Decimal(1)

    @pydantic.field_serializer('price')
    def _price(self, value: Decimal) -> float:
        return float(value)


def test_models_use_their_own_serializers() -> None:
    assert sent(Model(names={'a'})) == {'names': ['a'], 'price': 1.0}


class Point(msgspec.Struct, array_like=True):
    x: int
    label: str = 'a'


class Numbers(pydantic.RootModel[list[int]]):
    """A list."""


class Maybe(pydantic.RootModel[Decimal | None]):
    """A number, or none."""


class Drawing(pydantic.BaseModel):
    numbers: Numbers
    best: Maybe = Maybe(None)


class Itself(pydantic.BaseModel):
    def model_dump(self, **_: Any) -> Any:
        return self


@pytest.mark.parametrize(
    ('body', 'expected'),
    [
        (Point(1), [1, 'a']),
        (Numbers([1, 2]), [1, 2]),
        (Maybe(Decimal('1.5')), '1.5'),
        (Drawing(numbers=Numbers([3])), {'numbers': [3], 'best': None}),
    ],
)
def test_objects_that_are_no_maps(body: Any, expected: Any) -> None:
    kind: Any = type(body)
    for _ in range(2):  # the class is known the second time
        assert sent(body) == expected
        assert sent([{'a': body}]) == [{'a': expected}]
        assert decode_amqp(encode_amqp_bytes(body), type=kind).body == body
    assert decode_amqp(encode_amqp_bytes([body]), type=list[kind | None]).body == [body]


def test_errors_of_objects_that_are_no_maps() -> None:
    with pytest.raises(AMQPEncoderIntegerError, match=r'^body\[0\]\[0\]: '):
        encode_amqp_bytes([Point(2**64)])
    with pytest.raises(AMQPEncoderValueError, match='nested more than 100 deep'):
        encode_amqp_bytes(Itself())


def test_errors_name_the_field() -> None:
    bad: Any = object()
    with pytest.raises(
        AMQPEncoderTypeError, match=r"^body\['a'\]\[0\]\['value'\]: AMQP 1.0 has no"
    ):
        encode_amqp_bytes({'a': [Holder(bad)]})
    with pytest.raises(AMQPEncoderTypeError, match=r"^body\['items'\]\[0\]: "):
        encode_amqp_bytes(Order(1, [bad]))
    for value in (Status.NEW, {1}, Decimal(1), date(2024, 5, 17)):
        with pytest.raises(AMQPEncoderTypeError):  # only as a field
            encode_amqp_bytes(value)  # type: ignore[arg-type]


def test_an_object_that_contains_itself_is_refused() -> None:
    holder = Holder(None)
    holder.value = [holder]
    with pytest.raises(AMQPEncoderValueError, match='nested more than 100 deep'):
        encode_amqp_bytes(holder)
    items: list[Any] = []
    items.append(items)
    with pytest.raises(AMQPEncoderValueError, match='nested more than 100 deep'):
        encode_amqp_bytes(Holder(items))


def test_classes_and_values_of_rbfly_are_no_messages() -> None:
    for value in (Order, rbs.Offset.FIRST, rbs.MessageFilter(lambda ctx: '', {''})):
        with pytest.raises(AMQPEncoderTypeError):
            encode_amqp_bytes(value)  # type: ignore[arg-type]
