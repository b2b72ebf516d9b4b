"""What a group is good for once all its rollouts have ended: pure arithmetic on their rewards.

Invariant: a group that a step may use has enough scored rollouts and, unless the campaign sets
otherwise, rewards that differ: an advantage is a comparison within the group.
"""

from collections.abc import Sequence

from mainspring.algorithms.advantages import is_flat
from mainspring.config.trainer import GroupFilter, TrainerConfig
from mainspring.status import GroupKind, GroupStatus


def closing_status(
    rewards: Sequence[float | None], kind: GroupKind, trainer: TrainerConfig
) -> GroupStatus:
    """READY, MASKED or FLAT. None is a rollout without a reward. An evaluation is compared with
    nothing: one scored rollout is enough."""
    scored = [reward for reward in rewards if reward is not None]
    if kind is not GroupKind.TRAIN:
        return GroupStatus.READY if scored else GroupStatus.MASKED
    enough = max(2, len(rewards) // 2) if trainer.min_scored is None else trainer.min_scored
    if len(scored) < min(enough, len(rewards)):
        return GroupStatus.MASKED
    if trainer.filter is GroupFilter.MIXED and is_flat(scored):
        return GroupStatus.FLAT
    return GroupStatus.READY
