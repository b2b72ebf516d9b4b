"""Tasks with three bugs, and an agent that is shown one issue after the other.

A task joins three of the bundled ones: their broken modules, and the tests of these; it is solved
when all bugs are fixed. A rollout has three turns for each issue, and each issue begins a branch:
the policy is asked as in a bundled task.
"""

import random
import re
from collections.abc import Iterator, Sequence

from bundled.generator import TEST_FILE, Split, TaskInstance, draw_instance
from infra.sources.protocol import ImportOptions, Place, SourceRow
from mainspring.agents.bash import has_submitted
from mainspring.agents.bundled import BundledAgent
from mainspring.agents.record import Record
from mainspring.config.agents.agent import AgentConfig
from mainspring.ids import TaskId
from mainspring.programs.request import ChatMessage, ModelRequest, Role
from mainspring.tasks.swe_task import SweTask
from mainspring.tasks.task import Task
from mainspring.trajectories.turns import Execution

SOURCE = "three-bugs"
NUM_BUGS = 3
SIZES: dict[Split, int] = {"train": 256, "heldout": 64}
NUM_TURNS = 3
"""Turns for an issue: read the module, edit it, submit."""


class ThreeBugs:
    """A task source: the same tasks each time."""

    def __init__(self, options: ImportOptions) -> None:
        self._split = options.split

    def rows(self) -> Iterator[SourceRow]:
        for split in SIZES:
            if self._split in (None, split):
                for number, parts in enumerate(together(split)):
                    task = joined(parts, f"{SOURCE}-{split}-{number:05d}")
                    yield SourceRow(Place(split, number + 1), task.id, task)


def together(split: Split) -> list[list[TaskInstance]]:
    """For each task the bundled ones that it joins: no two break the same module."""
    rng = random.Random(f"{SOURCE}/{split}")
    found: list[list[TaskInstance]] = []
    while len(found) < SIZES[split]:
        parts = [draw_instance(rng, split, SOURCE) for _ in range(NUM_BUGS)]
        if len({part.module for part in parts}) == NUM_BUGS:
            found.append(parts)
    return found


def joined(parts: Sequence[TaskInstance], name: str) -> SweTask:
    return parts[0].task.model_copy(
        update={
            "id": TaskId(name),
            "source": SOURCE,
            "issue": "\n".join(part.task.issue for part in parts),
            "files": {part.module: part.task.files[part.module] for part in parts},
            "tests": {TEST_FILE: "".join(map(tests_of_broken, parts))},
            "metadata": {},
        }
    )


def tests_of_broken(part: TaskInstance) -> str:
    """The lines of its tests that are about the broken function."""
    function = part.task.issue.split("`")[1]
    lines = part.task.tests[TEST_FILE].splitlines(keepends=True)
    return "".join(line for line in lines if re.search(rf"\b{function}\b", line))


class OneByOne(BundledAgent):
    appends = False

    def __init__(self, config: AgentConfig) -> None:
        super().__init__(config)
        self._last_turn = config.step_limit - 1

    def request(self, task: Task, record: Record) -> ModelRequest:
        issues = task.issue.split("\n")
        number = min(len(record.calls) // NUM_TURNS, len(issues) - 1)
        opening = self.opening(task.model_copy(update={"issue": issues[number]}))
        messages = [ChatMessage(role=Role(each["role"]), text=each["content"]) for each in opening]
        for call in record.calls[number * NUM_TURNS :]:
            messages += self.turn(call, record.ran(call.number))
        return ModelRequest(messages=tuple(messages))

    def is_done(self, execution: Execution) -> bool:
        return execution.call == self._last_turn and has_submitted(execution)
