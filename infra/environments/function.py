"""Tasks whose whole world is the agent's own Python function: what it returned is judged.

Invariants: the result is stored by the activity that called the function, before anything is
judged; a function that was ended before it returned leaves nothing, which is not graded. Where the
campaign names a class for the tasks' kind, that class judges the stored result; without one it is a
number. Wrapped by `OwnEnvironment`, which names what goes wrong.
"""

from mainspring.environments.protocol import (
    CommandResult,
    Environment,
    EnvironmentBroken,
    Finished,
    Judged,
    Place,
)
from mainspring.programs.functions import stored_score
from mainspring.status import Verdict
from mainspring.tasks.criterion import GradeReport
from mainspring.tasks.own_task import OwnTask

JUDGE = "function"
RESOLVED_AT = 1.0
"""A score of at least this resolves the task, as a reward file's does."""
NOTHING = "the function was ended before it returned"


class FunctionWorld:
    """Holds a rollout's place on its node; the function brings its world itself."""

    async def step(self, step_id: str, command: str, timeout_s: float) -> CommandResult:
        raise EnvironmentBroken(
            "a task without a repository has no sandbox in which a command could run",
            remedy='let the function act by itself, or choose tasks of the kind "swe"',
        )

    async def finish(self) -> Finished:
        return Finished(b"", NOTHING)

    async def close(self) -> None:
        """The function's process ends with its activity."""


class FunctionEnvironment:
    def __init__(self, judge: Environment | None) -> None:
        self._judge = judge

    async def open(self, task: OwnTask, place: Place) -> FunctionWorld:
        return FunctionWorld()

    async def grade(self, task: OwnTask, result: bytes, place: Place) -> Judged:
        if self._judge is not None:
            return await self._judge.grade(task, result, place)
        score = stored_score(result)
        verdict = Verdict.RESOLVED if score >= RESOLVED_AT else Verdict.NOT_RESOLVED
        return Judged(verdict, report=GradeReport(judge=JUDGE, score=score))
