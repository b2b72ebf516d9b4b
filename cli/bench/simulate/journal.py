"""Events of a simulated campaign, in simulated unix seconds. Written by `fleet` alone.

Invariant: an activity that runs twice writes the same key, and its first entry stands; slices of a
life become one entry.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from cli.bench.simulate.lives import Life
from mainspring.ids import RolloutId


@dataclass(frozen=True, slots=True)
class PlayedLife:
    life: Life
    began_s: float
    """When the first of its turns began."""


@dataclass(slots=True)
class Journal:
    played: dict[RolloutId, dict[tuple[int, int], PlayedLife]] = field(default_factory=dict)
    """By epoch and number of the life. A machine that died in a replay has none."""
    trained: dict[int, float] = field(default_factory=dict)
    """When each step ended."""
    published: dict[int, float] = field(default_factory=dict)
    """Since when each policy version is served."""

    on_step: Callable[[int], None] = lambda step: None
    """Told each step when it is done."""

    def turns_played(self, rollout: RolloutId, epoch: int, number: int, played: PlayedLife) -> None:
        lives = self.played.setdefault(rollout, {})
        before = lives.setdefault((epoch, number), played)
        if played.life.last > before.life.last:
            # Played in slices, one after the other.
            lives[epoch, number] = replace(before, life=replace(before.life, last=played.life.last))

    def step_ended(self, step: int, at_s: float) -> None:
        self.trained.setdefault(step, at_s)
        self.on_step(step)

    def lives(self, rollout: RolloutId, epoch: int) -> list[PlayedLife]:
        """In their order."""
        lives = self.played[rollout]
        return [lives[key] for key in sorted(lives) if key[0] == epoch]

    @property
    def simulated_s(self) -> float:
        """From the first turn to the last one that began, or the last step that ended."""
        begins_s = [life.began_s for lives in self.played.values() for life in lives.values()]
        return max([*begins_s, *self.trained.values()]) - min(begins_s) if begins_s else 0.0

    def version_at(self, moment_s: float) -> int:
        """The policy version that engines serve then."""
        return max((v for v, since_s in self.published.items() if since_s <= moment_s), default=0)
