"""Medians and bootstrap intervals, with the standard library."""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median

RESAMPLES = 1_000
LEVEL = 0.95


@dataclass(frozen=True)
class Interval:
    """A median or a ratio of medians, and its 95 % interval."""

    value: float
    low: float
    high: float


def bootstrap(value: float, draw: Callable[[random.Random], float], seed: int) -> Interval:
    """The percentile bootstrap interval of a statistic."""
    source = random.Random(seed)
    drawn = sorted(draw(source) for _ in range(RESAMPLES))
    tail = (1 - LEVEL) / 2
    low = drawn[round(tail * (RESAMPLES - 1))]
    high = drawn[round((1 - tail) * (RESAMPLES - 1))]
    return Interval(value, low, high)


def median_interval(values: Sequence[float], seed: int = 0) -> Interval:
    """The median of the values and its interval."""
    n = len(values)
    return bootstrap(median(values), lambda rnd: median(rnd.choices(values, k=n)), seed)


def ratio_interval(
    over: Sequence[float], under: Sequence[float], seed: int = 0, paired: bool = False
) -> Interval:
    """The ratio of the medians of two samples and its interval.

    Paired samples contain values of the same rounds in the same order.  Resampling whole rounds
    then keeps rounds that were slow for both from widening the interval.
    """
    if paired and len(over) != len(under):
        raise ValueError('paired samples have different lengths')
    n, m = len(over), len(under)

    def draw(rnd: random.Random) -> float:
        if paired:
            rounds = rnd.choices(range(n), k=n)
            return median([over[i] for i in rounds]) / median([under[i] for i in rounds])
        return median(rnd.choices(over, k=n)) / median(rnd.choices(under, k=m))

    return bootstrap(median(over) / median(under), draw, seed)
