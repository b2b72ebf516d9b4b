"""An environment of one's own, whose worlds live in the process of the sandbox node.

Invariants: a step is taken once in a world, also when it is asked for again; a step that takes too
long is cancelled and reported to the agent; whatever else is wrong with the class is
EnvironmentBroken, which names it and ends the campaign, but in closing, which is only logged. Its
worlds end with the process: the next one opens others.
"""

import asyncio
import dataclasses
import sys
import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, TypeVar

import structlog

from infra.sandbox.model_port import Gateways
from infra.sandbox.protocol import SandboxBackend
from infra.sandbox.run_once import RunOnce
from mainspring.environments.protocol import (
    CommandResult,
    EnvironmentBroken,
    Finished,
    Judged,
    Place,
    WorldLost,
)
from mainspring.errors import MainspringError
from mainspring.tasks.any_task import AnyTask
from mainspring.tasks.sandbox_choice import IN_PROCESS

CLOSE_S = 10.0
"""A world that takes longer to close is left as it is."""
T = TypeVar("T")
log = structlog.get_logger()
_WORLD = ("step", "finish", "close")


class OwnWorld:
    backend = IN_PROCESS

    def __init__(self, name: str, world: Any, output_bytes: int, *, ends_steps: bool) -> None:
        """`ends_steps`: the world itself ends a step that takes too long."""
        self._ends_steps = ends_steps
        self._name = name
        self._world = world
        self._output_bytes = output_bytes
        self._steps = RunOnce()

    async def step(self, step_id: str, command: str, timeout_s: float) -> CommandResult:
        return await self._steps.result(step_id, partial(self._step, step_id, command, timeout_s))

    async def finish(self) -> Finished:
        return await _answer(self._name, "finish", self._world.finish, Finished)

    async def snapshot(self, after: str, max_bytes: int) -> bytes | None:
        return None

    async def stop(self, step_id: str) -> None:
        raise self._without_programs()

    async def open_model_port(self, gateways: Gateways, key: str) -> None:
        raise self._without_programs()

    async def close_model_port(self) -> None:
        """There is none."""

    def _without_programs(self) -> EnvironmentBroken:
        return EnvironmentBroken(
            f"environment {self._name!r}: programs run in sandboxes, and its worlds are none",
            remedy="extend infra.environments.swe.SweEnvironment, or let the agent be one that "
            "takes steps",
        )

    async def restore(self, snapshot: bytes) -> None:
        raise AssertionError(f"environment {self._name}: its worlds have no snapshots")

    async def ping(self) -> None:
        """It lives as long as this process."""

    async def close(self) -> None:
        self._steps.cancel()
        try:
            async with asyncio.timeout(CLOSE_S):
                await _answer(self._name, "close", self._world.close, type(None))
        except (EnvironmentBroken, TimeoutError) as error:
            # What it leaves ends with this process; the node's other worlds must not.
            log.warning("a world was not closed", environment=self._name, reason=str(error))

    async def _step(self, step_id: str, command: str, timeout_s: float) -> CommandResult:
        started = time.monotonic()
        try:
            async with asyncio.timeout(None if self._ends_steps else timeout_s):
                step = partial(self._world.step, step_id, command, timeout_s)
                result = await _answer(self._name, "step", step, CommandResult)
        except TimeoutError:
            result = CommandResult(-1, b"", timed_out=True)
        if result.reward is not None and not _is_finite(result.reward):
            raise _broken(self._name, f"step gave the reward {result.reward!r}, expected a number")
        output = result.output[: self._output_bytes]
        return dataclasses.replace(
            result,
            output=output,
            truncated=result.truncated or len(output) < len(result.output),
            wall_s=time.monotonic() - started,
        )


class OwnEnvironment:
    """Implements `Environment` around a class of one's own."""

    def __init__(self, name: str, environment: Any, *, ends_steps: bool = False) -> None:
        self._name = name
        self._environment = environment
        self._ends_steps = ends_steps

    async def open(self, task: AnyTask, place: Place) -> OwnWorld:
        await place.lease(IN_PROCESS)
        open_world = partial(self._environment.open, task, place)
        world = await _answer(self._name, "open", open_world, object)
        missing = [name for name in _WORLD if not callable(getattr(world, name, None))]
        if missing:
            raise _broken(self._name, f"open gave a world without {', '.join(missing)}")
        output_bytes = place.config.sandbox.output_bytes
        return OwnWorld(self._name, world, output_bytes, ends_steps=self._ends_steps)

    async def attach(self, task: AnyTask, place: Place, backend: SandboxBackend) -> OwnWorld:
        raise WorldLost(f"world {place.world} ended with the process that held it")

    async def grade(self, task: AnyTask, result: bytes, place: Place) -> Judged:
        graded = partial(self._environment.grade, task, result, place)
        return await _answer(self._name, "grade", graded, Judged)


async def _answer(
    name: str, method: str, ask: Callable[[], Awaitable[Any]], expected: type[T]
) -> T:
    try:
        answer = await ask()
    except MainspringError:
        raise
    except Exception as error:
        raise _broken(name, f"{method} raised {type(error).__name__}: {error}") from error
    if not isinstance(answer, expected):
        raise _broken(
            name, f"{method} gave a {type(answer).__name__}, expected {expected.__name__}"
        )
    return answer


def _is_finite(reward: Any) -> bool:
    is_number = isinstance(reward, int | float) and not isinstance(reward, bool)
    return is_number and abs(reward) <= sys.float_info.max  # an int may be larger, and NaN is not


def _broken(name: str, problem: str) -> EnvironmentBroken:
    return EnvironmentBroken(
        f"environment {name!r}: {problem}",
        remedy="correct the class on every sandbox node, then start the campaign again",
    )
