"""Public values are frozen dataclasses: comparable, hashable, and safe to copy and pickle."""

import copy
import dataclasses
import inspect
import pickle
from typing import Any, ClassVar

import pytest

from rbfly.net.uri import ConnectionInfo, Scheme
from rbfly.protocol.offset import Offset, OffsetType
from rbfly.record import Record, replace
from rbfly.streams import Group, MessageFilter, OffsetTracking, StreamStats
from rbfly.streams.types import PublisherInfo, SubscriptionInfo

VALUES = [
    Offset(OffsetType.REFERENCE, 'a', Offset.FIRST),
    OffsetTracking('a', interval=2),
    MessageFilter(len, {'a'}),  # type: ignore[arg-type]
    PublisherInfo('a', sub_entry_size=5),
    SubscriptionInfo('a'),
    StreamStats(1, 2, 3, None),
    Group('a', handover_timeout=5),
    ConnectionInfo(Scheme.PLAIN, 'localhost', 5552, '/', 'guest', 'secret'),
]


@pytest.mark.parametrize('value', VALUES, ids=[type(value).__name__ for value in VALUES])
def test_value(value: Any) -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(value, dataclasses.fields(value)[0].name, 1)
    assert type(value)(**vars(value)) == value
    assert copy.copy(value) == copy.deepcopy(value) == dataclasses.replace(value) == value
    assert hash(copy.deepcopy(value)) == hash(value)
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        if not isinstance(value, MessageFilter) or protocol:  # protocol 0 cannot pickle `len`
            assert pickle.loads(pickle.dumps(value, protocol)) == value
    assert dataclasses.asdict(value).keys() == vars(value).keys()
    assert 'secret' not in repr(value)


def test_replaced_fields_are_checked() -> None:
    assert dataclasses.replace(OffsetTracking('a'), reference='b') == OffsetTracking('b')
    with pytest.raises(ValueError, match='every'):
        dataclasses.replace(OffsetTracking('a'), every=-1)


def test_settings_of_a_group_have_names() -> None:
    with pytest.raises(TypeError, match='positional'):
        Group('a', 5.0)  # type: ignore[call-arg]


def test_subclasses_of_a_program() -> None:
    class Counting(MessageFilter):
        def matches(self, message: Any) -> bool:
            self.seen = True
            return True

    @dataclasses.dataclass(frozen=True)
    class Named(PublisherInfo):
        tags: tuple[str, ...] = ()

    counting = Counting(len, {'a'})  # type: ignore[arg-type]
    assert counting.matches(None)
    assert counting.seen
    assert counting != MessageFilter(len, {'a'})  # type: ignore[arg-type]
    named = Named('a', tags=('b',))
    assert named == dataclasses.replace(named)
    assert (named.stream, named.tags) == ('a', ('b',))


class Point(Record):
    x: int
    y: int = 2
    origin: ClassVar[str] = 'center'


class Labelled(Point):
    label: str = ''


def test_record() -> None:
    point = Labelled(1, label='a')
    assert (point.x, point.y, point.label) == (1, 2, 'a')
    assert Labelled.__match_args__ == ('x', 'y', 'label')
    assert repr(point) == "Labelled(x=1, y=2, label='a')"
    assert [item.name for item in dataclasses.fields(point)] == ['x', 'y', 'label']
    assert str(inspect.signature(Point)) == '(x: int, y: int = 2) -> None'
    assert Point(1) not in [Labelled(1), (1, 2), Point(2), Point(1, 3)]
    assert len({Point(1), Point(1, 2), Point(y=2, x=1)}) == 1
    assert replace(point, x=5) == Labelled(5, 2, 'a')


@pytest.mark.parametrize(
    ('args', 'kwargs', 'message'),
    [
        ((), {'y': 1}, "misses the argument 'x'"),
        ((1, 2, 3), {}, 'takes 2 arguments, not 3'),
        ((1,), {'x': 2}, "takes 'x' once"),
        ((1,), {'z': 2}, "has no argument 'z'"),
        ((1,), {'origin': 'corner'}, "has no argument 'origin'"),
    ],
)
def test_arguments_that_do_not_fit_a_record(args: Any, kwargs: Any, message: str) -> None:
    with pytest.raises(TypeError, match=message):
        Point(*args, **kwargs)
