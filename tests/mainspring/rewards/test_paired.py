"""Two evaluations paired by task: published values, coverage of the intervals, masked rollouts."""

import numpy as np
import pytest

from mainspring.rewards.paired import TaskTally, bonett_price, bootstrap, mcnemar, paired


def one(*solved: bool | None) -> dict[str, TaskTally]:
    """A rollout of each task; None: masked."""
    return {
        f"t{number}": TaskTally(num_masked=1)
        if each is None
        else TaskTally(num_solved=int(each), num_scored=1)
        for number, each in enumerate(solved)
    }


def test_a_table_of_published_pairs() -> None:
    """Airway reactivity before and after a transplant (Bentur et al. 2009): 7 and 1 of 21 pairs
    are discordant. Fagerland, Lydersen and Laake (2014) give the exact p and this interval."""
    before = one(*[True] * 8, *[False] * 13)
    after = one(True, *[False] * 7, True, *[False] * 12)
    found = paired(before, after)
    assert (len(found.better_in_a), len(found.better_in_b)) == (7, 1)
    assert found.p_value == pytest.approx(0.0703, abs=5e-5)
    assert found.difference == pytest.approx(-6 / 21)
    assert found.interval == pytest.approx((-0.508, -0.013), abs=1e-3)


def test_the_exact_p() -> None:
    assert mcnemar(0, 0) == 1.0 and mcnemar(3, 3) == 1.0
    assert mcnemar(1, 9) == mcnemar(9, 1) == pytest.approx(2 * 11 / 1024)
    assert 0 < mcnemar(0, 3000) < 1e-300 or mcnemar(0, 3000) == 0.0


@pytest.mark.parametrize(("only_a", "only_b"), [(0.1, 0.1), (0.05, 0.2), (0.01, 0.03), (0.4, 0.1)])
def test_the_interval_of_single_rollouts_covers(only_a: float, only_b: float) -> None:
    """Where few tasks differ it is wider than necessary, and never too narrow."""
    draw, num = np.random.default_rng(1), 80
    tables = draw.multinomial(num, [only_a, only_b, 1 - only_a - only_b], size=4000)
    ends = [bonett_price(int(a), int(b), num) for a, b, _ in tables]
    covered = np.mean([low <= only_b - only_a <= high for low, high in ends])
    assert 0.935 <= covered <= 0.995


def test_the_bootstrap_of_means_covers() -> None:
    """Tasks differ in how hard they are, and B solves each a little more often."""
    draw, num, gain = np.random.default_rng(2), 60, 0.1
    hits = 0
    for _ in range(200):
        hard = draw.uniform(0.05, 0.85, num)
        means = draw.binomial(4, hard + gain) / 4 - draw.binomial(4, hard) / 4
        interval = bootstrap(list(means))
        assert interval is not None
        hits += interval[0] <= gain <= interval[1]
    assert 178 <= hits <= 198


def test_equal_differences_have_no_bootstrap() -> None:
    assert bootstrap([0.25, 0.25]) is None


def test_masked_rollouts_are_no_failures() -> None:
    a = one(True, True, False, None, None)
    b = one(True, None, True, False, None)
    found = paired(a, b)
    assert [pair.task for pair in found.pairs] == ["t0", "t2"]
    assert found.unscored == ("t1", "t3", "t4")
    assert (found.a.num_masked, found.b.num_masked) == (2, 2)
    assert found.solve_rates == (0.5, 1.0) and found.difference == 0.5
    assert not found.by_means


def test_tasks_that_are_not_common_are_told() -> None:
    a, b = one(True, False, True), one(True, True)
    b["other"] = TaskTally(num_solved=1, num_scored=1)
    found = paired(a, b)
    assert (found.only_in_a, found.only_in_b) == (("t2",), ("other",))
    assert len(found.pairs) == 2 and found.a.num_scored == 2
    assert paired(one(True), {}).pairs == ()


def test_several_rollouts_are_paired_by_their_means() -> None:
    """A task with many rollouts weighs as much as one with few."""
    a = {"x": TaskTally(4, 4), "y": TaskTally(0, 1, num_masked=3)}
    b = {"x": TaskTally(2, 4), "y": TaskTally(1, 1)}
    found = paired(a, b)
    assert found.by_means and found.method == "bootstrap" and found.p_value is None
    assert found.solve_rates == (0.5, 0.75) and found.difference == 0.25
    assert [pair.task for pair in found.better_in_a] == ["x"]
    # One rollout that could be scored, of several: still a mean of several.
    assert paired({"y": a["y"]}, {"y": b["y"]}).by_means
