"""Grading: a rollout's patch, a fresh sandbox, one verdict in the store; and given patches.

Invariant 10: the grading sandbox gets only the patch, then the tests; the agent never sees either
side of it. Invariant 5: what goes wrong with the sandbox is a fault after MAX_ATTEMPTS, and what is
wrong with the task a fault at once; neither is a verdict about the agent. Grading twice gives the
stored verdict, as giving a patch twice gives the stored patch.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial

from temporalio import activity

from activities.implements import implements
from infra.db import rollouts, sandboxes
from infra.db.cache import Known
from infra.db.database import Database
from infra.db.models import SandboxPurpose
from infra.sandbox.backends import Backends
from infra.sandbox.protocol import Sandbox, SandboxBroken, SandboxLost, SandboxRefused
from infra.temporal.faults import naming
from infra.temporal.heartbeat import heartbeating
from infra.verdicts.swebench import LibraryMissing, UnknownParser
from mainspring.ids import NodeId, SandboxId
from mainspring.integrity.exploits import BY_NAME
from mainspring.protocol.activities import GIVE_PATCH, GRADE
from mainspring.protocol.rollout import GradeResult, PatchResult, RolloutRef
from mainspring.status import FaultKind, Player, RolloutPhase, Verdict
from mainspring.tasks.criterion import GradeReport
from mainspring.tasks.task import Task
from node.grader import (
    Judged,
    MachineBroken,
    TaskBroken,
    attack,
    for_grading,
    for_solving,
    judge,
    solve,
)
from node.held_sandboxes import sandbox_spec

MAX_ATTEMPTS = 10
"""Sandboxes one grading may use up before the rollout is masked."""
MAX_EMPTY_RUNS = 3
"""Of the tests, without results for what looks like the machine's fault: a patch may look so too,
and tests take longer than sandboxes."""


class GradingActivities:
    def __init__(
        self,
        db: Database,
        known: Known,
        node: NodeId,
        backends: Backends,
    ) -> None:
        self._db = db
        self._known = known
        self._node = node
        self._backends = backends

    @implements(GRADE)
    async def grade(self, ref: RolloutRef) -> GradeResult:
        async with heartbeating("testing"):
            stored = await rollouts.get(self._db, ref.rollout)
            if stored.epoch == ref.epoch and stored.verdict is not None:
                return GradeResult(verdict=stored.verdict, fault=stored.fault)
            await rollouts.set_phase(self._db, ref.rollout, ref.epoch, RolloutPhase.GRADING)
            patch = await rollouts.get_patch(self._db, ref.rollout, ref.epoch) or b""
            run_empty = stored.player is Player.EMPTY
            if not patch and not run_empty:
                return await self._store(
                    ref, Judged(Verdict.NO_PATCH, "", GradeReport(note=stored.patch_note or ""))
                )
            return await self._judge(ref, patch, run_empty)

    @implements(GIVE_PATCH)
    async def give_patch(self, ref: RolloutRef) -> PatchResult:
        """The patch that the rollout's player stands for."""
        async with heartbeating("solving"):
            patch = await rollouts.get_patch(self._db, ref.rollout, ref.epoch)
            if patch is None:
                given = await self._given(ref)
                patch = await rollouts.put_patch(self._db, ref.rollout, ref.epoch, given)
            return PatchResult(num_bytes=len(patch))

    async def _given(self, ref: RolloutRef) -> bytes:
        stored = await rollouts.get(self._db, ref.rollout)
        task = await self._known.task(stored.task)
        match stored.player:
            case Player.EMPTY:
                return b""
            case Player.STORED if stored.source_rollout is not None:
                return await rollouts.get_final_patch(self._db, stored.source_rollout) or b""
            case Player.GOLD if task.gold_patch is not None:
                return task.gold_patch.encode()
            case Player.GOLD if task.solution:
                return await self._made(ref, task, "gold", partial(solve, task=task))
            case Player.EXPLOIT if stored.exploit in BY_NAME:
                exploit = BY_NAME[stored.exploit]
                return await self._made(
                    ref, task, "exploit", partial(attack, task=task, exploit=exploit)
                )
            case player:
                raise SandboxRefused(
                    f"rollout {ref.rollout}: there is no patch to give for player {player} and "
                    f"task {task.id}",
                    remedy="the true fix of a task is its gold_patch or its solution",
                )

    async def _made(
        self, ref: RolloutRef, task: Task, use: str, make: Callable[[Sandbox], Awaitable[bytes]]
    ) -> bytes:
        """The patch that a script makes in a sandbox of its own."""
        try:
            async with self._fresh(ref, task, use) as sandbox:
                return await make(sandbox)
        except (SandboxBroken, SandboxLost) as error:
            if activity.info().attempt < MAX_ATTEMPTS:
                raise SandboxBroken(f"solving sandbox failed: {error}") from error
            raise

    async def _judge(self, ref: RolloutRef, patch: bytes, run_empty: bool) -> GradeResult:
        facts = await self._known.rollout(ref.rollout)
        task = await self._known.task(facts.task)
        max_attempts = MAX_ATTEMPTS
        try:
            async with self._fresh(ref, task, "grade") as sandbox:
                judged = await judge(sandbox, task, patch, run_empty=run_empty)
        except (TaskBroken, SandboxRefused, UnknownParser) as error:
            # It would be the same in every sandbox.
            max_attempts, fault = 0, f"{FaultKind.TASK_INVALID}: {error}"
        except LibraryMissing as error:
            max_attempts, fault = 0, error
        except MachineBroken as error:
            max_attempts, fault = MAX_EMPTY_RUNS, error
        except (SandboxBroken, SandboxLost) as error:
            fault = error
        else:
            return await self._store(ref, judged)
        if activity.info().attempt < max_attempts:
            raise SandboxBroken(f"grading sandbox failed: {fault}")
        return await self._store(ref, Judged(Verdict.FAULT, "", GradeReport()), str(fault))

    @asynccontextmanager
    async def _fresh(self, ref: RolloutRef, task: Task, use: str) -> AsyncIterator[Sandbox]:
        """A sandbox of this attempt's own, leased while it lives."""
        facts = await self._known.rollout(ref.rollout)
        config = await self._known.config(facts.campaign)
        backend = await self._backends.choose(config.sandbox.backend, task.image)
        attempt = activity.info().attempt
        sandbox_id = SandboxId(f"{ref.rollout.replace('/', '.')}.e{ref.epoch}.{use}{attempt}")
        await sandboxes.open_lease(
            self._db,
            sandbox_id,
            ref.rollout,
            ref.epoch,
            purpose=SandboxPurpose.GRADE,
            node=self._node,
            backend=backend.name,
        )
        labels = {"campaign": facts.campaign, "rollout": ref.rollout, "node": self._node}
        spec = sandbox_spec(sandbox_id, task, config.sandbox, labels)
        if use == "grade":
            spec = for_grading(spec, task)
        elif use == "gold":
            spec = for_solving(spec)
        try:
            async with naming(self._known, self._node, ref.rollout, sandbox_id):
                sandbox = await backend.open(spec)
                try:
                    yield sandbox
                finally:
                    await asyncio.shield(sandbox.close())
        finally:
            await sandboxes.close_lease(self._db, sandbox_id, self._node)

    async def _store(
        self, ref: RolloutRef, judged: Judged, fault: str | None = None
    ) -> GradeResult:
        counts = await rollouts.put_grade(
            self._db, ref.rollout, ref.epoch, judged.verdict, judged.output, fault, judged.report
        )
        return GradeResult(verdict=counts, fault=fault, tests_passed=judged.report.tests_passed)
