"""Choices of an evaluation among the rollouts of each task, from what is stored of them.

Owns what is read of a rollout to choose by, and what an evaluation tells of its choices. Imported
by the export of evaluations.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from infra.db.database import Database
from infra.db.rollouts import cross_tests as stored
from mainspring.config.agents.judges import JudgeScope
from mainspring.config.evaluations.choosing import ChooseBy, ChooseConfig
from mainspring.rewards.choosing import (
    Candidate,
    chosen_at_each_n,
    cross_tests,
    passes_tests,
    result_of,
)
from mainspring.rewards.written_tests import WrittenPatch, counting, written
from mainspring.tasks.swe_task import SweTask
from reports.export.trajectory import Trajectory


@dataclass(frozen=True, slots=True)
class Ended:
    """A scored rollout, as far as it is chosen by."""

    candidate: Candidate
    written: WrittenPatch = field(default_factory=lambda: WrittenPatch(b""))


async def read_end(database: Database, trajectory: Trajectory, choose: ChooseConfig) -> Ended:
    """Read of one rollout what the choice needs."""
    parts = trajectory.rollout.reward_parts or {}
    commands = [(each.command, each.returncode) for each in trajectory.executions]
    if choose.by is not ChooseBy.CROSS_TESTS or not isinstance(trajectory.task, SweTask):
        return Ended(
            Candidate(
                is_resolved=trajectory.attempt.is_resolved,
                result=result_of(trajectory.patch),
                score=parts.get(f"judge.{choose.judge}.{JudgeScope.ROLLOUT}"),
                passes=passes_tests(commands),
            )
        )
    rollout = trajectory.rollout
    seen = written(
        trajectory.patch, [command for command, _ in commands], trajectory.task.test_command
    )
    exits: dict[bool, dict[str, int | None]] = {True: {}, False: {}}
    for each in await stored.results(database, rollout.id, rollout.epoch):
        exits[each.without_patch][each.test] = each.exit_code
    candidate = Candidate(
        is_resolved=trajectory.attempt.is_resolved,
        result=result_of(seen.program),
        exits=exits[False],
        before=exits[True],
    )
    return Ended(candidate, seen)


def choices(tasks: Sequence[Sequence[Ended]], choose: ChooseConfig) -> dict[str, Any]:
    """Figures of the summary. `tasks`: the scored rollouts of each, in the order of samples."""
    compared = [_compared(task, choose) for task in tasks]
    at_each_n = chosen_at_each_n(compared, choose.by)
    figures: dict[str, Any] = {
        "chosen_by": choose.by if choose.judge is None else f"judge {choose.judge}",
        "chosen_at_n": [asdict(estimate) for estimate in at_each_n],
    }
    if choose.by is ChooseBy.CROSS_TESTS:
        figures["cross_tests"] = _told(tasks, compared)
    return figures


def _compared(task: Sequence[Ended], choose: ChooseConfig) -> list[Candidate]:
    """The candidates with the tests that count of each."""
    of_each = counting([each.written for each in task], choose.tests_per_rollout, choose.max_tests)
    before = {
        test: code
        for each in task
        for test, code in each.candidate.before.items()
        if code is not None
    }
    compared: list[Candidate] = []
    for each, tests in zip(task, of_each, strict=True):
        known = each.candidate
        wrote = tuple(test.digest for test in tests)
        # Without a program's part it is the original code.
        exits: Mapping[str, int | None] = known.exits if each.written.program else before
        compared.append(
            Candidate(
                known.is_resolved, known.result, known.score, known.passes, wrote, exits, before
            )
        )
    return compared


def _told(tasks: Sequence[Sequence[Ended]], compared: Sequence[list[Candidate]]) -> dict[str, int]:
    """How many tests there were, and for how many tasks they told nothing."""
    told = [cross_tests(candidates) for candidates in compared]
    kinds = ("reproducing", "regression", "failing", "not_compared")
    counts = {kind: sum(len(getattr(each, kind)) for each in told) for kind in kinds}
    written_by_all = [each.written for task in tasks for each in task]
    return {
        "tasks": len(tasks),
        "tasks_without_tests": sum(not any(each.wrote for each in task) for task in compared),
        "tasks_by_majority": sum(not (each.reproducing or each.regression) for each in told),
        **counts,
        "without_command": sum(each.num_without_command for each in written_by_all),
    }
