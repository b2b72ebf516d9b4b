"""Use of a group once all its rollouts have ended: pure arithmetic on their rewards.

Invariant: a group that a step may use has enough scored rollouts, and the campaign's filter lets it
through: by default its rewards differ, as an advantage is a comparison within the group.
"""

from collections.abc import Sequence

from mainspring.algorithms.choice import is_usable
from mainspring.config.trainer import TrainerConfig
from mainspring.status import GroupKind, GroupStatus


def closing_status(
    rewards: Sequence[float | None], kind: GroupKind, trainer: TrainerConfig
) -> GroupStatus:
    """READY, MASKED or FLAT. None is a rollout without a reward. An evaluation is compared with
    nothing: one scored rollout is enough. Raises AlgorithmBroken."""
    scored = [reward for reward in rewards if reward is not None]
    if kind is not GroupKind.TRAIN:
        return GroupStatus.READY if scored else GroupStatus.MASKED
    enough = max(2, len(rewards) // 2) if trainer.min_scored is None else trainer.min_scored
    if len(scored) < min(enough, len(rewards)):
        return GroupStatus.MASKED
    return GroupStatus.READY if is_usable(rewards, trainer) else GroupStatus.FLAT
