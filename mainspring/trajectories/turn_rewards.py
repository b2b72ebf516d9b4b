"""A rollout's reward taken apart: what its turns were given, and what is left for its end. Pure.

Invariants: rewards are keyed by the call that begins the turn, never by their order; a turn whose
reward is missing has None and is no zero. Made by `mainspring.rewards.scoring`, stored with the
rollout, read by what makes a step's batch.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self


@dataclass(frozen=True, slots=True)
class TurnRewards:
    of_end: float
    """The reward of the rollout without the parts that are rewards of turns."""
    by_call: Mapping[int, float | None] = field(default_factory=dict)
    """Weighted sum of a turn's rewards, by its call; None: one of them is missing. Turns that are
    not here were given none."""

    def of(self, call: int) -> float | None:
        return self.by_call.get(call, 0.0)

    def stored(self) -> dict[str, Any]:
        turns = {str(call): self.by_call[call] for call in sorted(self.by_call)}
        return {"of_end": self.of_end, "turns": turns}

    @classmethod
    def of_stored(cls, stored: Mapping[str, Any]) -> Self:
        return cls(stored["of_end"], {int(call): r for call, r in stored["turns"].items()})
