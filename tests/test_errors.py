"""Every error class of the package can be pickled and copied."""

import copy
import importlib
import inspect
import pickle
import pkgutil
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import Any

import pytest

import rbfly
from rbfly.error import AMQPDecoderError, RbFlyError, add_text, explained
from rbfly.streams.error import ProtocolError, PublishError, PublishErrorInfo, StreamDoesNotExist


def classes(base: type[RbFlyError] = RbFlyError) -> Iterator[type[RbFlyError]]:
    yield base
    for item in base.__subclasses__():
        yield from classes(item)


for module in pkgutil.walk_packages(rbfly.__path__, 'rbfly.'):
    importlib.import_module(module.name)
CLASSES = sorted({item for item in classes() if item.__module__.startswith('rbfly.')}, key=repr)

ROUND_TRIPS: dict[str, Callable[[Any], Any]] = {
    'pickle': lambda error: pickle.loads(pickle.dumps(error)),
    'oldest pickle': lambda error: pickle.loads(pickle.dumps(error, 0)),
    'copy': copy.copy,
    'deepcopy': copy.deepcopy,
}
each_round_trip = pytest.mark.parametrize('round_trip', ROUND_TRIPS.values(), ids=list(ROUND_TRIPS))


def make(kind: type[RbFlyError]) -> RbFlyError:
    """Create an error of a class, with an argument for every parameter of its constructor."""
    if not inspect.isfunction(kind.__init__):
        return kind('what went wrong')
    parameters = inspect.signature(kind).parameters.values()
    return kind(*(7 if 'int' in str(item.annotation) else 'text' for item in parameters))


def state(error: RbFlyError) -> dict[str, Any]:
    """Return everything that a user can see of an error."""
    names = ('args', 'errno', 'strerror', 'filename', 'msg', 'name', 'path')
    shown = {name: getattr(error, name) for name in names if hasattr(error, name)}
    return {**shown, 'class': type(error), 'str': str(error), 'repr': repr(error), **vars(error)}


@each_round_trip
@pytest.mark.parametrize('kind', CLASSES, ids=lambda kind: kind.__name__)
def test_round_trip_preserves_the_error(
    kind: type[RbFlyError], round_trip: Callable[[RbFlyError], RbFlyError]
) -> None:
    error = make(kind)
    error.index = 3
    error.add_note('of message 3')
    assert state(round_trip(error)) == state(error)


@each_round_trip
def test_round_trip_preserves_attributes(round_trip: Callable[[Any], Any]) -> None:
    refused = PublishError(5, 7, 'too late')
    refused.errors = [PublishErrorInfo(7, 5), PublishErrorInfo(9, 5)]
    other = round_trip(refused)
    assert (other.code, other.publish_id, other.errors) == (5, 7, [(7, 5), (9, 5)])
    damaged = AMQPDecoderError('bad', 4)
    damaged.stream, damaged.offset, damaged.data = 's', 11, b'\xff'
    other = round_trip(damaged)
    assert (other.position, other.offset, other.data) == (4, 11, b'\xff')
    assert str(other) == str(damaged) == "bad of the message at offset 11 of stream 's'"


@each_round_trip
def test_round_trip_preserves_the_text(round_trip: Callable[[Any], Any]) -> None:
    error = explained(StreamDoesNotExist('orders'), "'orders' is a super stream")
    add_text(error, 'message 3: ', '; it was not sent')
    assert str(error) == "message 3: 'orders' is a super stream; it was not sent"
    other = add_text(round_trip(error), after='; try again')
    assert str(other) == f'{error}; try again'
    assert repr(other) == f'StreamDoesNotExist({str(other)!r})'


def test_deep_copy_shares_nothing() -> None:
    error = PublishError(5, 7)
    copy.deepcopy(error).errors.append(PublishErrorInfo(8, 5))
    assert error.errors == [(7, 5)]


class Refused(ProtocolError):
    """A user's error class with its own constructor."""

    def __init__(self, who: str) -> None:
        super().__init__(0x10, who)
        self.who = who


@each_round_trip
def test_round_trip_of_a_users_error_class(round_trip: Callable[[Any], Any]) -> None:
    error = Refused('guest')
    assert state(round_trip(error)) == state(error)


def fail() -> None:
    raise StreamDoesNotExist('orders', 'was deleted')


def test_error_from_another_process() -> None:
    with ProcessPoolExecutor(1, get_context('spawn')) as pool:
        with pytest.raises(StreamDoesNotExist) as caught:
            pool.submit(fail).result()
        assert str(caught.value) == str(StreamDoesNotExist('orders', 'was deleted'))
