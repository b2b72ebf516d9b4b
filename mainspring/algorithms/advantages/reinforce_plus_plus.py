"""REINFORCE++'s advantages: rewards are normalised over the whole batch, not within each group.

Source: arXiv 2501.03262. The mean and the deviation are over the batch's scored rollouts, each of
which counts once; verl and slime whiten by the same formula over tokens, so that there a rollout
counts by its length.
"""

from collections.abc import Sequence

from mainspring.algorithms.advantages.dr_grpo import dr_grpo
from mainspring.algorithms.equal_rewards import is_flat
from mainspring.config.trainer import TrainerConfig

VARIANCE_EPS = 1e-8
"""Added to the variance, as verl has it."""


class ReinforcePlusPlus:
    def __call__(
        self, rewards_G: Sequence[float | None], trainer: TrainerConfig
    ) -> list[float | None]:
        return list(rewards_G)

    def over_batch(
        self, advantages_NG: Sequence[Sequence[float | None]], trainer: TrainerConfig
    ) -> list[list[float | None]]:
        """A batch whose scored rewards are all equal, or with a single one, gives exact zeros."""
        scored = [
            advantage for group in advantages_NG for advantage in group if advantage is not None
        ]
        if is_flat(scored):
            return [
                [None if advantage is None else 0.0 for advantage in group]
                for group in advantages_NG
            ]
        mean = self.centre(scored)
        variance = sum((advantage - mean) ** 2 for advantage in scored) / (len(scored) - 1)
        scale = (variance + VARIANCE_EPS) ** 0.5
        return [
            [None if advantage is None else (advantage - mean) / scale for advantage in group]
            for group in advantages_NG
        ]

    def centre(self, scored: Sequence[float]) -> float:
        return sum(scored) / len(scored)


class ReinforcePlusPlusBaseline(ReinforcePlusPlus):
    """With the group's mean as baseline: groups of equal rewards give exact zeros."""

    def __call__(
        self, rewards_G: Sequence[float | None], trainer: TrainerConfig
    ) -> list[float | None]:
        return dr_grpo(rewards_G, trainer)

    def centre(self, scored: Sequence[float]) -> float:
        """Every group has the mean 0; a computed one would only be rounding."""
        return 0.0


reinforce_plus_plus = ReinforcePlusPlus()
reinforce_plus_plus_baseline = ReinforcePlusPlusBaseline()
