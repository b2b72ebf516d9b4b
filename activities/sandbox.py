"""Sandboxes on their node: open, run the turn's command once, replay, collect the patch, close.

Invariants 3, 6 and 7: the intent is written before the command runs; a second attempt re-attaches
through the sandbox's own record of the turn id; a sandbox this process does not hold is lost (its
process died with the one that opened it) and the workflow rebuilds it.
"""

import asyncio
import hashlib
from collections.abc import Mapping

from temporalio import activity

from activities.faults import SandboxDiverged, typed_faults
from activities.heartbeat import heartbeating
from activities.known import Known
from infra.db import rollouts, sandboxes, turns
from infra.db.database import Database
from infra.db.models import SandboxPurpose
from infra.sandbox.live import PatchRefused
from infra.sandbox.protocol import (
    Limits,
    Sandbox,
    SandboxBackend,
    SandboxLost,
    SandboxSpec,
)
from infra.sandbox.select import Available, choose_backend
from mainspring.agent.action import SUBMIT_SENTINEL, Command, parse_action
from mainspring.config import SandboxConfig
from mainspring.ids import NodeId, RolloutId, SandboxId, turn_id
from mainspring.protocol.names import Activity
from mainspring.protocol.rollout import (
    ExecuteInput,
    ExecuteResult,
    OpenInput,
    PatchResult,
    RolloutRef,
    SandboxInput,
    SandboxRef,
)
from mainspring.status import SandboxStatus
from mainspring.tasks import Task
from mainspring.turns import Execution


def sandbox_spec(
    sandbox: SandboxId, task: Task, config: SandboxConfig, labels: Mapping[str, str]
) -> SandboxSpec:
    return SandboxSpec(
        id=sandbox,
        workdir=task.workdir,
        image=task.image,
        files=task.files,
        labels=labels,
        limits=Limits(
            memory_mb=config.memory_mb,
            max_pids=config.max_pids,
            cpus=config.cpus,
            disk_mb=config.disk_mb,
            output_bytes=config.output_bytes,
        ),
    )


class SandboxActivities:
    def __init__(
        self,
        db: Database,
        known: Known,
        node: NodeId,
        backends: Available,
        capacity: int,
    ) -> None:
        self._db = db
        self._known = known
        self._node = node
        self._backends = backends
        self._slots = asyncio.Semaphore(capacity)
        self._held: dict[SandboxId, Sandbox] = {}

    @activity.defn(name=Activity.OPEN_SANDBOX)
    async def open_sandbox(self, ask: OpenInput) -> SandboxRef:
        """Waits for a slot: a full node queues, it does not fail."""
        with typed_faults():
            async with heartbeating("waiting for a slot") as beat:
                claim = await self._known.rollout(ask.rollout)
                task = await self._known.task(claim.task)
                config = await self._known.config(claim.campaign)
                backend = choose_backend(task.image, self._backends)
                sandbox = SandboxId(f"{ask.rollout.replace('/', '.')}.e{ask.epoch}.s{ask.life}")
                labels = {
                    "campaign": claim.campaign,
                    "rollout": ask.rollout,
                    "epoch": str(ask.epoch),
                    "node": self._node,
                }
                if sandbox not in self._held:
                    await self._slots.acquire()
                    beat.note = "opening"
                    await sandboxes.open_lease(
                        self._db,
                        sandbox,
                        ask.rollout,
                        ask.epoch,
                        purpose=SandboxPurpose.AGENT,
                        node=self._node,
                        backend=backend.name,
                    )
                    try:
                        self._held[sandbox] = await backend.open(
                            sandbox_spec(sandbox, task, config.sandbox, labels)
                        )
                    except BaseException:
                        # Also a cancel in the middle: the workflow never learns of this sandbox.
                        self._slots.release()
                        await asyncio.shield(self._undo_open(backend, sandbox))
                        raise
                return SandboxRef(sandbox=sandbox, node=self._node, backend=backend.name)

    @activity.defn(name=Activity.EXECUTE)
    async def execute(self, ask: ExecuteInput) -> ExecuteResult:
        """A submission also has its patch stored and its sandbox closed."""
        with typed_faults():
            async with heartbeating(f"turn {ask.turn + 1}"):
                command = await self._command(ask)
                done = await turns.put_intent(self._db, ask.rollout, ask.epoch, ask.turn, command)
                if done is None:
                    result = await self._holding(ask.sandbox).run(
                        turn_id(ask.rollout, ask.epoch, ask.turn), command, ask.timeout_s
                    )
                    done = await turns.put_execution(
                        self._db,
                        ask.rollout,
                        ask.epoch,
                        Execution(
                            turn=ask.turn,
                            command=command,
                            returncode=result.returncode,
                            output=result.output,
                            truncated=result.truncated,
                            timed_out=result.timed_out,
                            wall_s=result.wall_s,
                        ),
                    )
                submitted = done.returncode == 0 and _is_submission(done.output)
                if submitted:
                    await self._collect(ask.rollout, ask.epoch, ask.sandbox)
                return ExecuteResult(
                    returncode=done.returncode,
                    timed_out=done.timed_out,
                    submitted=submitted,
                    num_output_bytes=len(done.output),
                )

    @activity.defn(name=Activity.RESTORE_SANDBOX)
    async def restore_sandbox(self, ask: SandboxInput) -> RolloutRef:
        """Run all recorded commands again; each must end and print as it did the first time.

        That includes the turn about to be executed when its result was recorded and its node died
        before it could say so: `execute` will not run it again.
        """
        with typed_faults():
            async with heartbeating("replaying") as beat:
                sandbox = self._holding(ask.sandbox)
                _, executions = await turns.history(self._db, ask.rollout, ask.epoch)
                claim = await self._known.rollout(ask.rollout)
                config = await self._known.config(claim.campaign)
                for before in executions:
                    beat.note = f"replaying turn {before.turn + 1} of {len(executions)}"
                    now = await sandbox.run(
                        turn_id(ask.rollout, ask.epoch, before.turn),
                        before.command,
                        config.agent.command_timeout_s,
                    )
                    same_output = _digest(now.output) == _digest(before.output)
                    if now.returncode != before.returncode or not same_output:
                        raise SandboxDiverged(
                            f"rollout {ask.rollout}, turn {before.turn}: the replay returned "
                            f"{now.returncode} with {'equal' if same_output else 'other'} output, "
                            f"recorded was {before.returncode}"
                        )
                return RolloutRef(rollout=ask.rollout, epoch=ask.epoch)

    @activity.defn(name=Activity.COLLECT_PATCH)
    async def collect_patch(self, ask: SandboxInput) -> PatchResult:
        """For rollouts that end without a submission."""
        with typed_faults():
            async with heartbeating("diff"):
                num_bytes = await self._collect(ask.rollout, ask.epoch, ask.sandbox)
                return PatchResult(num_bytes=num_bytes)

    @activity.defn(name=Activity.CLOSE_SANDBOX)
    async def close_sandbox(self, ask: SandboxInput) -> RolloutRef:
        await self._close(ask.sandbox)
        return RolloutRef(rollout=ask.rollout, epoch=ask.epoch)

    async def release(self, sandbox: SandboxId) -> bool:
        """Close a sandbox that this process holds and free its slot; False when it holds none."""
        held = self._held.pop(sandbox, None)
        if held is None:
            return False
        try:
            await asyncio.shield(held.close())
        finally:
            self._slots.release()
        return True

    async def close_all(self) -> None:
        """On drain: what this process holds dies with it, so remove it in order."""
        await asyncio.gather(*(self.release(sandbox) for sandbox in list(self._held)))

    async def _undo_open(self, backend: SandboxBackend, sandbox: SandboxId) -> None:
        await backend.remove(sandbox)
        await sandboxes.close_lease(self._db, sandbox, self._node)

    async def _close(self, sandbox: SandboxId) -> None:
        closed = await self.release(sandbox)
        status = SandboxStatus.CLOSED if closed else SandboxStatus.LOST
        await sandboxes.close_lease(self._db, sandbox, self._node, status)

    async def _collect(self, rollout: RolloutId, epoch: int, sandbox: SandboxId) -> int:
        """Store the patch, then close the sandbox: nobody needs it any more. Bytes of the patch."""
        patch = await rollouts.get_patch(self._db, rollout, epoch)
        if patch is None:
            try:
                patch = await self._holding(sandbox).diff()
            except PatchRefused as refused:
                # What the agent left cannot be a patch: that is its doing, not a fault.
                activity.logger.info("%s: %s", rollout, refused)
                patch = b""
            await rollouts.put_patch(self._db, rollout, epoch, patch)
        await self._close(sandbox)
        return len(patch)

    def _holding(self, sandbox: SandboxId) -> Sandbox:
        held = self._held.get(sandbox)
        if held is None:
            raise SandboxLost(f"sandbox {sandbox} is not on node {self._node} any more")
        return held

    async def _command(self, ask: ExecuteInput) -> str:
        generation = await turns.get_generation(self._db, ask.rollout, ask.epoch, ask.turn)
        assert generation is not None, f"{ask.rollout}, turn {ask.turn}: nothing was generated"
        action = parse_action(generation.text)
        assert isinstance(action, Command), f"{ask.rollout}, turn {ask.turn}: no command to run"
        return action.command


def _is_submission(output: bytes) -> bool:
    """The submit command ran: the sentinel is the first line it printed."""
    return output.lstrip().split(b"\n", 1)[0].strip() == SUBMIT_SENTINEL.encode()


def _digest(output: bytes) -> str:
    return hashlib.sha256(output).hexdigest()
