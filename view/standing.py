"""How a rollout stands, in one icon, one word and one kind of colour.

Pure. Imported by pages and `rendering`.
"""

from dataclasses import dataclass

from mainspring.status import RolloutPhase, StopReason, Verdict, is_masked

_ICONS = {"resolved": "\u25a0", "failed": "\u25a1", "masked": "\u25a8", "running": "\u25b7"}


@dataclass(frozen=True, slots=True)
class RolloutStanding:
    kind: str
    """resolved, failed, masked or running."""
    word: str

    @property
    def icon(self) -> str:
        return _ICONS[self.kind]


def standing(
    phase: RolloutPhase, stop_reason: StopReason | None, verdict: Verdict | None
) -> RolloutStanding:
    if phase is not RolloutPhase.DONE:
        return RolloutStanding("running", phase.value)
    if is_masked(stop_reason, verdict):
        return RolloutStanding("masked", "masked")
    if verdict is Verdict.RESOLVED:
        return RolloutStanding("resolved", "resolved")
    return RolloutStanding("failed", "not resolved" if verdict is None else _words(verdict))


def _words(verdict: Verdict) -> str:
    return verdict.value.replace("_", " ")
