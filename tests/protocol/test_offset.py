"""`Offset`, which says where a subscription starts."""

import math
from dataclasses import FrozenInstanceError
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

from rbfly.error import RbFlyError
from rbfly.streams import Offset, OffsetType


def test_first_last_and_next_have_no_value() -> None:
    assert Offset.FIRST.type is OffsetType.FIRST
    assert Offset.LAST.type is OffsetType.LAST
    assert Offset.NEXT.type is OffsetType.NEXT
    assert {Offset.FIRST.value, Offset.LAST.value, Offset.NEXT.value} == {None}


def test_protocol_numbers_of_offset_types() -> None:
    assert [int(item) for item in OffsetType] == [1, 2, 3, 4, 5, 0xFFFE, 0xFFFF]


@pytest.mark.parametrize('offset', [0, 1, 2**63, 2**64 - 1])
def test_absolute_offset(offset: int) -> None:
    found = Offset.offset(offset)
    assert (found.type, found.value) == (OffsetType.OFFSET, offset)


@pytest.mark.parametrize('offset', [-1, 2**64])
def test_absolute_offset_out_of_range(offset: int) -> None:
    with pytest.raises(OverflowError):
        Offset.offset(offset)


@pytest.mark.parametrize('timestamp', [0, 1.5, -1.5, 1_700_000_000.123])
def test_timestamp(timestamp: float) -> None:
    found = Offset.timestamp(timestamp)
    assert (found.type, found.value) == (OffsetType.TIMESTAMP, timestamp)


@pytest.mark.parametrize('timestamp', [math.nan, math.inf, -math.inf, 1e17, -1e17])
def test_timestamp_that_the_protocol_cannot_carry(timestamp: float) -> None:
    with pytest.raises(OverflowError):
        Offset.timestamp(timestamp)


@pytest.mark.parametrize('zone', [UTC, timezone(timedelta(hours=-5))])
def test_timestamp_of_an_aware_datetime(zone: timezone) -> None:
    time = datetime(2026, 1, 2, 3, 4, 5, 678_000, tzinfo=UTC).astimezone(zone)
    assert Offset.timestamp(time) == Offset.timestamp(1_767_323_045.678)


def test_timestamp_of_a_naive_datetime_is_refused() -> None:
    with pytest.raises(ValueError, match='2026-01-02 00:00:00 has no time zone') as caught:
        Offset.timestamp(datetime(2026, 1, 2))
    assert isinstance(caught.value, RbFlyError)


def test_last_messages() -> None:
    found = Offset.last_messages(100)
    assert (found.type, found.value) == (OffsetType.LAST_MESSAGES, 100)
    assert repr(found) == 'Offset.last_messages(100)'


@pytest.mark.parametrize('count', [-1, 2**64])
def test_last_messages_out_of_range(count: int) -> None:
    with pytest.raises(OverflowError):
        Offset.last_messages(count)


def test_reference() -> None:
    found = Offset.reference('ré')
    assert (found.type, found.value) == (OffsetType.REFERENCE, 'ré')


@pytest.mark.parametrize(
    ('kind', 'value'),
    [
        (OffsetType.OFFSET, '1'),
        (OffsetType.OFFSET, 1.0),
        (OffsetType.OFFSET, True),
        (OffsetType.OFFSET, None),
        (OffsetType.TIMESTAMP, datetime(2026, 1, 1)),
        (OffsetType.TIMESTAMP, '1'),
        (OffsetType.LAST_MESSAGES, 1.0),
        (OffsetType.LAST_MESSAGES, True),
        (OffsetType.REFERENCE, 5),
        (OffsetType.REFERENCE, b'r'),
        (OffsetType.FIRST, 0),
        (4, 5),
        ('first', None),
    ],
)
def test_values_of_wrong_type_are_refused(kind: Any, value: Any) -> None:
    with pytest.raises(TypeError) as caught:
        Offset(kind, value)
    assert isinstance(caught.value, RbFlyError)


def test_offsets_are_comparable_hashable_and_frozen() -> None:
    assert Offset.offset(5) == Offset.offset(5)
    assert Offset.offset(5) != Offset.timestamp(5)
    assert len({Offset.offset(5), Offset.offset(5), Offset.FIRST}) == 2
    with pytest.raises(FrozenInstanceError):
        Offset.FIRST.value = 5  # type: ignore[misc]


@pytest.mark.parametrize(
    ('offset', 'text'),
    [
        (Offset.FIRST, 'Offset.FIRST'),
        (Offset.offset(5), 'Offset.offset(5)'),
        (Offset.timestamp(1.5), 'Offset.timestamp(1.5)'),
        (Offset.reference('r'), "Offset.reference('r')"),
        (Offset.reference('r', Offset.NEXT), "Offset.reference('r', Offset.NEXT)"),
    ],
)
def test_repr(offset: Offset, text: str) -> None:
    assert repr(offset) == text
    assert eval(text) == offset
