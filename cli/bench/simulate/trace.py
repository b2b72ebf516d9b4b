"""The trace: how many turns a rollout takes, how long each one is, when its machine dies. Pure.

Invariant: a draw is a function of the seed and of what it is drawn for, never of the order in which
draws are asked for; so settings that are compared play the same rollouts. Means of turns and of
their times are those that DeepSWE published; the shapes of the distributions are assumptions.
"""

import math
import random
from dataclasses import dataclass
from functools import cache, lru_cache
from statistics import NormalDist

MEAN_TURNS = 64.8
MAX_TURNS = 250
TURNS_SIGMA = 0.8
"""Sigma of the logarithm: half of the rollouts end by turn 48, and 2 of 100 reach the last one."""
MEAN_MODEL_S = 47.0
MODEL_SIGMA = 0.5
"""Sigma of the logarithm of one reply's time."""
MEAN_COMMAND_S = 0.6
"""Exponential."""
SOLVED = 0.4
"""Share of the rollouts that resolve their task."""


@dataclass(frozen=True, slots=True)
class TraceTurn:
    model_s: float
    command_s: float

    @property
    def spent_s(self) -> float:
        return self.model_s + self.command_s


@lru_cache(maxsize=20_000)
def turns(seed: int, sample: str) -> tuple[TraceTurn, ...]:
    """Turns of one try at a task."""
    draw = random.Random(f"{seed} turns {sample}")
    number = min(MAX_TURNS, max(1, round(draw.lognormvariate(_turns_mu(), TURNS_SIGMA))))
    model_mu = math.log(MEAN_MODEL_S) - MODEL_SIGMA**2 / 2
    return tuple(
        TraceTurn(draw.lognormvariate(model_mu, MODEL_SIGMA), draw.expovariate(1 / MEAN_COMMAND_S))
        for _ in range(number)
    )


def is_solved(seed: int, sample: str) -> bool:
    return random.Random(f"{seed} solved {sample}").random() < SOLVED


def lifetime_s(seed: int, machine: str, mean_s: float | None) -> float:
    """How long a machine lives, with exponential lifetimes; None: it does not die."""
    if mean_s is None:
        return math.inf
    return random.Random(f"{seed} machine {machine}").expovariate(1 / mean_s)


@cache
def _turns_mu() -> float:
    """Mean of the logarithm, so that the mean of the numbers cut at MAX_TURNS is MEAN_TURNS."""
    low, high = 0.0, math.log(MAX_TURNS)
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if _cut_mean(middle) < MEAN_TURNS else (low, middle)
    return low


def _cut_mean(mu: float) -> float:
    """Mean of a lognormal number that is cut at MAX_TURNS."""
    below = NormalDist().cdf((math.log(MAX_TURNS) - mu) / TURNS_SIGMA)
    weighted = NormalDist().cdf((math.log(MAX_TURNS) - mu) / TURNS_SIGMA - TURNS_SIGMA)
    return math.exp(mu + TURNS_SIGMA**2 / 2) * weighted + MAX_TURNS * (1 - below)
