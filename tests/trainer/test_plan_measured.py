"""A planned peak is what a rank takes: the smallest case of `measure_plan`, in fresh processes."""

import pytest

from cli.bench.measure_plan import measure


@pytest.mark.timeout(600)
def test_a_planned_peak_is_within_a_tenth_of_the_measured_one() -> None:
    found = measure("small")
    assert 0.9 < found["ratio"] < 1.1, found
