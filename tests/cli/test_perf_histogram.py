"""The histogram of `rbfly perf`."""

import math
from random import Random

from rbfly.cli.histogram import LONGEST, Histogram, bucket, upper_end


def test_buckets_follow_each_other_and_are_narrow(rng: Random) -> None:
    durations = [
        *range(1000),
        LONGEST,
        *(rng.randrange(2 ** rng.randint(1, 46)) for _ in range(5000)),
    ]
    for duration in durations:
        index = bucket(duration)
        assert duration <= upper_end(index) <= duration * 1.008
        assert index == 0 or upper_end(index - 1) < duration


def test_quantiles_are_those_of_the_sorted_durations(rng: Random) -> None:
    durations = sorted(int(rng.lognormvariate(13, 2)) for _ in range(1000))
    histogram = Histogram()
    for duration in durations:
        histogram.add(duration)
    for fraction in (0.0, 0.001, 0.5, 0.99, 0.999, 1.0):
        exact = durations[max(math.ceil(fraction * 1000), 1) - 1] / 1e9
        found = histogram.quantile(fraction)
        assert found is not None
        assert exact <= found <= exact * 1.008
    assert histogram.quantile(1.0) == durations[-1] / 1e9
    assert histogram.mean == sum(durations) / 1000 / 1e9


def test_merged_histogram_has_the_durations_of_both() -> None:
    one, other = Histogram(), Histogram()
    one.add(1_000_000, 99)
    other.add(5_000_000)
    one.merge(other)
    one.merge(Histogram())
    assert one.count == 100
    assert one.quantile(0.99) is not None
    assert math.isclose(one.quantile(0.99) or 0, 0.001, rel_tol=0.01)
    assert one.quantile(1.0) == 0.005


def test_empty_histogram_has_no_quantile() -> None:
    assert Histogram().quantile(0.5) is None
    assert Histogram().mean is None


def test_durations_out_of_range_count_as_the_nearest() -> None:
    histogram = Histogram()
    histogram.add(-5)
    histogram.add(2**60)
    assert histogram.quantile(0.5) == 0
    assert histogram.quantile(1.0) == LONGEST / 1e9
