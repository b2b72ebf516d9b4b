"""GRPO's advantages: rewards minus the group's mean, divided by its standard deviation.

Source: arXiv 2402.03300. Masked rollouts (infrastructure faults, cancellations) enter neither the
mean nor the deviation. With `std = "unbiased"` equals verl's "grpo" and slime's.
"""

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from mainspring.algorithms.advantages.dr_grpo import dr_grpo
from mainspring.algorithms.equal_rewards import is_flat
from mainspring.config.trainer import TrainerConfig
from mainspring.config.training.algorithm import Std

STD_EPS: Mapping[Std, float] = MappingProxyType({Std.POPULATION: 1e-4, Std.UNBIASED: 1e-6})


def grpo(rewards_G: Sequence[float | None], trainer: TrainerConfig) -> list[float | None]:
    """A group whose scored rewards are all equal, or with a single one, gives exact zeros. With
    `std = "none"` nothing is divided: then it is `dr_grpo`."""
    scored = [reward for reward in rewards_G if reward is not None]
    if is_flat(scored) or trainer.std is Std.NONE:
        return dr_grpo(rewards_G, trainer)
    advantages = iter(compared([[reward] for reward in scored], trainer))
    return [None if reward is None else next(advantages)[0] for reward in rewards_G]


def compared(
    scores_RN: Sequence[Sequence[float]], trainer: TrainerConfig, std_eps: float | None = None
) -> list[list[float]]:
    """Scores of R rollouts, N > 0 each, compared: minus their mean, divided by their deviation as
    `trainer.std` has it. A rollout counts once in both, however many scores it has. Scores that are
    all equal, or of a single rollout, give exact zeros. `std_eps`: added to the deviation; None: as
    `STD_EPS` has it."""
    together = [score for scores_N in scores_RN for score in scores_N]
    if is_flat(together) or len(scores_RN) < 2:
        return [[0.0] * len(scores_N) for scores_N in scores_RN]
    mean = sum(sum(scores_N) / len(scores_N) for scores_N in scores_RN) / len(scores_RN)
    if trainer.std is Std.NONE:
        return [[score - mean for score in scores_N] for scores_N in scores_RN]
    num_free = len(scores_RN) - (trainer.std is Std.UNBIASED)
    squares = (sum((s - mean) ** 2 for s in scores_N) / len(scores_N) for scores_N in scores_RN)
    scale = (sum(squares) / num_free) ** 0.5 + (
        STD_EPS[trainer.std] if std_eps is None else std_eps
    )
    return [[(score - mean) / scale for score in scores_N] for scores_N in scores_RN]
