"""Worlds of a service over HTTP: opened for a task's number, stepped, scored.

Invariants: the reward of a step is by how much the score changed, so a rollout's rewards add up to
its score, but for what a service gives a world that is left; an agent was shown what the service
showed first, or the task is refused; a step that got no answer loses the world, and the next one
takes all steps again. The score at the end is stored with the result, so grading asks no service.
Wrapped by `OwnEnvironment`.
"""

import json
import time
from collections.abc import Mapping

from infra.environments.gym.client import Answered, NoAnswer
from infra.environments.gym.services import GymService, GymServices
from infra.sandbox.protocol import SandboxRefused
from mainspring.config.agents.environments import EnvironmentConfig
from mainspring.environments.families import number_of
from mainspring.environments.protocol import (
    CommandResult,
    Finished,
    Judged,
    Place,
    WorldLost,
)
from mainspring.errors import SandboxError
from mainspring.status import FaultKind, Verdict
from mainspring.tasks.criterion import GradeReport
from mainspring.tasks.own_task import OwnTask

OVER = b"The environment has ended."


class ServiceAway(SandboxError):
    """No world can be opened: the service does not answer."""

    fault = FaultKind.ENVIRONMENT_UNREACHABLE


class GymWorld:
    def __init__(self, service: GymService, ident: int | str, life: int, first: Answered) -> None:
        self._service = service
        self._ident = ident
        self._life = life
        self._is_over = first.is_over
        self._number = first.number
        """The score so far, as the service counts."""
        self._parts = first.parts
        self._num_steps = 0
        self._is_open = True
        self._has_left = False

    async def step(self, step_id: str, command: str, timeout_s: float) -> CommandResult:
        if self._is_over:
            return CommandResult(1, OVER, reward=0.0, is_over=True)
        service, started = self._service, time.monotonic()
        self._check_life()
        async with service.asking() as client:
            limit_s = min(timeout_s, service.config.request_timeout_s)
            seen = await client.step(self._ident, command, limit_s)
        service.answered()
        before = self._number
        self._number = before + seen.number if service.form.sums else seen.number
        self._is_over = seen.is_over
        self._parts = seen.parts
        self._num_steps += 1
        return CommandResult(
            0,
            seen.observation.encode(errors="replace"),
            wall_s=time.monotonic() - started,
            reward=(self._number - before) / service.form.scale,
            is_over=seen.is_over,
        )

    async def finish(self) -> Finished:
        service = self._service
        if service.form.leaves and not self._is_over and not self._has_left:
            self._check_life()
            async with service.asking() as client:
                left = await client.leave(self._ident, service.config.request_timeout_s)
            self._has_left, self._number, self._parts = True, left.number, left.parts
        score = self._number / service.form.scale
        facts = {"score": score, "is_over": self._is_over, "num_steps": self._num_steps}
        if self._parts:
            facts["parts"] = self._parts
        return Finished(json.dumps(facts).encode())

    def _check_life(self) -> None:
        """Raises WorldLost."""
        service = self._service
        if self._life != service.life or (service.process and not service.process.lives):
            words = service.process.how_it_ended() if service.process else ""
            raise WorldLost(
                f"environment {service.name}: its service was started again{words and ': '}{words}"
            )

    async def close(self) -> None:
        if self._is_open:
            self._is_open = False
            self._service.end_world()
            await self._service.give_back(self._ident, self._life)


class GymEnvironment:
    def __init__(self, name: str, config: EnvironmentConfig, services: GymServices) -> None:
        self._name = name
        self._config = config
        self._services = services

    async def open(self, task: OwnTask, place: Place) -> GymWorld:
        service = self._services.of(place.config.name, self._name, self._config)
        try:
            number = number_of(task.data, service.form)
        except ValueError as error:
            raise SandboxRefused(
                f"task {task.id}: {error}", remedy="correct its row and import it again"
            ) from None
        service.begin_world()
        try:
            return await self._opened(service, task, number)
        except BaseException as error:
            service.end_world()
            # Nothing has run in it: the request is retried for as long as an outage may last, or,
            # where the service answers with an error, for as long as a node may fail.
            if isinstance(error, NoAnswer):
                raise ServiceAway(error.message, remedy=error.remedy) from error
            if isinstance(error, WorldLost):
                raise SandboxError(error.message, remedy=error.remedy) from error
            raise

    async def _opened(self, service: GymService, task: OwnTask, number: int) -> GymWorld:
        await service.running()
        life = service.life
        ident = await service.take_id(number)
        try:
            async with service.asking() as client:
                first = await client.reset(ident, number, self._config.request_timeout_s)
            self._check_shown(task, number, first.observation)
        except BaseException:
            await service.give_back(ident, life)
            raise
        return GymWorld(service, ident, life, first)

    def _check_shown(self, task: OwnTask, number: int, observation: str) -> None:
        """Raises SandboxRefused."""
        shown = observation.strip()
        if not self._config.same_opening or (shown and shown in task.issue):
            return
        begin = " ".join(observation.split())[:120]
        raise SandboxRefused(
            f"task {task.id}: its issue does not hold what environment {self._name} shows first "
            f"for number {number}: {begin!r}",
            remedy="import the tasks again from the service (`mainspring tasks import FILE`); a "
            "service that shows another text at each start is none that repeats; "
            f"environments.{self._name}.same_opening = false plays it all the same",
        )

    async def grade(self, task: OwnTask, result: bytes, place: Place) -> Judged:
        facts = json.loads(result)
        score = float(facts["score"])
        is_resolved = score >= self._config.resolved_at
        verdict = Verdict.RESOLVED if is_resolved else Verdict.NOT_RESOLVED
        end = "ended" if facts["is_over"] else "was left"
        output = f"the environment {end} after {facts['num_steps']} steps with the score {score:g}"
        output += _parts_told(facts.get("parts", {}))
        return Judged(verdict, output, GradeReport(judge=self._config.kind, score=score))


def _parts_told(parts: Mapping[str, Mapping[str, float]]) -> str:
    tables = (
        f"\n{name}: {', '.join(f'{each} {value:g}' for each, value in table.items())}"
        for name, table in parts.items()
        if table
    )
    return "".join(tables)
