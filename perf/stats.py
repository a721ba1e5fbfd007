"""Medians and bootstrap intervals, with the standard library."""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median

__all__ = ['Interval', 'median_interval', 'ratio_interval']

RESAMPLES = 2_000
LEVEL = 0.95


@dataclass(frozen=True)
class Interval:
    """A median, or a ratio of medians, and the 95 % interval around it."""

    value: float
    low: float
    high: float


def bootstrap(value: float, draw: Callable[[random.Random], float], seed: int) -> Interval:
    """Percentile interval of a statistic that is drawn again and again."""
    source = random.Random(seed)
    drawn = sorted(draw(source) for _ in range(RESAMPLES))
    tail = (1 - LEVEL) / 2
    low = drawn[round(tail * (RESAMPLES - 1))]
    high = drawn[round((1 - tail) * (RESAMPLES - 1))]
    return Interval(value, low, high)


def median_interval(values: Sequence[float], seed: int = 0) -> Interval:
    """Median of the values and its interval."""
    n = len(values)
    return bootstrap(median(values), lambda rnd: median(rnd.choices(values, k=n)), seed)


def ratio_interval(
    over: Sequence[float], under: Sequence[float], seed: int = 0, paired: bool = False
) -> Interval:
    """Ratio of the medians of two samples and its interval.

    Paired samples hold the values of the same rounds in the same order; then whole rounds are
    resampled, so that what made both of a round slow does not widen the interval.
    """
    if paired and len(over) != len(under):
        raise ValueError('samples of different rounds')
    n, m = len(over), len(under)

    def draw(rnd: random.Random) -> float:
        if paired:
            rounds = rnd.choices(range(n), k=n)
            return median([over[i] for i in rounds]) / median([under[i] for i in rounds])
        return median(rnd.choices(over, k=n)) / median(rnd.choices(under, k=m))

    return bootstrap(median(over) / median(under), draw, seed)
