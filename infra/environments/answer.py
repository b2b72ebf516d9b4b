"""The environment of tasks that are answered with a text (`mainspring.tasks.answer`).

Invariants: a world takes one action, which is the answer, and then is over; the verdict follows
from the stored answer and the task alone. Wrapped by `OwnEnvironment`; a class that a campaign file
names for the kind takes its place.
"""

from typing import Any

from mainspring.environments.protocol import (
    CommandResult,
    Finished,
    Judged,
    Place,
)
from mainspring.status import Verdict
from mainspring.tasks.answer import answers_of, final_answer, is_same
from mainspring.tasks.criterion import GradeReport
from mainspring.tasks.own_task import OwnTask

JUDGE = "answer"
_SHOWN_CHARS = 300


class AnswerWorld:
    def __init__(self) -> None:
        self._answer = ""

    async def step(self, step_id: str, command: str, timeout_s: float) -> CommandResult:
        self._answer = command
        return CommandResult(0, b"", is_over=True)

    async def finish(self) -> Finished:
        if not self._answer.strip():
            return Finished(b"", "no answer was given")
        return Finished(self._answer.encode(errors="replace"))

    async def close(self) -> None:
        """It holds nothing."""


class AnswerEnvironment:
    def __init__(self, backends: Any) -> None:
        """Takes the node's sandbox backends, as every environment, and needs none."""

    async def open(self, task: OwnTask, place: Place) -> AnswerWorld:
        return AnswerWorld()

    async def grade(self, task: OwnTask, result: bytes, place: Place) -> Judged:
        accepted = answers_of(task)
        found = final_answer(result.decode(errors="replace"))
        is_right = any(is_same(found.answer, each) for each in accepted)
        told = f"answer {found.answer[:_SHOWN_CHARS]!r}, found by {found.mark}; accepted: "
        told += ", ".join(repr(each[:_SHOWN_CHARS]) for each in accepted[:5])
        verdict = Verdict.RESOLVED if is_right else Verdict.NOT_RESOLVED
        return Judged(verdict, told, GradeReport(judge=JUDGE, score=float(is_right)))
