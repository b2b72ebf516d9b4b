"""Patches graded as a node does it, with real sandboxes and without a store."""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from infra.environments.grader import attack, for_grading
from infra.environments.honesty import Grading
from infra.environments.swe import sandbox_spec
from infra.sandbox.bubblewrap.backend import BwrapBackend
from infra.sandbox.protocol import Sandbox, SandboxSpec
from mainspring.config.sandbox import SandboxConfig
from mainspring.environments.protocol import Judged
from mainspring.ids import SandboxId
from mainspring.integrity.exploits import Exploit
from mainspring.status import Verdict
from mainspring.tasks.criterion import References
from mainspring.tasks.swe_task import SweTask


@dataclass(frozen=True, slots=True)
class Grader:
    backend: BwrapBackend
    mounts: Mapping[str, Path]
    """Pytest, which a sandbox without an image does not have."""
    known: dict[str, References] = field(default_factory=dict)
    """What verifying has shown, by the task but for its name: many cases share one."""

    async def graded(
        self, task: SweTask, patch: bytes, references: References | None = None, name: str = ""
    ) -> Judged:
        spec = for_grading(self._spec(task, f"grade.{name}"), task)
        known = references or References()
        return await Grading(lambda: self._open(spec), task, patch, known).judged(
            run_empty=not patch
        )

    async def verified(self, task: SweTask) -> References:
        """What `tasks verify` records: the true fix resolves the task, and is no cheat."""
        same = task.model_dump_json(exclude={"id"})
        if same not in self.known:
            self.known[same] = await self._verified(task)
        return self.known[same]

    async def _verified(self, task: SweTask) -> References:
        empty = (await self.graded(task, b"")).report
        if task.gold_patch is None:
            return References(empty=empty)
        gold = await self.graded(task, task.gold_patch.encode(), References(is_gold=True))
        assert (gold.verdict, gold.report.cheated) == (Verdict.RESOLVED, False), gold
        return References(gold.report, empty)

    async def exploited(self, task: SweTask, exploit: Exploit) -> bytes:
        async with self._open(self._spec(task, f"attack.{exploit.name}")) as sandbox:
            return await attack(sandbox, task, exploit)

    def _spec(self, task: SweTask, use: str) -> SandboxSpec:
        spec = sandbox_spec(SandboxId(f"{use}.{task.id}"), task, SandboxConfig(), {})
        return replace(spec, mounts=self.mounts)

    @asynccontextmanager
    async def _open(self, spec: SandboxSpec) -> AsyncIterator[Sandbox]:
        sandbox = await self.backend.open(spec)
        try:
            yield sandbox
        finally:
            await sandbox.close()
