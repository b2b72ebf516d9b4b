"""A group filter: which groups a step may use, once all their rollouts have ended.

Invariants: pure and deterministic; asked once for a group, with enough scored rollouts
(`trainer.min_scored`), inside the transaction that closes it, so it reads no file and waits for
nothing. A group that is refused is flat: it is replaced. Imported by the filters and by
`mainspring.algorithms.choice`.
"""

from collections.abc import Sequence
from typing import Protocol

from mainspring.config.trainer import TrainerConfig


class GroupFilter(Protocol):
    def __call__(self, rewards_G: Sequence[float | None], trainer: TrainerConfig, /) -> bool:
        """Whether a step may use the group with these rewards; None: a masked rollout."""
        ...
