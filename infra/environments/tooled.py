"""A world beside which tools run in Python: their calls go to a process, all else to the world.

Invariants: a call runs once in a world, also when it is asked for again. What the tools remember
ends with the node's process, so such a world is never taken over or restored from a snapshot: it is
opened anew, and all recorded steps are taken again. Wraps the worlds of every environment.
"""

import dataclasses
import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from infra.environments.own import OwnWorld
from infra.environments.swe import SweWorld
from infra.functions.labelled import label_of
from infra.functions.tool_process import ToolProcess, ToolSet
from infra.sandbox.model_port import Gateways
from infra.sandbox.protocol import SandboxBackend
from infra.sandbox.run_once import RunOnce
from mainspring.agents.tools.python import called_in
from mainspring.environments.protocol import CommandResult, Finished, Judged, Place, WorldLost
from mainspring.programs.request import ToolCall
from mainspring.tasks.any_task import AnyTask

PlainWorld = SweWorld | OwnWorld


class PlainHosted(Protocol):
    """An environment whose worlds have no such tools."""

    async def open(self, task: Any, place: Place) -> PlainWorld: ...

    async def attach(self, task: Any, place: Place, backend: SandboxBackend) -> PlainWorld: ...

    async def grade(self, task: Any, result: bytes, place: Place) -> Judged: ...


class ToolWorld:
    def __init__(self, world: PlainWorld, tools: ToolProcess, names: frozenset[str]) -> None:
        self._world = world
        self._tools = tools
        self._names = names
        self._calls = RunOnce()

    @property
    def backend(self) -> str:
        return self._world.backend

    async def step(self, step_id: str, command: str, timeout_s: float) -> CommandResult:
        call = called_in(command)
        if call is None or call.name not in self._names:
            return await self._world.step(step_id, command, timeout_s)
        return await self._calls.result(step_id, partial(self._called, call, timeout_s))

    async def _called(self, call: ToolCall, timeout_s: float) -> CommandResult:
        began = time.monotonic()
        result = await self._tools.call(call, timeout_s)
        return dataclasses.replace(result, wall_s=time.monotonic() - began)

    async def finish(self) -> Finished:
        return await self._world.finish()

    async def stop(self, step_id: str) -> None:
        await self._world.stop(step_id)

    async def open_model_port(self, gateways: Gateways, key: str) -> None:
        await self._world.open_model_port(gateways, key)

    async def close_model_port(self) -> None:
        await self._world.close_model_port()

    async def snapshot(self, after: str, max_bytes: int) -> bytes | None:
        return None

    async def restore(self, snapshot: bytes) -> None:
        raise AssertionError("a world with tools in Python has no snapshots")

    async def ping(self) -> None:
        await self._world.ping()

    async def close(self) -> None:
        self._calls.cancel()
        try:
            await self._tools.release()
        finally:
            await self._world.close()


class Tooled:
    """Implements `Hosted` around the environment of a task whose agent has tools in Python."""

    def __init__(
        self,
        environment: PlainHosted,
        paths: Mapping[str, str],
        variables: Sequence[str],
        folder: Path,
    ) -> None:
        """`paths`, `variables`: see ToolSet; `folder`: of this node alone, which also labels what
        it starts."""
        self._environment = environment
        self._paths = paths
        self._variables = variables
        self._folder = folder

    async def open(self, task: AnyTask, place: Place) -> ToolWorld:
        world = await self._environment.open(task, place)
        config = place.config
        tools = ToolSet(
            task=task,
            rollout=place.rollout,
            paths=self._paths,
            variables=self._variables,
            memory_mb=config.sandbox.memory_mb,
            output_bytes=config.sandbox.output_bytes,
        )
        label = label_of(str(self._folder.absolute()), f"tools.{place.world}")
        process = ToolProcess(tools, label, self._folder)
        return ToolWorld(world, process, frozenset(self._paths))

    async def attach(self, task: AnyTask, place: Place, backend: SandboxBackend) -> ToolWorld:
        world = await self._environment.attach(task, place, backend)
        await world.close()
        raise WorldLost(f"the tools beside {place.world} ended with the process that held them")

    async def grade(self, task: AnyTask, result: bytes, place: Place) -> Judged:
        return await self._environment.grade(task, result, place)
