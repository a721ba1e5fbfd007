"""Plans of types: what :func:`rbfly.amqp.decode_amqp` and subscriptions decode with `type=`.

A plan is made once for each type, from its annotations.  msgspec and pydantic are imported only for
types that belong to them.
"""

from __future__ import annotations

import enum
import typing
from collections import Counter
from collections.abc import (
    Callable,
    Hashable,
    Mapping,
    MutableMapping,
    MutableSequence,
    Sequence,
)
from collections.abc import Set as AbstractSet
from dataclasses import MISSING, InitVar
from datetime import date, datetime, time
from decimal import Decimal
from functools import partial
from typing import Annotated, Any, Literal, NamedTuple, TypeVar, get_args, get_origin
from uuid import UUID

from ..error import ArgumentTypeError
from ._plan import NO_DEFAULT, Plan
from ._records import sent_as
from ._types import (
    SAME_HASH,
    AMQPArray,
    Char,
    Decimal32,
    Decimal64,
    Decimal128,
    Described,
    Float32,
    Symbol,
    Timestamp,
)
from .foreign_types import (
    UNIONS,
    belongs_to,
    foreign_plan,
    is_pydantic,
    msgspec_plan,
    name_of,
    pydantic_plan,
)

__all__ = ['PLANS', 'plan_of']

PLANS: dict[Any, Plan] = {}  # by type
PLANS_MAX = 256
CLASSES_MAX = 1000  # that a type refers to

SCALARS: dict[Any, str] = {
    Any: 'Any',
    object: 'Any',
    None: 'None',
    type(None): 'None',
    bool: 'bool',
    int: 'int',
    float: 'float',
    str: 'str',
    bytes: 'bytes',
    datetime: 'datetime',
    UUID: 'UUID',
}
# Types that are sent as text, and what reads it.
TEXTS: dict[Any, Callable[[str], Any]] = {
    Decimal: Decimal,
    date: date.fromisoformat,
    time: time.fromisoformat,
}
# Classes that the codec returns, by their kind on the wire.
INSTANCES: dict[Any, str] = {
    Symbol: 'str',
    AMQPArray: 'other',
    Described: 'other',
    Decimal32: 'other',
    Decimal64: 'other',
    Decimal128: 'other',
    Char: 'str',
    Timestamp: 'time',
}
LISTS = (list, Sequence, MutableSequence)
MAPS = (dict, Mapping, MutableMapping)
SETS: dict[Any, type[Any]] = {set: set, frozenset: frozenset, AbstractSet: frozenset}
WRAPPERS = tuple(
    getattr(typing, name)
    for name in ('Required', 'NotRequired', 'ReadOnly', 'Final', 'ClassVar')
    if hasattr(typing, name)
)
EVERY_KIND = [
    'None',
    'bool',
    'int',
    'float',
    'str',
    'bytes',
    'list',
    'dict',
    'datetime',
    'UUID',
    'other',
]


class ForeignError(Exception):
    """A type uses what only the library that it belongs to can decode."""


class Item(NamedTuple):
    """A plan with the kinds of values, on the wire, that it decodes."""

    plan: Plan
    kinds: Sequence[str]


class Field(NamedTuple):
    """A field of a class, before its type is known to be supported."""

    attribute: str
    key: str
    type: Any
    default: object
    factory: Callable[[], Any] | None


def plan_of(kind: Any) -> Plan:
    """Return the plan of a type.

    :raises ArgumentTypeError: it cannot be decoded.
    """
    try:
        found = PLANS.get(kind)
    except TypeError:  # the annotation contains an object without a hash
        return new_plan(kind)
    if found is None:
        if len(PLANS) >= PLANS_MAX:
            PLANS.clear()
        found = PLANS[kind] = new_plan(kind)
    return found


def new_plan(kind: Any) -> Plan:
    found = foreign_plan(kind)
    try:
        return Schema().item(kind, {}, name_of(kind)).plan if found is None else found
    except ForeignError:
        return msgspec_plan(kind)


# -- annotations


class Schema:
    """Makes the plan of a type, and of the types that it refers to."""

    def __init__(self) -> None:
        self.plans: dict[Any, Plan] = {}  # of classes, which may refer to themselves
        self.aliases: list[Any] = []

    def fail(self, kind: Any, where: str, reason: str = '') -> typing.NoReturn:
        about = '' if where == name_of(kind) else f'{where}: '
        raise ArgumentTypeError(
            f'{about}cannot decode {name_of(kind)} from AMQP 1.0{reason and ": "}{reason}'
        )

    def item(self, kind: Any, scope: Mapping[Any, Any], where: str) -> Item:
        """Return the plan of a type.

        :param scope: types of the variables of a generic class.
        :param where: path of the annotation, for errors.
        """
        if isinstance(kind, TypeVar):
            return self.item(scope.get(kind, kind.__bound__ or Any), scope, where)
        if isinstance(kind, typing.NewType):
            return self.item(kind.__supertype__, scope, where)
        if isinstance(kind, InitVar):
            return self.item(kind.type, scope, where)
        origin, args = get_origin(kind), get_args(kind)
        if origin is Annotated:
            if any(type(note).__module__.partition('.')[0] == 'msgspec' for note in args[1:]):
                raise ForeignError
            return self.item(args[0], scope, where)
        name = name_of(kind)
        if origin is None:
            try:
                hash(kind)
            except TypeError:  # such as [int] in place of list[int]
                self.fail(kind, where)
            if kind in SCALARS:
                return self.scalar(SCALARS[kind])
            if kind in TEXTS:
                plan = Plan(name).made_by(TEXTS[kind], Plan('str').scalar('str'))
                return Item(plan, ['str'])
            if kind in INSTANCES:
                return Item(Plan(name).instance(kind), [INSTANCES[kind]])
        if hasattr(kind, '__value__'):
            return self.alias(kind, scope, where)
        if origin in WRAPPERS:
            return self.item(args[0], scope, where)
        if origin is Literal:
            sent = [sent_as(arg.value if isinstance(arg, enum.Enum) else arg) for arg in args]
            if any(isinstance(key, list | dict) for key in sent):
                self.fail(kind, where)
            values = {(type(key), key): arg for key, arg in zip(sent, args, strict=True)}
            return self.members(values, {name_of(type(key)) for key in sent}, None, name)
        if origin in UNIONS:
            return self.union(kind, args, scope, where)
        return self.collection(kind, scope, where) or self.record(kind, scope, where)

    def scalar(self, name: str) -> Item:
        kinds = {'Any': EVERY_KIND, 'float': ['float', 'int']}.get(name, [name])
        return Item(Plan(name).scalar(name), kinds)

    def alias(self, kind: Any, scope: Mapping[Any, Any], where: str) -> Item:
        if kind in self.aliases:
            self.fail(kind, where, 'the type alias refers to itself; use a class')
        self.aliases.append(kind)
        found = self.item(kind.__value__, scope, where)
        self.aliases.pop()
        return found

    def members(
        self,
        values: dict[Any, Any],
        kinds: set[str],
        make: Callable[[Any], Any] | None,
        name: str,
    ) -> Item:
        known = sorted(kinds) if kinds <= {*EVERY_KIND} else EVERY_KIND
        return Item(Plan(name).one_of(values, make), known)

    def union(self, kind: Any, args: Sequence[Any], scope: Mapping[Any, Any], where: str) -> Item:
        """A value of one of several types, which must differ in their kinds on the wire."""
        if any(getattr(arg, '__pydantic_root_model__', False) for arg in args):
            return Item(pydantic_plan(resolve(kind, scope)), [*EVERY_KIND])
        items = [self.item(arg, scope, where) for arg in args]
        if any(item.kinds is EVERY_KIND for item in items):
            return self.scalar('Any')
        chosen: dict[str, tuple[Any, Plan]] = {}
        for arg, item in zip(args, items, strict=True):
            for wire in item.kinds:
                if item.plan.name == 'float' and wire == 'int':
                    continue
                if wire in chosen:
                    names = f'{name_of(chosen[wire][0])} and {name_of(arg)}'
                    self.fail(kind, where, f'{names} are both sent as {wire}')
                chosen[wire] = arg, item.plan
        for item in items:
            if item.plan.name == 'float':
                chosen.setdefault('int', (float, item.plan))
        plan = Plan(name_of(kind)).union_of({wire: plan for wire, (_, plan) in chosen.items()})
        return Item(plan, [*chosen])

    def collection(self, kind: Any, scope: Mapping[Any, Any], where: str) -> Item | None:
        """A list, tuple, set or map; None for other types."""
        origin, args = get_origin(kind) or kind, get_args(kind)
        name = name_of(kind)
        if origin in LISTS or origin in SETS:
            item = self.item(args[0] if args else Any, scope, f'{where}[]').plan
            plan = Plan(name).list_of(item)
            if origin in SETS:
                make = SETS[origin]
                safe = args and args[0] in (str, int, bytes)
                plan = Plan(name).made_by(make if safe else partial(distinct, make), plan)
            return Item(plan, ['list'])
        if origin in MAPS:
            key, value = args or (Any, Any)
            key_plan = self.item(key, scope, f'{where}[key]').plan
            return Item(
                Plan(name).dict_of(key_plan, self.item(value, scope, f'{where}[]').plan), ['dict']
            )
        if origin is not tuple:
            return None
        if (not args and kind != tuple[()]) or args[-1:] == (Ellipsis,):
            item = self.item(args[0] if args else Any, scope, f'{where}[]').plan
            return Item(Plan(name).made_by(tuple, Plan(name).list_of(item)), ['list'])
        plans = [self.item(arg, scope, f'{where}[{i}]').plan for i, arg in enumerate(args)]
        return Item(Plan(name).tuple_of(plans), ['list'])

    def record(self, kind: Any, scope: Mapping[Any, Any], where: str) -> Item:
        """An object with fields, an enumeration, or a number with its own class."""
        found = get_origin(kind) or kind
        if not isinstance(found, type):
            self.fail(kind, where)
        cls: Any = found
        if is_pydantic(cls):
            return Item(pydantic_plan(kind), ['dict'])
        if issubclass(cls, enum.Enum):
            sent = [(sent_as(member.value), member) for member in cls]
            others = [item for item in sent if not isinstance(item[0], Hashable)]
            values = {value: member for value, member in sent if isinstance(value, Hashable)}
            kinds = {name_of(type(value)) for value, _ in sent}
            return self.members(values, kinds, partial(member_of, cls, others), name_of(kind))
        for base in (int, float):
            if issubclass(cls, base) and cls.__module__ == Float32.__module__:
                item = self.scalar(base.__name__)
                return Item(Plan(name_of(kind)).made_by(cls, item.plan), item.kinds)
        args = tuple(resolve(arg, scope) for arg in get_args(kind))
        if args:
            kind = cls[args]
        if kind in self.plans:
            return Item(self.plans[kind], ['dict'])
        if len(self.plans) == CLASSES_MAX:
            self.fail(kind, where, 'its classes refer to ever more types')
        plan = self.plans[kind] = Plan(name_of(kind))
        inner = dict(zip(getattr(cls, '__parameters__', ()), args, strict=False))
        if belongs_to(cls, 'msgspec', 'Struct'):
            self.struct(plan, cls, inner)
        elif isinstance(getattr(cls, '__dataclass_fields__', None), dict):
            self.dataclass(plan, cls, inner)
        elif typing.is_typeddict(cls):
            self.typed_dict(plan, cls, inner)
        elif issubclass(cls, tuple) and hasattr(cls, '_fields'):
            hints = self.hints(cls)
            plans = [
                self.item(hints.get(name, Any), inner, f'{cls.__name__}.{name}').plan
                for name in cls._fields
            ]
            plan.made_by(cls._make, Plan(plan.name).tuple_of(plans))
            return Item(plan, ['list'])
        else:
            self.fail(kind, where)
        return Item(plan, ['dict'])

    def planned(
        self, cls: type[Any], fields: Sequence[Field], scope: Mapping[Any, Any]
    ) -> list[tuple[str, str, Plan, object, Callable[[], Any] | None]]:
        return [
            (
                field.attribute,
                field.key,
                self.item(field.type, scope, f'{cls.__name__}.{field.attribute}').plan,
                field.default,
                field.factory,
            )
            for field in fields
        ]

    def hints(self, cls: type[Any]) -> dict[str, Any]:
        try:
            return typing.get_type_hints(cls, include_extras=True)
        except Exception as ex:  # a name that is not defined in the module, for example
            self.fail(cls, name_of(cls), f'cannot read its annotations: {ex}')

    def dataclass(self, plan: Plan, cls: Any, scope: Mapping[Any, Any]) -> None:
        hints = self.hints(cls)
        every: dict[str, Any] = cls.__dataclass_fields__
        fields = [item for item in every.values() if item.init and is_field(item)]
        found = [
            Field(
                item.name,
                item.name,
                hints[item.name],
                NO_DEFAULT if item.default is MISSING else item.default,
                None if item.default_factory is MISSING else item.default_factory,
            )
            for item in fields
        ]
        planned = self.planned(cls, found, scope)
        if sets_attributes(cls, every):
            after = '__post_init__' if hasattr(cls, '__post_init__') else None
            plan.record(cls, 'attributes', planned, (), after)
        else:
            plan.record(cls, 'keywords', planned, tuple(item.name for item in fields))

    def struct(self, plan: Plan, cls: type[Any], scope: Mapping[Any, Any]) -> None:
        import msgspec

        config = cls.__struct_config__
        if config.tag is not None or config.array_like:
            raise ForeignError
        hints = self.hints(cls)
        infos = msgspec.structs.fields(cls)
        found = [
            Field(
                info.name,
                info.encode_name,
                hints[info.name],
                NO_DEFAULT if info.default is msgspec.NODEFAULT else info.default,
                None if info.default_factory is msgspec.NODEFAULT else info.default_factory,
            )
            for info in infos
        ]
        planned = self.planned(cls, found, scope)
        strict = config.forbid_unknown_fields
        try:
            cls.__signature__.bind(*[None] * len(infos))
        except TypeError:  # fields that are keyword-only
            keywords = tuple(info.name for info in infos)
            plan.record(cls, 'keywords', planned, keywords, strict=strict)
        else:
            plan.record(cls, 'positions', planned, strict=strict)

    def typed_dict(self, plan: Plan, cls: Any, scope: Mapping[Any, Any]) -> None:
        hints = self.hints(cls)
        found = [Field(name, name, kind, NO_DEFAULT, None) for name, kind in hints.items()]
        optional = tuple(name for name in hints if name not in cls.__required_keys__)
        plan.record(cls, 'pairs', self.planned(cls, found, scope), optional)


def member_of(cls: Any, others: Sequence[tuple[Any, Any]], value: Any) -> Any:
    """Return the member of an enumeration with a value.

    :param others: the members whose values have no hash, each after the value that is sent for it.
    """
    for sent, member in others:
        if sent == value:
            return member
    return cls(value)


def distinct(make: Callable[[set[Any]], Any], items: list[Any]) -> Any:
    """Return the set of some items; the sender may have chosen their hashes, as in maps."""
    if len(items) <= SAME_HASH:
        return make(set(items))
    found = set[Any]()
    hashes = Counter[int]()
    for item in items:
        if item not in found:
            found.add(item)
            hashes[hash(item)] += 1
            if hashes[hash(item)] > SAME_HASH:
                raise ValueError(f'more than {SAME_HASH} items have the same hash')
    return make(found)


def resolve(kind: Any, scope: Mapping[Any, Any]) -> Any:
    """Replace the variables in a type by their types."""
    if isinstance(kind, TypeVar):
        return scope.get(kind, kind.__bound__ or Any)
    variables = () if isinstance(kind, type) else getattr(kind, '__parameters__', ())
    return kind[tuple(resolve(item, scope) for item in variables)] if variables else kind


def is_field(item: Any) -> bool:
    """Whether a value is passed to `__init__`: that of a field, or of an InitVar."""
    name: str = item._field_type.name
    return name != '_FIELD_CLASSVAR'


def sets_attributes(cls: Any, fields: Mapping[str, Any]) -> bool:
    """Whether creating a dataclass only sets its attributes, and calls `__post_init__`."""
    code = getattr(cls.__init__, '__code__', None)
    names = [item.name for item in fields.values() if item.init and is_field(item)]
    frozen = cls.__dataclass_params__.frozen
    return (
        all(item._field_type.name == '_FIELD' and item.init for item in fields.values())
        and cls.__new__ is object.__new__
        and (frozen or cls.__setattr__ is object.__setattr__)
        and code is not None
        and code.co_filename == '<string>'  # written by `dataclass`
        and set(code.co_varnames[1 : len(names) + 1]) == {*names}
        and code.co_argcount + code.co_kwonlyargcount == len(names) + 1
    )
