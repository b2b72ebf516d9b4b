"""A curriculum: which task the next training group gets.

Invariants: pure, and deterministic in what it is given; asked once for a group, when it is stored,
so an answer that would differ later changes nothing. Imported by the curricula and by
`mainspring.curricula.choice`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from mainspring.config.campaign import CampaignConfig


@dataclass(frozen=True, slots=True)
class TaskHistory:
    """The campaign's record of one of its tasks."""

    num_scored: int = 0
    """Rollouts with a reward, in the newest `curriculum.recent_groups` groups of the task."""
    num_solved: int = 0
    """Those of them that solved it."""
    num_running: int = 0
    """Groups of it in flight."""

    @property
    def solve_rate(self) -> float | None:
        """None before a rollout was scored."""
        return self.num_solved / self.num_scored if self.num_scored else None


class Curriculum(Protocol):
    def __call__(
        self, tasks_N: Sequence[TaskHistory], draw: int, campaign: CampaignConfig, /
    ) -> int:
        """Position of the task, 0 to N - 1, for the training group number `draw` (from 0)."""
        ...
