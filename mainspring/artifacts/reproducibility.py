"""Fingerprints to compare two campaigns by, and reasons why one may not repeat bit for bit. Pure.

Invariant: a fingerprint holds no name of its campaign and no time, so that two campaigns with one
configuration and one seed have equal ones.
"""

from enum import StrEnum
from typing import Any

from pydantic import BaseModel, ConfigDict


class Cause(StrEnum):
    """Why a step need not come out the same a second time."""

    MASKED = "masked"
    """A fault masked a rollout of the batch after it was played again; without it the batch would
    have one more sample."""
    REPLACED = "replaced"
    """A group was masked time after time, and another task took its place."""
    DISCARDED = "discarded"
    """An operator discarded a group."""
    WALL_TIME = "wall_time"
    """A rollout of the batch used up its time, which depends on the machine."""
    COMMAND_TIMEOUT = "command_timeout"
    """A command of the batch was killed at its timeout."""
    DIVERGED = "diverged"
    """A command gave another output in a rebuilt sandbox, and the rollout began anew."""


class Deviation(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    step: int
    """The step whose batch it is in, or would have been in."""
    cause: Cause
    group: str
    rollout: str | None = None
    """None: the whole group."""


class StepFingerprint(BaseModel):
    """SHA-256 of what went into a step and of what came out; None where it was not recorded."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    step: int
    batch: str | None
    """Digest of the samples in their order: tokens, log-probs, policy versions, advantages."""
    gradient: str | None
    """Digest of the reduced gradient of each update, before clipping."""
    weights: str | None
    """Digest of the policy version that the step made, as exported."""
    calls: dict[str, str] | None = None
    """Digest of each call of the batch, by "place.rollout.call"; None: not asked for."""


class ChangeFingerprint(BaseModel):
    """A change of the campaign that its weights follow from."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    field: str
    value: Any
    from_step: int


class CampaignFingerprint(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    campaign: str
    schedule: str
    weights: str | None
    """Digest of the newest policy version."""
    base_weights: str | None
    """Digest of version 0, before any step."""
    steps: list[StepFingerprint]
    """In order."""
    deviations: list[Deviation]
    """In order of their steps."""
    changes: list[ChangeFingerprint] = []
    """In the order in which they were made."""

    @property
    def not_reproducible_from(self) -> int | None:
        """The first step that need not come out the same a second time."""
        return min((deviation.step for deviation in self.deviations), default=None)

    def difference(self, other: "CampaignFingerprint") -> str | None:
        """The first thing in which two campaigns differ, in words; None when they are equal as far
        as both have come."""
        if self.base_weights != other.base_weights:
            return f"the weights before the first step: {_both(self, other, 'base_weights')}"
        others = {step.step: step for step in other.steps}
        common = ((step, others[step.step]) for step in self.steps if step.step in others)
        for step, other_step in common:
            changed = self._changed(other, step.step)
            if step.batch != other_step.batch:
                where = _first_call(step, other_step) or _both(step, other_step, "batch")
                return f"step {step.step}, its batch: {where}{changed}"
            for part in ("gradient", "weights"):
                if getattr(step, part) != getattr(other_step, part):
                    both = _both(step, other_step, part)
                    return f"step {step.step}, its {part}: {both}{changed}"
        return None

    def _changed(self, other: "CampaignFingerprint", step: int) -> str:
        """A sentence where changes that count for a step are not those of the other campaign."""
        here, there = (
            sorted((c.from_step, c.field, str(c.value)) for c in of.changes if c.from_step <= step)
            for of in (self, other)
        )
        return "" if here == there else "; other changes count for this step"


def _first_call(step: StepFingerprint, other: StepFingerprint) -> str | None:
    if step.calls is None or other.calls is None:
        return None
    for call in sorted(step.calls.keys() | other.calls.keys(), key=_numbers):
        here, there = step.calls.get(call), other.calls.get(call)
        if here != there:
            place, rollout, number = _numbers(call)
            where = f"place {place}, rollout {rollout}, call {number}"
            if here is None or there is None:
                return f"{where}: only one of the two campaigns has it"
            return f"{where}: {here[:12]} and {there[:12]}"
    return "the calls are equal; rewards or their order differ"


def _numbers(call: str) -> tuple[int, ...]:
    return tuple(int(part) for part in call.split("."))


def _both(first: object, second: object, part: str) -> str:
    here, there = getattr(first, part), getattr(second, part)
    return f"{_short(here)} and {_short(there)}"


def _short(digest: str | None) -> str:
    return "not recorded" if digest is None else digest[:12]
