"""Values of other libraries are encoded as what they are, or refused: never as something else."""

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta, timezone
from enum import IntEnum
from typing import Any

import numpy as np
import pandas as pd
import pytest

from rbfly.amqp import AMQPProperties, decode_amqp, encode_amqp_bytes, stream_message_ctx
from rbfly.error import AMQPEncoderError, AMQPEncoderTypeError, AMQPEncoderValueError
from rbfly.types import AMQPArray


def round_trip(value: Any) -> Any:
    return decode_amqp(encode_amqp_bytes([value])).body[0]


# -- times


class Elsewhere(datetime):
    """A datetime that stores its year elsewhere."""

    @property
    def year(self) -> int:
        return 20_000


class Unreadable(datetime):
    @property
    def hour(self) -> int:
        raise RuntimeError('no hour')


@pytest.mark.parametrize('value', [pd.NaT, Elsewhere(2020, 1, 1), Unreadable(2020, 1, 1)])
def test_time_that_datetime_does_not_store(value: Any) -> None:
    with pytest.raises(AMQPEncoderValueError, match=r"^body\['paid'\]: cannot (encode|read)"):
        encode_amqp_bytes({'paid': value})
    with pytest.raises(AMQPEncoderError):
        encode_amqp_bytes(AMQPArray(datetime, [value]))
    ctx = stream_message_ctx('x', properties=AMQPProperties(creation_time=value))
    with pytest.raises(AMQPEncoderError, match='creation_time'):
        encode_amqp_bytes(ctx)


def test_times_of_pandas() -> None:
    stamp = pd.Timestamp('2024-05-06 07:08:09.123456')
    assert round_trip(stamp) == datetime(2024, 5, 6, 7, 8, 9, 123_000, UTC)
    zone = timezone(timedelta(hours=2))
    aware = pd.Timestamp('2024-05-06 07:08:09', tz=zone)
    assert round_trip(aware) == datetime(2024, 5, 6, 5, 8, 9, tzinfo=UTC)
    # beyond the years of datetime, pandas stores another year there
    with pytest.raises(AMQPEncoderValueError):
        encode_amqp_bytes(pd.Timestamp(np.datetime64('20000-01-01', 's')))


# -- sequences


class Labelled(Sequence[int]):
    """A sequence whose index is not the position."""

    def __len__(self) -> int:
        return 3

    def __iter__(self) -> Iterator[int]:
        return iter([1, 2, 3])

    def __getitem__(self, index: Any) -> Any:
        return [3, 2, 1][index]


class Endless(Labelled):
    def __iter__(self) -> Iterator[int]:
        while True:
            yield 5


class Short(Labelled):
    def __iter__(self) -> Iterator[int]:
        return iter([1])


class Words(list[int]):
    def __iter__(self) -> Iterator[int]:
        return iter([7, 8])


def test_items_are_those_of_iterating() -> None:
    assert round_trip(pd.Series([3, 1, 2]).sort_values()) == [1, 2, 3]
    assert round_trip(pd.Series([3, 1], index=['a', 'b'])) == [3, 1]
    assert round_trip(pd.Series(['x', 'y'], index=[1, 0])) == ['x', 'y']
    assert round_trip(pd.Index([5, 6])) == [5, 6]
    assert round_trip(Labelled()) == [1, 2, 3]
    assert round_trip(Endless()) == [5, 5, 5]
    assert round_trip(np.array([[1.5, 2.5], [3.5, 4.5]])) == [[1.5, 2.5], [3.5, 4.5]]
    with pytest.raises(AMQPEncoderValueError, match=r'cannot read a sequence: .*its length is 3'):
        encode_amqp_bytes([Short()])
    assert round_trip(Words([1, 2])) == [7, 8]


def test_table_is_refused() -> None:
    for frame in (pd.DataFrame({'a': [1, 2], 'b': [3, 4]}), pd.DataFrame({0: [1, 2], 1: [3, 4]})):
        with pytest.raises(AMQPEncoderTypeError, match='no type for DataFrame'):
            encode_amqp_bytes({'t': frame})


class Proxy:
    """A proxy of a string, as of Werkzeug or wrapt."""

    __class__ = str  # type: ignore[assignment]

    def __len__(self) -> int:
        return 2

    def __iter__(self) -> Iterator[str]:
        return iter('ab')

    def __getitem__(self, index: int) -> str:
        return 'ab'[index]


def test_proxy_of_a_string_is_refused() -> None:
    with pytest.raises(AMQPEncoderTypeError, match='no type for Proxy'):
        encode_amqp_bytes([Proxy()])


# -- mappings


class Repeated(Mapping[str, int]):
    """A mapping with a key that occurs twice, as of headers."""

    def __len__(self) -> int:
        return 2

    def __iter__(self) -> Iterator[str]:
        return iter(['a', 'a'])

    def __getitem__(self, key: str) -> int:
        return 1


class Shown(dict[str, int]):
    """A dict with other contents than dict stores."""

    def __iter__(self) -> Iterator[str]:
        return iter(['shown'])

    def __getitem__(self, key: str) -> int:
        return 5


def test_mappings() -> None:
    with pytest.raises(AMQPEncoderValueError, match=r'cannot read a mapping: .*a key occurs'):
        encode_amqp_bytes([Repeated()])
    with pytest.raises(AMQPEncoderValueError, match=r'cannot read a mapping: .*a key occurs'):
        encode_amqp_bytes(stream_message_ctx('x', app_properties=Repeated()))
    assert round_trip(Shown(stored=1)) == {'shown': 5}


# -- numbers


class Masked(int):
    """An int with another value than int stores."""

    def __int__(self) -> int:
        return 7


class Level(IntEnum):
    LOW = 1


def test_integers() -> None:
    with pytest.raises(AMQPEncoderValueError, match='it is not the int it stores'):
        encode_amqp_bytes([Masked(5)])
    assert round_trip(Level.LOW) == 1
    assert round_trip(np.float64(1.5)) == 1.5


@pytest.mark.parametrize(
    'value', [pd.NA, np.int64(5), pd.Timedelta(1, 's'), np.datetime64('NaT', 's'), np.bool_(True)]
)
def test_scalars_without_a_type_are_refused(value: Any) -> None:
    with pytest.raises(AMQPEncoderTypeError, match=r'AMQP 1.0 has no type for'):
        encode_amqp_bytes({'v': value})
