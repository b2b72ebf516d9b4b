"""Grading: a rollout's patch, a fresh sandbox, one verdict in the store; and given patches.

Invariant 10: the grading sandbox gets only the patch, then the tests; the agent never sees either
side of it. Invariant 5: what goes wrong with the sandbox is a fault after MAX_ATTEMPTS, and what is
wrong with the task a fault at once; neither is a verdict about the agent. Grading twice gives the
stored verdict, as giving a patch twice gives the stored patch.
"""

import dataclasses
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TypeVar

from temporalio import activity

from activities.implements import implements
from infra.db.cache import FactCache
from infra.db.database import Database
from infra.db.nodes import sandboxes
from infra.db.rollouts import rollouts
from infra.db.tasks import verifications
from infra.environments.grader import MachineBroken, TaskBroken
from infra.environments.hosted import Environments
from infra.sandbox.protocol import SandboxBroken, SandboxLost, SandboxRefused
from infra.temporal.faults import naming
from infra.temporal.heartbeat import heartbeating
from infra.tracking import spans
from infra.verdicts.swebench import LibraryMissing, UnknownParser
from mainspring.environments.protocol import Finished, Judged, Place, WorldLost
from mainspring.ids import NodeId, SandboxId, TaskId
from mainspring.integrity.exploits import BY_NAME
from mainspring.protocol.activities import GIVE_PATCH, GRADE
from mainspring.protocol.rollout import GradeResult, PatchResult, RolloutRef
from mainspring.status import FaultKind, Player, RolloutPhase, SandboxPurpose, Verdict
from mainspring.tasks.criterion import GradeReport, References
from mainspring.tasks.swe_task import SweTask

Made = TypeVar("Made")
MAX_ATTEMPTS = 10
"""Sandboxes one grading may use up before the rollout is masked."""
MAX_EMPTY_RUNS = 3
"""Runs of the tests without results for what looks like the machine's fault: a patch may look so
too, and tests take longer than sandboxes."""


class GradingActivities:
    def __init__(
        self,
        db: Database,
        cache: FactCache,
        node: NodeId,
        environments: Environments,
    ) -> None:
        self._db = db
        self._cache = cache
        self._node = node
        self._environments = environments

    @implements(GRADE)
    async def grade(self, ref: RolloutRef) -> GradeResult:
        async with heartbeating("testing"):
            stored = await rollouts.get(self._db, ref.rollout)
            if stored.epoch == ref.epoch and stored.verdict is not None:
                return GradeResult(verdict=stored.verdict, fault=stored.fault)
            await rollouts.set_phase(self._db, ref.rollout, ref.epoch, RolloutPhase.GRADING)
            patch = await rollouts.get_patch(self._db, ref.rollout, ref.epoch) or b""
            # Without a patch there is nothing to judge, but where the task itself is verified.
            if not patch and stored.player is not Player.EMPTY:
                report = GradeReport(note=stored.patch_note or "")
                return await self._store(ref, Judged(Verdict.NO_PATCH, report=report))
            return await self._judge(ref, patch, is_gold=stored.player is Player.GOLD)

    @implements(GIVE_PATCH)
    async def give_patch(self, ref: RolloutRef) -> PatchResult:
        """The patch that the rollout's player stands for."""
        async with heartbeating("solving"):
            patch = await rollouts.get_patch(self._db, ref.rollout, ref.epoch)
            if patch is None:
                finished = await self._given(ref)
                patch = await rollouts.put_patch(
                    self._db, ref.rollout, ref.epoch, finished.result, finished.note
                )
            return PatchResult(num_bytes=len(patch))

    async def _given(self, ref: RolloutRef) -> Finished:
        stored = await rollouts.get(self._db, ref.rollout)
        task = await self._cache.task(stored.task)
        match stored.player:
            case Player.EMPTY:
                return Finished(b"")
            case Player.STORED if stored.source_rollout is not None:
                patch = await rollouts.get_final_patch(self._db, stored.source_rollout)
                return Finished(patch or b"")
            case Player.GOLD if isinstance(task, SweTask) and (task.gold_patch or task.solution):
                solve = self._environments.swe.solve
                return await self._made(ref, "gold", lambda place: solve(task, place))
            case Player.EXPLOIT if isinstance(task, SweTask) and stored.exploit in BY_NAME:
                attack, exploit = self._environments.swe.attack, BY_NAME[stored.exploit]
                work = self._made(ref, "exploit", lambda place: attack(task, exploit, place))
                return Finished(await work)
            case player:
                raise SandboxRefused(
                    f"rollout {ref.rollout}: there is no patch to give for player {player} and "
                    f"task {task.id}",
                    remedy="the true fix of a task is its gold_patch or its solution",
                )

    async def _made(
        self, ref: RolloutRef, use: str, make: Callable[[Place], Awaitable[Made]]
    ) -> Made:
        """The result of `make` in a sandbox of its own."""
        try:
            async with self._place(ref, use) as place:
                return await make(place)
        except (SandboxBroken, SandboxLost) as error:
            if activity.info().attempt < MAX_ATTEMPTS:
                raise SandboxBroken(f"solving sandbox failed: {error}") from error
            raise

    async def _judge(self, ref: RolloutRef, patch: bytes, *, is_gold: bool) -> GradeResult:
        task = (await self._cache.rollout(ref.rollout)).task
        references = References(is_gold=is_gold)
        if isinstance(task, SweTask) and not is_gold:
            references = await verifications.references(self._db, TaskId(task.id))
        max_attempts = MAX_ATTEMPTS
        try:
            async with self._place(ref, "grade") as place:
                environment = self._environments.of(place.config, task)
                place = dataclasses.replace(place, references=references)
                with spans.span(
                    "grade", rollout=ref.rollout, epoch=ref.epoch, task=task.id, node=self._node
                ) as graded:
                    judged = await environment.grade(task, patch, place)
                    graded.tell(verdict=judged.verdict, tests_passed=judged.report.tests_passed)
        except (TaskBroken, SandboxRefused, UnknownParser) as error:
            # It would be the same in every sandbox.
            max_attempts, fault = 0, f"{FaultKind.TASK_INVALID}: {error}"
        except LibraryMissing as error:
            max_attempts, fault = 0, error
        except MachineBroken as error:
            max_attempts, fault = MAX_EMPTY_RUNS, error
        except (SandboxBroken, WorldLost) as error:
            fault = error
        else:
            return await self._store(ref, judged)
        if activity.info().attempt < max_attempts:
            raise SandboxBroken(f"grading sandbox failed: {fault}")
        return await self._store(ref, Judged(Verdict.FAULT), str(fault))

    @asynccontextmanager
    async def _place(self, ref: RolloutRef, use: str) -> AsyncIterator[Place]:
        """For a sandbox of this attempt's own, leased while it lives."""
        facts = await self._cache.rollout(ref.rollout)
        attempt = activity.info().attempt
        sandbox = SandboxId(f"{ref.rollout.replace('/', '.')}.e{ref.epoch}.{use}{attempt}")

        async def lease(backend: str) -> None:
            await sandboxes.open_lease(
                self._db,
                sandbox,
                ref.rollout,
                ref.epoch,
                purpose=SandboxPurpose.GRADE,
                node=self._node,
                backend=backend,
            )

        labels = {"campaign": facts.campaign, "rollout": ref.rollout, "node": self._node}
        try:
            async with naming(self._cache, self._node, ref.rollout, sandbox):
                yield Place(sandbox, ref.rollout, facts.config, labels, lease)
        finally:
            await sandboxes.close_lease(self._db, sandbox, self._node)

    async def _store(
        self, ref: RolloutRef, judged: Judged, fault: str | None = None
    ) -> GradeResult:
        counts = await rollouts.put_grade(
            self._db, ref.rollout, ref.epoch, judged.verdict, judged.output, fault, judged.report
        )
        return GradeResult(verdict=counts, fault=fault, tests_passed=judged.report.tests_passed)
