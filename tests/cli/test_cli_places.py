"""The grammar of `rbfly tail --offset`, sizes and times."""

import re
from datetime import UTC, datetime, timedelta

import pytest

from rbfly.cli.places import Place, Range, parse_range, place_of
from rbfly.cli.values import parse_age, parse_size

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC).timestamp()
DAY = datetime(2026, 1, 1, tzinfo=UTC).timestamp()
HOUR = 3600.0

RANGES = {
    'start': Range(Place('start')),
    'end': Range(Place('end')),
    '47': Range(Place('offset', 47)),
    '47:': Range(Place('offset', 47)),
    '+2': Range(Place('after', 2)),
    '-3': Range(Place('last', 3)),
    '10:20': Range(Place('offset', 10), 20),
    '47:end': Range(Place('offset', 47), 'now'),
    'start:5': Range(Place('start'), 5),
    ':20': Range(Place('start'), 20),
    ':end': Range(Place('start'), 'now'),
    '@-1h': Range(Place('time', NOW - HOUR)),
    '@-1h:': Range(Place('time', NOW - HOUR)),
    '@-1h:end': Range(Place('time', NOW - HOUR), 'now'),
    '@-48h:-24h': Range(Place('time', NOW - 48 * HOUR), NOW - 24 * HOUR),
    '@:-1h': Range(Place('start'), NOW - HOUR),
    '@2026-01-01': Range(Place('time', DAY)),
    '@2026-01-01:1h30m': Range(Place('time', DAY), DAY + 1.5 * HOUR),
    '@2026-01-01T00:00:00Z': Range(Place('time', DAY)),
    '@2026-01-01T02:00:00+02:00:2026-01-01T01:00:00.500Z': Range(
        Place('time', DAY), DAY + HOUR + 0.5
    ),
    f'@{DAY:.0f}': Range(Place('time', DAY)),
    f'@{DAY:.0f}250': Range(Place('time', DAY + 0.25)),
}
WRONG = {
    '': 'it is empty',
    'last': "'last' is neither start, end nor an offset",
    '20:10': '10 is not after 20',
    '10:10': '10 is not after 10',
    'end:5': 'nothing comes after the end',
    '5:start': "'start' is neither end nor an offset",
    '18446744073709551616': '18446744073709551616 has more than 64 bits',
    '@': 'write a time as',
    '@yesterday': 'write a time as',
    '@2026-02-30': 'write a time as',
    '@-1h:-2h': '-2h is not after -1h',
}


@pytest.mark.parametrize(('text', 'expected'), RANGES.items(), ids=RANGES)
def test_range(text: str, expected: Range) -> None:
    found = parse_range(text, NOW)
    assert found == expected
    assert type(found.stop) is type(expected.stop)


@pytest.mark.parametrize(('text', 'reason'), WRONG.items(), ids=WRONG)
def test_wrong_range_says_why(text: str, reason: str) -> None:
    with pytest.raises(ValueError, match=re.escape(reason)):
        parse_range(text, NOW)


def test_place_has_no_end() -> None:
    assert place_of('+2') == Place('after', 2)
    with pytest.raises(ValueError, match='is a range'):
        place_of('1:2')


@pytest.mark.parametrize(
    ('text', 'expected'),
    [('500000', 500_000), ('20GiB', 20 * 2**30), ('1.5 kB', 1500), ('3gb', 3 * 10**9), ('7B', 7)],
)
def test_size(text: str, expected: int) -> None:
    assert parse_size(text) == expected


@pytest.mark.parametrize('text', ['', '20G', '-1', '1e3', 'GiB', '5 bytes'])
def test_wrong_size(text: str) -> None:
    with pytest.raises(ValueError, match='is no size'):
        parse_size(text)


@pytest.mark.parametrize(
    ('text', 'expected'),
    [('7d', timedelta(days=7)), ('1d12h', timedelta(hours=36)), ('90s', timedelta(seconds=90))],
)
def test_age(text: str, expected: timedelta) -> None:
    assert parse_age(text) == expected


@pytest.mark.parametrize('text', ['', '7', '7D ', 'd', '-7d', '7 days'])
def test_wrong_age(text: str) -> None:
    with pytest.raises(ValueError, match='is no time'):
        parse_age(text)
