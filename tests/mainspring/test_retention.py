"""Which policy versions stay on disk."""

from hypothesis import given
from hypothesis import strategies as st

from mainspring.artifacts.retention import StoredVersion, kept_versions


def stored(rates: dict[int, float], num: int = 9, every: int = 1) -> list[StoredVersion]:
    return [StoredVersion(n, n % every == 0, rates.get(n)) for n in range(num)]


def test_the_newest_checkpoints_and_versions_stay() -> None:
    assert kept_versions(stored({}), 2, 0) == {0, 7, 8}
    assert kept_versions(stored({}, every=4), 1, 0) == {0, 8}
    assert kept_versions(stored({}, num=8, every=4), 1, 0) == {0, 4, 7}
    assert kept_versions(stored({}, num=8, every=3), 2, 0) == {0, 3, 6, 7}


def test_those_that_solved_most_stay_and_of_equal_ones_the_newer() -> None:
    rates = {1: 0.5, 3: 0.9, 4: 0.5, 5: 0.1}
    assert kept_versions(stored(rates), 1, 0) == {0, 8}
    assert kept_versions(stored(rates), 1, 1) == {0, 3, 8}
    assert kept_versions(stored(rates), 1, 2) == {0, 3, 4, 8}


def test_a_version_whose_evaluation_has_not_ended_may_become_the_best() -> None:
    versions = stored({1: 0.5})
    versions[2] = StoredVersion(2, True, is_evaluated_now=True)
    assert kept_versions(versions, 1, 1) == {0, 1, 2, 8}
    assert kept_versions(versions, 1, 0) == {0, 8}


@given(
    num=st.integers(1, 40),
    every=st.integers(1, 7),
    keep=st.integers(1, 5),
    best=st.integers(0, 3),
    rates=st.dictionaries(st.integers(0, 39), st.floats(0, 1)),
)
def test_training_can_always_resume(num, every, keep, best, rates) -> None:
    versions = stored(rates, num, every)
    kept = kept_versions(versions, keep, best)
    assert {0, num - 1, max(n for n in range(num) if n % every == 0)} <= kept
    assert kept <= set(range(num))
