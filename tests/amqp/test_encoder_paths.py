"""Errors of the encoder name the part of the message that cannot be encoded."""

import datetime
from collections.abc import Callable, Iterator, Mapping, Sequence
from decimal import Decimal
from types import MappingProxyType
from typing import Any

import pytest

from rbfly.amqp import (
    AMQPProperties,
    MessageCtx,
    encode_amqp,
    encode_amqp_bytes,
    stream_message_ctx,
)
from rbfly.error import AMQPEncoderError, AMQPEncoderTypeError, AMQPEncoderValueError
from rbfly.types import AMQPArray, Described, Int, Symbol

BAD: Any = Decimal('3.50')
TEXT = "AMQP 1.0 has no type for Decimal: Decimal('3.50'); send str(value)"
INTEGER: Any = {5: 1}


class NoOffset(datetime.tzinfo):
    """A time zone whose own code fails."""

    def tzname(self, when: datetime.datetime | None) -> None:
        return None

    dst = tzname

    def utcoffset(self, when: datetime.datetime | None) -> datetime.timedelta:
        raise ValueError('no offset')


NO_TIME = datetime.datetime(2020, 1, 1, tzinfo=NoOffset())


class Items(Sequence[Any]):
    """A sequence that is no list."""

    def __init__(self, *items: Any) -> None:
        self.items = items

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, index: Any) -> Any:
        return self.items[index]


class Failing(Mapping[str, int]):
    """A mapping whose own code fails."""

    def __len__(self) -> int:
        return 1

    def __iter__(self) -> Iterator[str]:
        raise ValueError('out of order')

    def __getitem__(self, key: str) -> int:
        raise KeyError(key)


def order() -> dict[str, Any]:
    return {'id': 1, 'items': [{'price': 1}, {'price': 2}, {'price': 3}, {'price': BAD}]}


def encoders_of(message: Any) -> list[Callable[[], object]]:
    """Return the functions that encode a message."""
    context = message if isinstance(message, MessageCtx) else stream_message_ctx(message)
    found: list[Callable[[], object]] = [
        lambda: encode_amqp_bytes(context),
        lambda: encode_amqp(bytearray(10_000), context),
    ]
    if context is not message:
        found += [
            lambda: encode_amqp_bytes(message),
            lambda: encode_amqp(bytearray(10_000), message),
        ]
    return found


@pytest.mark.parametrize(
    ('message', 'path'),
    [
        (order(), "body['items'][3]['price']"),
        ([[0, [BAD]]], 'body[0][1][0]'),
        ((1, (2, BAD)), 'body[1][1]'),
        ({'a': {1: {True: {None: BAD}}}}, "body['a'][1][True][None]"),
        ({'n' * 100: BAD}, f"body['{'n' * 36}...]"),
        (MappingProxyType({'x': Items(0, BAD)}), "body['x'][1]"),
        ([Described(Symbol('x'), [BAD])], 'body[0].value[0]'),
        ([Described([BAD], 1)], 'body[0].descriptor[0]'),
        ({'x': AMQPArray(Int, [1, 2, 'three'])}, "body['x'][2]"),
        ({'x': AMQPArray(list, [[1], [BAD]])}, "body['x'][1][0]"),
        ({'x': AMQPArray(Int, [1], descriptors=[BAD])}, "body['x']"),
        ({'x': {(1, 2): 3}}, "body['x'][(1, 2)]"),
        ({'x': [1, Failing()]}, "body['x'][1]"),
        ({'x': ['\ud800']}, "body['x'][0]"),
        ({'x': [2**64]}, "body['x'][0]"),
        ({'x': [int]}, "body['x'][0]"),
        ({'x': [{1, 2}]}, "body['x'][0]"),
        (stream_message_ctx(None, app_properties={'a': 1, 'b': [BAD]}), "app_properties['b'][0]"),
        (stream_message_ctx(1, app_properties=INTEGER), 'app_properties[5]'),
        (stream_message_ctx(1, annotations={'x': {'y': BAD}}), "annotations['x']['y']"),
        (stream_message_ctx(1, delivery_annotations={-1: 1}), 'delivery_annotations[-1]'),
        (stream_message_ctx(1, footer={'f': BAD}), "footer['f']"),
        (stream_message_ctx(1, properties=AMQPProperties(subject='\ud800')), 'properties.subject'),
        (
            stream_message_ctx(
                [BAD],
                properties=AMQPProperties(to='x', creation_time=NO_TIME),
                annotations={'a': 1},
            ),
            'properties.creation_time',
        ),
        (stream_message_ctx([BAD], properties=AMQPProperties(to='x')), 'body[0]'),
        (stream_message_ctx([BAD], app_properties={'a': 1}), 'body[0]'),
        (stream_message_ctx([BAD], footer={'f': BAD}), 'body[0]'),
    ],
    ids=lambda item: item if isinstance(item, str) else '',
)
def test_error_begins_with_the_path(message: Any, path: str) -> None:
    for encode in encoders_of(message):
        with pytest.raises(AMQPEncoderError) as caught:
            encode()
        assert str(caught.value).startswith(f'{path}: ')


def test_the_text_and_class_are_those_of_the_value() -> None:
    with pytest.raises(AMQPEncoderTypeError) as caught:
        encode_amqp_bytes(order())
    assert str(caught.value) == f"body['items'][3]['price']: {TEXT}"
    with pytest.raises(AMQPEncoderValueError, match='out of order') as failed:
        encode_amqp_bytes([Failing()])
    assert isinstance(failed.value.__cause__, ValueError)


@pytest.mark.parametrize(
    'message', [BAD, stream_message_ctx(BAD), {1}, int, '\ud800', 2**64], ids=type
)
def test_body_that_fails_as_a_whole_has_no_path(message: Any) -> None:
    for encode in encoders_of(message):
        with pytest.raises(AMQPEncoderError) as caught:
            encode()
        assert not str(caught.value).startswith('body')


def test_path_of_a_list_that_contains_itself_is_short() -> None:
    endless: list[Any] = []
    endless.append(endless)
    with pytest.raises(AMQPEncoderValueError, match='containing itself') as caught:
        encode_amqp_bytes({'x': endless})
    assert str(caught.value).startswith("body['x'][0][0]")
    assert len(str(caught.value)) < 300


def test_search_ends_after_65536_values() -> None:
    """It takes a microsecond for each."""
    with pytest.raises(AMQPEncoderTypeError, match=r'^AMQP 1.0 has no type'):
        encode_amqp_bytes([0] * 2**16 + [BAD])
    with pytest.raises(AMQPEncoderTypeError, match=r'^body\[60000\]: AMQP 1.0 has no type'):
        encode_amqp_bytes([0] * 60_000 + [BAD])


def test_value_that_fails_only_once_has_no_path() -> None:
    """Code of a value runs again during the search, and may have another result."""

    class Once(datetime.tzinfo):
        calls = 0

        def tzname(self, when: datetime.datetime | None) -> None:
            return None

        dst = tzname

        def utcoffset(self, when: datetime.datetime | None) -> datetime.timedelta:
            self.calls += 1
            if self.calls == 1:
                raise ValueError('too early')
            return datetime.timedelta()

    with pytest.raises(AMQPEncoderValueError, match=r'^cannot read a UTC offset'):
        encode_amqp_bytes([datetime.datetime(2020, 1, 1, tzinfo=Once())])


def test_search_does_not_replace_the_error() -> None:
    """Code of a value that interrupts the search leaves the error of the encoder as it is."""

    class Changing(Mapping[str, Any]):
        calls = 0

        def __len__(self) -> int:
            return 1

        def __iter__(self) -> Iterator[str]:
            return iter('a')

        def __getitem__(self, key: str) -> Any:
            self.calls += 1
            if self.calls > 1:
                raise MemoryError
            return BAD

    with pytest.raises(AMQPEncoderTypeError, match='has no type for Decimal'):
        encode_amqp_bytes([Changing()])


def test_an_error_leaves_the_message_unchanged() -> None:
    context = stream_message_ctx({'x': BAD})
    with pytest.raises(AMQPEncoderTypeError):
        encode_amqp_bytes(context)
    context.body = {'x': 1}
    assert encode_amqp_bytes(context) == encode_amqp_bytes({'x': 1})
