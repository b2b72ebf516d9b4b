"""Grading: the stored patch, a fresh sandbox, the hidden tests, one verdict.

Invariant 10: the grading sandbox gets only the patch, then the tests; the agent never sees either
side of it. Invariant 5: what goes wrong with the sandbox is a fault after MAX_ATTEMPTS, never a
verdict about the agent. Grading twice gives the stored verdict.
"""

import asyncio
import shlex
from collections.abc import Iterable
from pathlib import PurePosixPath

from temporalio import activity

from activities.faults import naming, typed_faults
from activities.heartbeat import heartbeating
from activities.held import sandbox_spec
from activities.known import Known
from infra.db import rollouts, sandboxes
from infra.db.database import Database
from infra.db.models import SandboxPurpose
from infra.sandbox.protocol import Sandbox, SandboxBroken, SandboxLost, SandboxRefused
from infra.sandbox.select import Available, choose_backend
from mainspring.ids import NodeId, SandboxId
from mainspring.protocol.names import Activity
from mainspring.protocol.rollout import GradeResult, RolloutRef
from mainspring.status import Verdict
from mainspring.tasks import Task

MAX_ATTEMPTS = 10
"""Sandboxes one grading may use up before the rollout is masked."""
PATCH_FILE = ".mainspring.patch"
APPLY_TIMEOUT_S = 60.0
APPLY = f"""
patch={PATCH_FILE}
# For a patch against other versions of the files; tried aside first: a conflict would leave marks.
three_way() {{
  cp -- "$(git rev-parse --git-path index)" $patch.index &&
    GIT_INDEX_FILE=$PWD/$patch.index git apply --3way --cached $patch || return
  git update-index -q --refresh # or else the times of a copied tree count as changes
  git apply --3way $patch
}}
# For inexact context. Unlike git itself it would also write into .git.
fuzzy() {{
  local fuzzy=(patch --batch --fuzz=5 -p1 -i $patch)
  ! "${{fuzzy[@]}}" --dry-run | grep -qi "file.*[ '/]\\.git/" && "${{fuzzy[@]}}"
}}
# Where the hidden tests' folders are when links are followed.
places() {{ realpath -m -- "${{folders[@]}}" 2>/dev/null; }}

before=$(places)
declare -A links
for folder in "${{folders[@]}}"; do [[ -L $folder ]] && links[$folder]=1; done
git apply --whitespace=nowarn $patch || three_way || fuzzy
applied=$?
rm -f $patch $patch.index
((applied == 0)) || exit $applied
# What the patch put where the tests go makes way for them.
for folder in "${{folders[@]}}"; do
  [[ -d $folder && ( ! -L $folder || ${{links[$folder]-}} ) ]] || rm -f -- "$folder"
done
rm -rf -- "${{tests[@]}}"
[[ $(places) == "$before" ]] || {{ echo "the patch moves the hidden tests' folder"; exit 1; }}
"""
"""After `tests` and `folders`: paths of the hidden tests, and of folders on the way to them."""
OUTPUT_CHARS = 4000
"""Kept of the tests' output: its end."""


class GradingActivities:
    def __init__(
        self,
        db: Database,
        known: Known,
        node: NodeId,
        backends: Available,
    ) -> None:
        self._db = db
        self._known = known
        self._node = node
        self._backends = backends

    @activity.defn(name=Activity.GRADE)
    async def grade(self, ref: RolloutRef) -> GradeResult:
        with typed_faults():
            async with heartbeating("testing"):
                stored = await rollouts.get(self._db, ref.rollout)
                if stored.epoch == ref.epoch and stored.verdict is not None:
                    return GradeResult(verdict=stored.verdict, fault=stored.fault)
                patch = await rollouts.get_patch(self._db, ref.rollout, ref.epoch)
                if not patch:
                    return await self._store(ref, Verdict.NO_PATCH, "")
                try:
                    verdict, output = await self._judge(ref, patch)
                except (SandboxBroken, SandboxLost, SandboxRefused) as error:
                    if activity.info().attempt < MAX_ATTEMPTS:
                        raise RuntimeError(f"grading sandbox failed: {error}") from error
                    return await self._store(ref, Verdict.FAULT, "", fault=str(error))
                return await self._store(ref, verdict, output)

    async def _judge(self, ref: RolloutRef, patch: bytes) -> tuple[Verdict, str]:
        claim = await self._known.rollout(ref.rollout)
        task = await self._known.task(claim.task)
        config = await self._known.config(claim.campaign)
        backend = choose_backend(task.image, self._backends)
        attempt = activity.info().attempt
        sandbox_id = SandboxId(f"{ref.rollout.replace('/', '.')}.e{ref.epoch}.grade{attempt}")
        await sandboxes.open_lease(
            self._db,
            sandbox_id,
            ref.rollout,
            ref.epoch,
            purpose=SandboxPurpose.GRADE,
            node=self._node,
            backend=backend.name,
        )
        labels = {"campaign": claim.campaign, "rollout": ref.rollout, "node": self._node}
        try:
            async with naming(self._known, self._node, ref.rollout, sandbox_id):
                sandbox = await backend.open(sandbox_spec(sandbox_id, task, config.sandbox, labels))
                try:
                    return await judge(sandbox, task, patch)
                finally:
                    await asyncio.shield(sandbox.close())
        finally:
            await sandboxes.close_lease(self._db, sandbox_id, self._node)

    async def _store(
        self, ref: RolloutRef, verdict: Verdict, output: str, fault: str | None = None
    ) -> GradeResult:
        counts = await rollouts.put_grade(self._db, ref.rollout, ref.epoch, verdict, output, fault)
        return GradeResult(verdict=counts, fault=fault)


async def judge(sandbox: Sandbox, task: Task, patch: bytes) -> tuple[Verdict, str]:
    """Apply `patch` in a fresh sandbox, lay the hidden tests over it, run them.

    Returns the verdict and the end of what the deciding command printed. Raises SandboxLost.
    """
    await sandbox.write_files({PATCH_FILE: patch})
    applied = await sandbox.run("apply", _lists(task.tests) + APPLY, APPLY_TIMEOUT_S)
    if applied.returncode != 0:
        return Verdict.PATCH_FAILED, _end(applied.output)
    await sandbox.write_files({path: text.encode() for path, text in task.tests.items()})
    tested = await sandbox.run("tests", task.test_command, task.test_timeout_s)
    if tested.timed_out:
        return Verdict.TESTS_TIMED_OUT, _end(tested.output)
    verdict = Verdict.RESOLVED if tested.returncode == 0 else Verdict.NOT_RESOLVED
    return verdict, _end(tested.output)


def _lists(tests: Iterable[str]) -> str:
    """The bash arrays that APPLY begins with; folders before what they hold."""
    paths = sorted(map(PurePosixPath, tests))
    parents = {parent for path in paths for parent in path.parents[:-1]}
    arrays = {"tests": paths, "folders": sorted(parents)}
    return "".join(f"{name}=({shlex.join(map(str, each))})\n" for name, each in arrays.items())


def _end(output: bytes) -> str:
    # Postgres text cannot hold NUL.
    return output.decode(errors="replace").replace("\0", "\N{REPLACEMENT CHARACTER}")[
        -OUTPUT_CHARS:
    ]
