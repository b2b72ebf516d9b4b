"""A campaign's numbers as lines of JSON: one a training step, one an evaluation.

Invariants: flat objects with numbers under fixed names, null where nothing was measured; in order
of policy version, a version's evaluations after the step that made it. What a tracker needs and
nothing about how it shows it.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from infra.db.reading.evaluations import Evaluation
from infra.db.reading.trained_steps import Composition, Lengths, Step


class Measured(Protocol):
    """Data that lines are made of; a report's data has it."""

    @property
    def campaign(self) -> str: ...

    @property
    def steps(self) -> Sequence[Step]: ...

    @property
    def lengths(self) -> Sequence[Lengths]: ...

    @property
    def compositions(self) -> Sequence[Composition]: ...

    @property
    def evaluations(self) -> Sequence[Evaluation]: ...


@dataclass(frozen=True, slots=True)
class StepFigures:
    """Those that lines are made of, and nothing else."""

    campaign: str
    steps: Sequence[Step]
    lengths: Sequence[Lengths] = ()
    compositions: Sequence[Composition] = ()
    evaluations: Sequence[Evaluation] = ()


def lines(data: Measured) -> Iterator[dict[str, Any]]:
    evaluations = sorted(
        data.evaluations, key=lambda evaluation: (evaluation.version, evaluation.split)
    )
    # A loss's figures are missing where a step had no token to measure them on.
    names = sorted({name for step in data.steps for name in step.metrics})
    steps = {step.step: step for step in data.steps}
    lengths = {each.step: each for each in data.lengths}
    compositions = {each.step: each for each in data.compositions}
    for version in sorted(steps.keys() | {evaluation.version for evaluation in evaluations}):
        if version in steps:
            of_step = lengths.get(version), compositions.get(version)
            yield _step(data.campaign, steps[version], names, *of_step)
        for measured in evaluations:
            if measured.version == version:
                yield _evaluation(data, measured)


def _step(
    campaign: str,
    step: Step,
    names: list[str],
    lengths: Lengths | None,
    composed: Composition | None,
) -> dict[str, Any]:
    parts = composed.parts if composed else {}
    return {
        "kind": "step",
        "campaign": campaign,
        "step": step.step,
        "policy_version": step.step,
        "time": step.finished_at.isoformat() if step.finished_at else None,
        **{name: _finite(step.metrics.get(name)) for name in names},
        "resolve_rate": step.solve_rate,
        "all_zero_groups": step.all_zero_groups,
        "all_one_groups": step.all_one_groups,
        "masked_rollouts": step.masked_rollouts,
        "turns_mean": lengths.num_turns if lengths else None,
        "sampled_tokens_mean": lengths.num_tokens if lengths else None,
        "suspicious_share": composed.suspicious if composed else None,
        **{f"reward_part/{name}": _finite(value) for name, value in sorted(parts.items())},
    }


def _evaluation(data: Measured, evaluation: Evaluation) -> dict[str, Any]:
    return {
        "kind": "evaluation",
        "campaign": data.campaign,
        "step": evaluation.version,
        "policy_version": evaluation.version,
        "time": evaluation.finished_at.isoformat() if evaluation.finished_at else None,
        "split": evaluation.split,
        "sampling": str(evaluation.sampling),
        "num_tasks": evaluation.num_tasks,
        "num_resolved": evaluation.num_resolved,
        "num_masked": evaluation.num_masked,
        "resolve_rate": evaluation.solve_rate,
    }


def _finite(value: float | None) -> float | None:
    """JSON has no NaN."""
    return value if value is None or math.isfinite(value) else None
