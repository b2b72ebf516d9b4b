"""pass@k against counting every draw; the interval against known values."""

from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainspring.rewards.passk import pass_at_each_k, pass_at_k, wilson


@st.composite
def counted(draw: st.DrawFn) -> tuple[int, int, int]:
    samples = draw(st.integers(1, 8))
    return samples, draw(st.integers(0, samples)), draw(st.integers(1, samples))


@given(counted())
def test_it_is_the_share_of_draws_with_a_resolved_sample(case: tuple[int, int, int]) -> None:
    samples, resolved, k = case
    draws = list(combinations([True] * resolved + [False] * (samples - resolved), k))
    assert pass_at_k(samples, resolved, k) == pytest.approx(sum(map(any, draws)) / len(draws))


@given(st.lists(counted(), min_size=1, max_size=12))
def test_every_k_is_averaged_over_the_tasks_that_have_as_many_samples(
    cases: list[tuple[int, int, int]],
) -> None:
    counts = [(samples, resolved) for samples, resolved, _ in cases]
    found = pass_at_each_k(counts)
    assert [each.k for each in found] == list(range(1, max(n for n, _ in counts) + 1))
    for each in found:
        values = [pass_at_k(n, c, each.k) for n, c in counts if n >= each.k]
        assert each.num_tasks == len(values)
        assert each.value == pytest.approx(sum(values) / len(values))
        assert 0.0 <= each.low <= each.value + 1e-12
        assert each.value - 1e-12 <= each.high <= 1.0


def test_the_interval_is_wilsons() -> None:
    # E. B. Wilson (1927), with z = 1.96: the textbook values.
    assert wilson(0.5, 10) == pytest.approx((0.2366, 0.7634), abs=1e-4)
    assert wilson(0.0, 10) == pytest.approx((0.0, 0.2775), abs=1e-4)
    assert wilson(1.0, 500) == pytest.approx((0.9924, 1.0), abs=1e-4)


def test_the_interval_has_the_share_in_it_whatever_is_rounded() -> None:
    for num in range(1, 2001):
        for share in (0.0, 1 / num, (num - 1) / num, 1.0):
            low, high = wilson(share, num)
            assert 0.0 <= low <= share <= high <= 1.0, (share, num)


@pytest.mark.parametrize(("samples", "resolved", "k"), [(2, 3, 1), (2, 1, 3), (2, 1, 0)])
def test_what_cannot_be_is_refused(samples: int, resolved: int, k: int) -> None:
    with pytest.raises(ValueError, match="pass@"):
        pass_at_k(samples, resolved, k)


def test_nothing_played_gives_nothing() -> None:
    assert pass_at_each_k([]) == []
