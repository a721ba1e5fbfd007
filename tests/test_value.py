"""What programs see of the public values is what they see of frozen dataclasses."""

import copy
import dataclasses
import inspect
import pickle
import pprint
from dataclasses import FrozenInstanceError, dataclass, field
from typing import Any, ClassVar

import pytest

from rbfly.net.uri import ConnectionInfo, Scheme
from rbfly.protocol.offset import Offset, OffsetType
from rbfly.streams import MessageFilter, OffsetTracking, StreamStats
from rbfly.streams.types import PublisherInfo, SubscriptionInfo
from rbfly.value import Value

MADE = [
    Offset(OffsetType.REFERENCE, 'a', Offset.FIRST),
    OffsetTracking('a', interval=2),
    MessageFilter(len, {'a'}),  # type: ignore[arg-type]
    PublisherInfo('a', sub_entry_size=5),
    SubscriptionInfo('a'),
    StreamStats(1, 2, 3, None),
    ConnectionInfo(Scheme.PLAIN, 'localhost', 5552, '/', 'guest', 'secret'),
]
parametrize = pytest.mark.parametrize('value', MADE, ids=[type(value).__name__ for value in MADE])


def dataclass_like(kind: Any) -> Any:
    """The dataclass that the same declaration gives."""
    body = {'__annotations__': {}, '__module__': kind.__module__, '__qualname__': kind.__qualname__}
    for name, annotation in kind.__annotations__.items():
        body['__annotations__'][name] = annotation
        if name == 'password':
            body[name] = field(repr=False)
        elif hasattr(kind, name) and not annotation.startswith('ClassVar'):
            body[name] = getattr(kind, name)
    return dataclass(frozen=True)(type(kind.__name__, (), body))


@parametrize
def test_is_a_dataclass(value: Any) -> None:
    kind: Any = type(value)
    other: Any = dataclass_like(kind)
    names = [item.name for item in dataclasses.fields(other)]
    given = [getattr(value, name) for name in names]
    made = other(*given)
    assert all(map(dataclasses.is_dataclass, (kind, value)))
    assert [repr(item) for item in dataclasses.fields(value)] == [
        repr(item) for item in dataclasses.fields(other)
    ]
    assert dataclasses.asdict(value) == dataclasses.asdict(made)
    assert dataclasses.astuple(value) == dataclasses.astuple(made)
    assert inspect.signature(kind) == inspect.signature(other)
    assert kind.__match_args__ == other.__match_args__
    assert value == kind(*given) == kind(**dict(zip(names, given, strict=True)))
    assert hash(value) == hash(made)
    assert vars(value) == vars(made)
    assert value != made
    if kind is not Offset:  # which has a text of its own
        assert repr(value) == repr(made)
        assert pprint.pformat(value, width=1000) == repr(made)


@parametrize
def test_does_not_change(value: Any) -> None:
    made = dataclass_like(type(value))(*vars(value).values())
    for name in [*vars(value), 'other']:
        changes: Any = ((setattr, (name, 1)), (delattr, (name,)))
        for change, given in changes:
            with pytest.raises(FrozenInstanceError) as caught:
                change(value, *given)
            with pytest.raises(FrozenInstanceError) as expected:
                change(made, *given)
            assert str(caught.value) == str(expected.value)


@parametrize
def test_is_copied(value: Any) -> None:
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        if not isinstance(value, MessageFilter) or protocol:
            assert pickle.loads(pickle.dumps(value, protocol)) == value
    assert copy.copy(value) == copy.deepcopy(value) == dataclasses.replace(value) == value
    assert hasattr(value, '__replace__')  # of copy.replace
    assert value.__replace__() == value


def test_is_made_anew_with_other_fields() -> None:
    info = PublisherInfo('a', 'b')
    for made in (dataclasses.replace(info, name='c'), info.__replace__(name='c')):
        assert made == PublisherInfo('a', 'c')
        assert info == PublisherInfo('a', 'b')
    for replace in (dataclasses.replace, PublisherInfo.__replace__):
        with pytest.raises(TypeError, match='unexpected keyword argument'):
            replace(info, colour=1)
    with pytest.raises(ValueError, match='every'):
        dataclasses.replace(OffsetTracking('a'), every=-1)


@pytest.mark.parametrize(
    ('values', 'named'),
    [
        ((), {}),
        ((), {'name': 'b'}),
        (('a',), {'stream': 'a'}),
        (('a',), {'colour': 1}),
        ((), {'colour': 1}),
        (range(9), {}),
    ],
)
def test_wrong_arguments(values: Any, named: Any) -> None:
    with pytest.raises(TypeError) as caught:
        PublisherInfo(*values, **named)
    with pytest.raises(TypeError) as expected:
        dataclass_like(PublisherInfo)(*values, **named)
    assert str(caught.value) == str(expected.value)


def test_patterns() -> None:
    match StreamStats(1, 2, 3, 4):
        case StreamStats(first, committed_offset=last):
            assert (first, last) == (1, 4)
        case _:
            pytest.fail('no match')


def test_classes_of_a_program_below_it() -> None:
    class Counting(MessageFilter):
        def matches(self, message: Any) -> bool:
            self.seen = True
            return True

    @dataclass(frozen=True)
    class Named(PublisherInfo):
        tags: list[str] = field(default_factory=list)

    counting = Counting(len, {'a'})  # type: ignore[arg-type]
    assert counting.matches(None)
    assert counting.seen
    with pytest.raises(FrozenInstanceError):
        counting.values = set()  # type: ignore[misc]
    assert counting != MessageFilter(len, {'a'})  # type: ignore[arg-type]
    named = Named('a', tags=['b'])
    assert named == dataclasses.replace(named)
    assert [item.name for item in dataclasses.fields(named)][-2:] == ['compression', 'tags']
    assert list(inspect.signature(Named).parameters)[-1] == 'tags'
    with pytest.raises(FrozenInstanceError):
        named.tags = []  # type: ignore[misc]


def test_attributes_of_the_class_are_no_fields() -> None:
    class Kind(Value):
        one: int
        two: ClassVar[int] = 2

    assert Kind(1) == Kind(one=1)
    assert Kind.__match_args__ == ('one',)
    assert repr(Kind(1)).endswith('Kind(one=1)')
