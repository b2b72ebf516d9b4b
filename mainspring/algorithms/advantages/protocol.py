"""An advantage estimator: how much better each rollout of a group was than the group.

Invariants: pure and deterministic, because a step that is repeated after a crash must train on the
same batch; a masked rollout (reward None) has the advantage None and moves no other one's. Imported
by the estimators and by `mainspring.algorithms.choice`.
"""

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from mainspring.config.trainer import TrainerConfig
from mainspring.trajectories.turn_places import TurnPlace


class AdvantageEstimator(Protocol):
    def __call__(
        self, rewards_G: Sequence[float | None], trainer: TrainerConfig, /
    ) -> Sequence[float | None]:
        """[G] advantages from the [G] rewards of one group. A rollout whose advantage is 0 has no
        gradient and is not trained on."""
        ...


@runtime_checkable
class BatchEstimator(AdvantageEstimator, Protocol):
    """One that also compares the groups of a batch with each other."""

    def over_batch(
        self, advantages_NG: Sequence[Sequence[float | None]], trainer: TrainerConfig, /
    ) -> Sequence[Sequence[float | None]]:
        """The advantages of each group, from those that each call gave for its group."""
        ...


@runtime_checkable
class TurnEstimator(AdvantageEstimator, Protocol):
    """One that gives each turn an advantage of its own; it is asked for these alone."""

    def of_turns(
        self,
        rewards_G: Sequence[float | None],
        turns_GN: Sequence[Sequence[TurnPlace]],
        trainer: TrainerConfig,
        /,
    ) -> Sequence[Sequence[float] | None]:
        """Advantages of each rollout of a group, one for each of its N trained turns, in their
        order; None for a masked rollout, whose turns move no other one's. `rewards_G`: without the
        parts of the reward that are given to turns, which are `turn.reward`."""
        ...
