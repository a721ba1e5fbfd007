"""Values of options: sizes such as 20GiB, and times such as 7d."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import click

UNITS = {'ms': 0.001, 's': 1.0, 'm': 60.0, 'h': 3600.0, 'd': 86400.0, 'w': 604800.0}
DURATION = re.compile(r'(?:\d+(?:\.\d+)?(?:ms|[smhdw]))+')
PART = re.compile(r'(\d+(?:\.\d+)?)(ms|[smhdw])')
SIZE = re.compile(r'(\d+(?:\.\d+)?) *(?:([kmgt]?)(i?)b)?', re.IGNORECASE)


class Number(click.FloatRange):
    """A number in a range, which NaN is not."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        found = super().convert(value, param, ctx)
        if math.isnan(found):
            self.fail(f'{value!r} is not a number', param, ctx)
        return found


def parse_duration(text: str) -> float | None:
    """Return the seconds of a duration such as 90s or 1h30m; None if it is none."""
    if not DURATION.fullmatch(text):
        return None
    return sum(float(number) * UNITS[unit] for number, unit in PART.findall(text))


def parse_size(text: str) -> int:
    """Return the bytes of a size such as 500000, 500kB or 20GiB.

    :raises ValueError: it is none.
    """
    found = SIZE.fullmatch(text.strip())
    if found is None:
        raise ValueError(f'{text!r} is no size: write 500000, 500MB or 20GiB')
    number, unit, binary = found.groups()
    power = ' kmgt'.index((unit or ' ').lower())
    return round(float(number) * math.pow(1024 if binary else 1000, power))


def parse_age(text: str) -> timedelta:
    """Return the time of a text such as 90s, 12h, 7d or 1d12h.

    :raises ValueError: it is none.
    """
    seconds = parse_duration(text.strip())
    if seconds is None:
        raise ValueError(f'{text!r} is no time: write 90s, 12h, 7d or 1d12h')
    return timedelta(seconds=seconds)


def parsed(parse: Callable[[str], object]) -> Callable[[click.Context, click.Parameter, Any], Any]:
    """Return the callback of an option whose text a function parses.

    :param parse: raises ValueError if the text is wrong.
    """

    def callback(ctx: click.Context, param: click.Parameter, value: str | None) -> object:
        if value is None:
            return None
        try:
            return parse(value)
        except ValueError as ex:
            raise click.BadParameter(str(ex), ctx, param) from ex
        except OverflowError as ex:
            raise click.BadParameter(f'{value!r} is too large', ctx, param) from ex

    return callback
