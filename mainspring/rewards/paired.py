"""Two evaluations compared task by task: who solved what, and how sure their difference is. Pure.

Masked rollouts are no failures: they are left out, and a task without a scored rollout on either
side is no pair. With one rollout of each task the interval is Bonett and Price's (2012) for paired
shares (two are added to the discordant tasks, so it is never empty), and McNemar's exact test is
the sign test of the discordant tasks. With several rollouts of a task its mean is what is paired,
because samples of one task are not independent; then the interval is a bootstrap over tasks, from
a fixed seed.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import compress
from math import comb, sqrt
from typing import Literal

from mainspring.rewards.passk import Z_95

NUM_RESAMPLES = 10_000
_SEED = 0
Method = Literal["bonett-price", "bootstrap"]


@dataclass(frozen=True, slots=True)
class TaskTally:
    """One task's rollouts of one evaluation."""

    num_solved: int = 0
    num_scored: int = 0
    num_masked: int = 0
    num_unfinished: int = 0

    @property
    def num_rollouts(self) -> int:
        return self.num_scored + self.num_masked + self.num_unfinished

    @property
    def rate(self) -> Fraction:
        return Fraction(self.num_solved, self.num_scored)


@dataclass(frozen=True, slots=True)
class TaskPair:
    task: str
    a: TaskTally
    b: TaskTally

    @property
    def difference(self) -> Fraction:
        return self.b.rate - self.a.rate


@dataclass(frozen=True, slots=True)
class Paired:
    pairs: tuple[TaskPair, ...]
    """Common tasks with a scored rollout on both sides, by id."""
    unscored: tuple[str, ...]
    """Common tasks that lack one."""
    only_in_a: tuple[str, ...]
    """Tasks that the other evaluation does not have."""
    only_in_b: tuple[str, ...]
    a: TaskTally
    """The rollouts of the common tasks together."""
    b: TaskTally
    by_means: bool
    """Whether tasks have several rollouts."""

    @property
    def solve_rates(self) -> tuple[float, float]:
        """Mean over the pairs of each side."""
        num = len(self.pairs)
        of_a, of_b = (sum(pair.a.rate for pair in self.pairs), sum(p.b.rate for p in self.pairs))
        return float(of_a / num), float(of_b / num)

    @property
    def difference(self) -> float:
        """Solve rate of B less that of A."""
        return float(sum(pair.difference for pair in self.pairs) / len(self.pairs))

    @property
    def better_in_a(self) -> tuple[TaskPair, ...]:
        return tuple(pair for pair in self.pairs if pair.difference < 0)

    @property
    def better_in_b(self) -> tuple[TaskPair, ...]:
        return tuple(pair for pair in self.pairs if pair.difference > 0)

    @property
    def method(self) -> Method:
        """Way in which the interval is made."""
        return "bootstrap" if self.by_means else "bonett-price"

    @property
    def interval(self) -> tuple[float, float] | None:
        """The 95 % interval of the difference. None where every task differs by as much: a
        bootstrap has nothing to draw from."""
        if not self.by_means:
            return bonett_price(len(self.better_in_a), len(self.better_in_b), len(self.pairs))
        return bootstrap([float(pair.difference) for pair in self.pairs])

    @property
    def p_value(self) -> float | None:
        """McNemar's exact test; None with several rollouts of a task."""
        return None if self.by_means else mcnemar(len(self.better_in_a), len(self.better_in_b))


def paired(a: Mapping[str, TaskTally], b: Mapping[str, TaskTally]) -> Paired:
    """Rollouts by task of both evaluations."""
    common = sorted(a.keys() & b.keys())
    pairs = [TaskPair(task, a[task], b[task]) for task in common]
    has_both = [pair.a.num_scored > 0 and pair.b.num_scored > 0 for pair in pairs]
    most = max((each.num_rollouts for pair in pairs for each in (pair.a, pair.b)), default=0)
    return Paired(
        pairs=tuple(compress(pairs, has_both)),
        unscored=tuple(pair.task for pair, both in zip(pairs, has_both, strict=True) if not both),
        only_in_a=tuple(sorted(a.keys() - b.keys())),
        only_in_b=tuple(sorted(b.keys() - a.keys())),
        a=_together([pair.a for pair in pairs]),
        b=_together([pair.b for pair in pairs]),
        by_means=most > 1,
    )


def mcnemar(only_a: int, only_b: int) -> float:
    """Two-sided exact p of McNemar's test: how often a fair coin is at least as uneven."""
    num = only_a + only_b
    tail = sum(comb(num, k) for k in range(min(only_a, only_b) + 1))
    return min(1.0, 2 * tail / 2**num)


def bonett_price(only_a: int, only_b: int, num: int) -> tuple[float, float]:
    """The 95 % interval of share B less share A of `num` pairs."""
    share_a, share_b = (only_a + 1) / (num + 2), (only_b + 1) / (num + 2)
    middle = share_b - share_a
    half = Z_95 * sqrt((share_a + share_b - middle**2) / (num + 2))
    return max(-1.0, middle - half), min(1.0, middle + half)


def bootstrap(differences: Sequence[float]) -> tuple[float, float] | None:
    """The 95 % percentile interval of their mean; None where they are all the same."""
    if len(set(differences)) < 2:
        return None
    # Tasks with the same difference are drawn together: they are few kinds, however many tasks.
    import numpy as np  # slow to import, and listings read the tallies of this file

    kinds, numbers = np.unique(differences, return_counts=True)
    num = len(differences)
    drawn = np.random.default_rng(_SEED).multinomial(num, numbers / num, size=NUM_RESAMPLES)
    means = drawn @ kinds / num
    low, high = np.quantile(means, (0.025, 0.975))
    return float(low), float(high)


def _together(tallies: Sequence[TaskTally]) -> TaskTally:
    return TaskTally(
        sum(each.num_solved for each in tallies),
        sum(each.num_scored for each in tallies),
        sum(each.num_masked for each in tallies),
        sum(each.num_unfinished for each in tallies),
    )
