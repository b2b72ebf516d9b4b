"""What holds of every rollout that a program played, whatever was killed under it."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from cluster import Cluster
from program_cluster import AGENT, ProgramCluster, ScriptedEngine, calling
from temporalio.contrib.pydantic import pydantic_data_converter
from temporalio.worker import Replayer

from infra.bundles.store import MANIFEST, BundleManifest, digest
from infra.db.database import Database
from infra.db.nodes import sandboxes
from infra.db.programs import model_requests
from infra.db.rollouts import rollouts, turns
from infra.db.training.batches import load_groups
from infra.sandbox.protocol import BackendUnavailable
from mainspring.ids import RolloutId, SandboxId, rollout_workflow
from mainspring.programs.recipes import recipe_of
from mainspring.protocol.rollout import RolloutResult
from mainspring.status import SandboxStatus, StopReason
from mainspring.tasks.sandbox_choice import BWRAP
from mainspring.trajectories.samples import samples_of
from mainspring.trajectories.turns import Call, Execution
from reports import one_rollout
from reports.program_view import ProgramView
from tests.sandboxed import SANDBOXED
from tests.waiting import until
from workflows.rollout import RolloutWorkflow

EDIT = "sed -i 's/a - b/a + b/' calc.py"
FIX = calling(EDIT)
THREE = (calling("cat calc.py"), FIX, "It is fixed.")
"""Replies of a whole rollout."""


def make_bundle(folder: Path, program: str) -> BundleManifest:
    """Of the kind "langgraph", whose program is this shell script."""
    recipe = recipe_of("langgraph")
    inside = folder / recipe.bundle / "bin"
    inside.mkdir(parents=True)
    (inside / "agent.py").write_text(AGENT.read_text())
    (inside / "python-agents").write_text(f"#!/bin/sh\n{program}\n")
    (inside / "python-agents").chmod(0o755)
    manifest = BundleManifest(
        name=recipe.name,
        version=recipe.version,
        packages=(),
        programs=("python-agents",),
        sha256=digest(inside.parent),
        machine="any",
    )
    (inside.parent / MANIFEST).write_text(manifest.model_dump_json())
    return manifest


def sandbox_of(rollout: RolloutId, life: int, epoch: int = 0) -> SandboxId:
    return SandboxId(f"{rollout.replace('/', '.')}.e{epoch}.s{life}")


async def kill_sandbox(cluster: Cluster, sandbox: SandboxId) -> None:
    """From outside: its node does not know."""
    backend = cluster.backends[BWRAP]
    assert not isinstance(backend, BackendUnavailable)
    await backend.remove(sandbox)


async def sandboxes_of(cluster: Cluster, rollout: RolloutId) -> list[str]:
    name = rollout.replace("/", ".")
    return [each for each in await cluster.open_sandboxes() if name in each]


async def until_asked_in(
    cluster: Cluster, rollout: RolloutId, number: int, life: int, epoch: int = 0
) -> None:
    """Until this life asks request `number`."""

    async def is_so() -> bool:
        known = await model_requests.history(cluster.db, rollout, epoch)
        return any((each.number, each.life) == (number, life) for each in known)

    await until(is_so)


class Hold:
    """Holds all replies that follow the first ones (`after`) until they are let go."""

    def __init__(self, engine: ScriptedEngine, after: int = 1) -> None:
        engine.hold = self
        self.reached = asyncio.Event()
        self.let_go = asyncio.Event()
        self.num_held = 0
        self._engine = engine
        self._after = after

    async def __call__(self, turn: int) -> None:
        if len(self._engine.asked) >= self._after and not self.let_go.is_set():
            self.num_held += 1
            self.reached.set()
            await self.let_go.wait()


def once(work: Callable[[], Awaitable[None]], turn: int) -> Callable[[int], Awaitable[None]]:
    """An engine that does `work` before its first reply of this turn."""
    done: list[int] = []

    async def hold(now: int) -> None:
        if now == turn and not done:
            done.append(now)
            await work()

    return hold


def interrupt(
    monkeypatch: pytest.MonkeyPatch,
    owner: object,
    name: str,
    work: Callable[[], Awaitable[object]],
    *,
    nth: int = 1,
    matches: Callable[..., bool] = lambda *about: True,
    after: bool = False,
) -> list[tuple[Any, ...]]:
    """Do `work` at the `nth` matching call of `owner.name`, before it or `after`: it may raise, or
    never return. The arguments of the matching calls that were let through."""
    real: Callable[..., Awaitable[object]] = getattr(owner, name)
    num_calls, passed = 0, []

    async def stand_in(*about: Any, **more: Any) -> object:
        nonlocal num_calls
        if not matches(*about):
            return await real(*about, **more)
        num_calls += 1
        if num_calls != nth:
            passed.append(about)
            return await real(*about, **more)
        if after:
            found = await real(*about, **more)
            await work()
            return found
        await work()
        return await real(*about, **more)

    monkeypatch.setattr(owner, name, stand_in)
    return passed


def lose_before_patch(
    programs: ProgramCluster, monkeypatch: pytest.MonkeyPatch, rollout: RolloutId
) -> list[bool]:
    """Its sandbox is lost once before its patch is stored. Whether it was there."""
    lost: list[bool] = []

    async def lose() -> None:
        lost.append(await programs.workers.held.release(sandbox_of(rollout, 0)))

    def is_its(db: Database, ident: RolloutId, epoch: int) -> bool:
        return ident == rollout

    interrupt(monkeypatch, rollouts, "get_patch", lose, matches=is_its)
    return lost


class Stuck:
    """Reached, and never left: what waits there is ended with its process."""

    def __init__(self) -> None:
        self.reached = asyncio.Event()

    async def __call__(self) -> None:
        self.reached.set()
        await asyncio.Event().wait()


async def check_fixed(
    cluster: ProgramCluster, rollout: RolloutId, result: RolloutResult, *, num_lives: int
) -> ProgramView:
    """It asked three times, and the bug is fixed."""
    assert (result.stop_reason, result.reward, result.num_turns) == (StopReason.EXITED, 1.0, 3)
    return await check_answered_once(cluster, rollout, num_calls=3, num_lives=num_lives)


async def check_answered_once(
    cluster: ProgramCluster, rollout: RolloutId, *, num_calls: int, num_lives: int
) -> ProgramView:
    """No prompt went to the engine twice, and every token that it gave is trained once."""
    asked = cluster.engine.asked
    assert len(asked) == len(set(asked)) == num_calls
    db = cluster.workers.db
    row = await cluster.workers.row(rollout)
    calls, executions = await turns.history(db, rollout, row.epoch)
    assert [call.number for call in calls] == list(range(num_calls)) and executions == []
    [group] = await load_groups(db, [row.group])
    [played] = group.rollouts
    samples = samples_of(rollout, played.calls, trained=played.trained)
    trained = sum(sample.num_action_tokens for sample in samples)
    assert trained == sum(len(call.completion_ids) for call in calls)
    program = (await one_rollout.read(db, rollout)).program
    assert program is not None and program.num_calls == num_calls and not program.num_abandoned
    assert len(program.lives) == num_lives
    leases = await sandboxes.rollout_leases(db, rollout)
    assert {lease.status for lease in leases} <= {SandboxStatus.CLOSED, SandboxStatus.LOST}
    if cluster.workers.nodes:  # else they are processes of their own
        assert await sandboxes_of(cluster.workers, rollout) == []
    return program


async def recorded(cluster: Cluster, rollout: RolloutId) -> tuple[list[Call], list[Execution]]:
    """Its rows, without what differs each time: how long it took."""
    row = await cluster.row(rollout)
    calls, executions = await turns.history(cluster.db, rollout, row.epoch)
    return calls, [replace(each, wall_s=0.0) for each in executions]


async def replays(cluster: Cluster, rollout: RolloutId) -> None:
    """The history of its newest run, with the workflow as it is now."""
    handle = cluster.client.get_workflow_handle(rollout_workflow(rollout))
    replayer = Replayer(
        workflows=[RolloutWorkflow],
        data_converter=pydantic_data_converter,
        workflow_runner=SANDBOXED,
    )
    replayed = await replayer.replay_workflow(await handle.fetch_history())
    assert replayed.replay_failure is None
