"""The environment of SWE tasks: a sandbox with the repository, its patch, the hidden tests.

Invariants: no sandbox is left when opening fails; a grading has a sandbox of its own, which the
agent never sees. Knows sandboxes and tasks, no store: leases are the caller's, through the place.
"""

import asyncio
import dataclasses
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from types import MappingProxyType

from infra.bundles.store import mounts_for
from infra.environments.grader import attack, for_grading, for_solving, solve
from infra.environments.honesty import Grading
from infra.environments.written_test import TestRan, run_written
from infra.sandbox.backends import Backends
from infra.sandbox.containers.image_edit import Alteration
from infra.sandbox.model_port import Gateways
from infra.sandbox.protocol import Limits, Sandbox, SandboxBackend, SandboxSpec
from infra.sandbox.session import PatchRefused
from mainspring.agents.choice import agent_config
from mainspring.config.agents.agent import AgentConfig
from mainspring.config.sandbox import SandboxConfig
from mainspring.environments.protocol import CommandResult, Finished, Judged, Place
from mainspring.ids import SandboxId
from mainspring.integrity.exploits import Exploit
from mainspring.programs.profiles.choice import folders_of, is_program
from mainspring.rewards.written_tests import WrittenTest
from mainspring.status.fates import OUTAGE_S
from mainspring.tasks.swe_task import SweTask

REPEATING = {
    "PYTHONHASHSEED": "0",
    "GIT_AUTHOR_DATE": "2020-01-01T00:00:00Z",
    "GIT_COMMITTER_DATE": "2020-01-01T00:00:00Z",
}
"""Variables that take chance and time out of Python's order of sets and out of commit ids."""
NOTHING_CHANGED = "nothing was changed"


def sandbox_spec(
    sandbox: SandboxId,
    task: SweTask,
    config: SandboxConfig,
    labels: Mapping[str, str],
    *,
    repeats: bool = False,
    mounts: Mapping[str, Path] = MappingProxyType({}),
    folders: tuple[str, ...] = (),
) -> SandboxSpec:
    """Spec of an agent's sandbox. `repeats`: its commands print the same each time, as far as
    variables can make them; `folders`: empty ones that it has beside the repository."""
    return SandboxSpec(
        id=sandbox,
        workdir=task.workdir,
        image=task.image,
        files=task.files,
        executables=task.executables,
        alteration=Alteration(task.base_patch, task.hidden_files),
        labels=labels,
        allow_hosts=task.allow_hosts,
        mounts=mounts,
        writable_dirs=folders,
        limits=Limits(
            memory_mb=config.memory_mb,
            max_pids=config.max_pids,
            cpus=config.cpus,
            disk_mb=config.disk_mb,
            output_bytes=config.output_bytes,
        ),
        environment={**task.variables, **(REPEATING if repeats else {})},
        clock=task.clock,
    )


def longest_command_s(agent: AgentConfig) -> float:
    """Seconds that its sandbox may still be busy when another process takes it over."""
    if is_program(agent):
        return agent.rollout_timeout_s + OUTAGE_S
    return agent.command_timeout_s


class SweWorld:
    """Implements `World`, and what else a node can do with a sandbox."""

    def __init__(self, sandbox: Sandbox, backend: str) -> None:
        self.sandbox = sandbox
        self.backend = backend

    async def step(self, step_id: str, command: str, timeout_s: float) -> CommandResult:
        return await self.sandbox.run(step_id, command, timeout_s)

    async def stop(self, step_id: str) -> None:
        await self.sandbox.stop(step_id)

    async def open_model_port(self, gateways: Gateways, key: str) -> None:
        await self.sandbox.open_model_port(gateways, key)

    async def close_model_port(self) -> None:
        await self.sandbox.close_model_port()

    async def finish(self) -> Finished:
        try:
            patch = await self.sandbox.diff()
            note = await self.sandbox.left_out() or (None if patch else NOTHING_CHANGED)
        except PatchRefused as refused:
            # What the agent left cannot be a patch: that is its doing, not a fault.
            return Finished(b"", refused.message)
        return Finished(patch, note)

    async def snapshot(self, after: str, max_bytes: int) -> bytes | None:
        return await self.sandbox.snapshot(after, max_bytes)

    async def restore(self, snapshot: bytes) -> None:
        await self.sandbox.restore(snapshot)

    async def ping(self) -> None:
        await self.sandbox.ping()

    async def close(self) -> None:
        await self.sandbox.close()


class SweEnvironment:
    """Implements `Environment`. A class of your own whose worlds are sandboxes extends it."""

    def __init__(self, backends: Backends) -> None:
        self.backends = backends

    async def open(self, task: SweTask, place: Place) -> SweWorld:
        backend = await self._backend(task, place)
        await place.lease(backend.name)
        try:
            agent = agent_config(place.config, task)
            spec = dataclasses.replace(
                _spec(task, place), mounts=mounts_for(agent), writable_dirs=folders_of(agent)
            )
            sandbox = await backend.open(spec)
        except BaseException:
            # Also a cancel in the middle: the workflow never learns of this sandbox.
            await asyncio.shield(backend.remove(place.world))
            raise
        return SweWorld(sandbox, backend.name)

    async def attach(self, task: SweTask, place: Place, backend: SandboxBackend) -> SweWorld:
        """The world of a process that died. Raises SandboxLost."""
        busy_s = longest_command_s(agent_config(place.config, task))
        sandbox = await backend.attach(_spec(task, place), busy_s=busy_s)
        return SweWorld(sandbox, backend.name)

    async def grade(self, task: SweTask, result: bytes, place: Place) -> Judged:
        async def fix() -> bytes:
            return (await self.solve(task, place)).result

        spec = for_grading(_spec(task, place), task)
        grading = Grading(
            fresh=lambda: self._fresh(task, place, spec),
            task=task,
            patch=result,
            references=place.references,
            solve=fix,
        )
        # Nothing is only graded where the task itself is verified.
        return await grading.judged(run_empty=not result)

    async def solve(self, task: SweTask, place: Place) -> Finished:
        """The patch of the task's true fix."""
        async with self._fresh(task, place, for_solving(_spec(task, place))) as sandbox:
            return await solve(sandbox, task)

    async def attack(self, task: SweTask, exploit: Exploit, place: Place) -> bytes:
        """The patch that the exploit makes, in a sandbox as agents get it."""
        async with self._fresh(task, place, _spec(task, place)) as sandbox:
            return await attack(sandbox, task, exploit)

    async def run_written(
        self, task: SweTask, program: bytes, test: WrittenTest, timeout_s: float, place: Place
    ) -> TestRan:
        """Run a test that a policy wrote over the program's part of a patch."""
        async with self._fresh(task, place, _spec(task, place)) as sandbox:
            return await run_written(sandbox, program, test, timeout_s)

    @asynccontextmanager
    async def _fresh(
        self, task: SweTask, place: Place, spec: SandboxSpec
    ) -> AsyncIterator[Sandbox]:
        backend = await self._backend(task, place)
        await place.lease(backend.name)
        sandbox = await backend.open(spec)
        try:
            yield sandbox
        finally:
            await asyncio.shield(sandbox.close())

    async def _backend(self, task: SweTask, place: Place) -> SandboxBackend:
        return await self.backends.choose(place.config.sandbox.backend, task.image)


def _spec(task: SweTask, place: Place) -> SandboxSpec:
    config = place.config
    return sandbox_spec(place.world, task, config.sandbox, place.labels, repeats=config.repeats)
