"""The histogram of latencies: nothing is lost, and quantiles are right within a bucket."""

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perf.histogram import WIDTH, Histogram

seconds = st.floats(1e-9, 1e4)
many = st.lists(seconds, min_size=1, max_size=200)
BUCKET = WIDTH * (1 + 1e-9)  # with what rounding does to it


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
def test_merged_is_as_if_added_one_by_one(some: list[float], others: list[float]) -> None:
    merged = filled(some)
    merged.merge(filled(others))
    assert merged.counts == filled(some + others).counts


def test_values_of_one_bucket_are_one_count() -> None:
    assert list(filled([1.0, 1.004, 1.009]).dump().values()) == [3]
    assert list(filled([1.0, 1.011]).dump().values()) == [1, 1]


def test_no_time_at_all_counts_as_the_shortest() -> None:
    found = filled([0.0, -1.0])
    assert len(found) == 2
    assert 0 < found.quantile(1) < 2e-9


@pytest.mark.parametrize(('values', 'q'), [([], 0.5), ([1.0], 1.1), ([1.0], -0.1)])
def test_there_is_no_such_quantile(values: list[float], q: float) -> None:
    with pytest.raises(ValueError, match='no quantile'):
        filled(values).quantile(q)
