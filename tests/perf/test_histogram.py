"""The histogram of latencies counts every value; quantiles are exact to one bucket."""

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perf.histogram import WIDTH, Histogram

seconds = st.floats(1e-9, 1e4)
many = st.lists(seconds, min_size=1, max_size=200)
BUCKET = WIDTH * (1 + 1e-9)  # tolerates rounding errors


def filled(values: list[float]) -> Histogram:
    histogram = Histogram()
    for value in values:
        histogram.add(value)
    return histogram


@given(many, st.floats(0, 1))
def test_quantile_is_within_a_bucket_of_the_exact_one(values: list[float], q: float) -> None:
    exact = sorted(values)[max(math.ceil(q * len(values)), 1) - 1]
    assert exact / BUCKET <= filled(values).quantile(q) <= exact * BUCKET


@given(many)
def test_count_is_exact_and_dump_is_json(values: list[float]) -> None:
    found = filled(values)
    assert len(found) == len(values)
    dumped = found.dump()
    assert sum(dumped.values()) == len(values)
    assert Histogram.load(json.loads(json.dumps(dumped))).counts == found.counts


@given(many, many)
def test_merging_equals_adding_one_by_one(some: list[float], others: list[float]) -> None:
    merged = filled(some)
    merged.merge(filled(others))
    assert merged.counts == filled(some + others).counts


def test_similar_values_share_a_bucket() -> None:
    assert list(filled([1.0, 1.004, 1.009]).dump().values()) == [3]
    assert list(filled([1.0, 1.011]).dump().values()) == [1, 1]


def test_zero_and_negative_times_count_as_the_shortest() -> None:
    found = filled([0.0, -1.0])
    assert len(found) == 2
    assert 0 < found.quantile(1) < 2e-9


@pytest.mark.parametrize(('values', 'q'), [([], 0.5), ([1.0], 1.1), ([1.0], -0.1)])
def test_undefined_quantile_raises(values: list[float], q: float) -> None:
    with pytest.raises(ValueError, match='no quantile'):
        filled(values).quantile(q)
