"""The sandboxes this node's process holds: opened, taken over from its predecessor, released.

Invariants: a lease is written before a sandbox is made and closed after it is gone; what is held
can be used at once and everything else is lost; sandboxes outlive the process, and the next one
takes over (`adopt`) those whose rollouts continue. Used by the sandbox activities and the reaper.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

import structlog

from infra.db import sandboxes
from infra.db.cache import Known
from infra.db.database import Database
from infra.db.models import SandboxPurpose
from infra.sandbox.backends import Backends
from infra.sandbox.containers.image_edit import Alteration
from infra.sandbox.protocol import (
    BackendUnavailable,
    Limits,
    Sandbox,
    SandboxBackend,
    SandboxLost,
    SandboxSpec,
)
from infra.temporal.faults import naming
from infra.temporal.heartbeat import Beat, heartbeating
from mainspring.config.sandbox import SandboxConfig
from mainspring.ids import NodeId, RolloutId, SandboxId
from mainspring.status import SandboxStatus
from mainspring.tasks.task import Task

log = structlog.get_logger()


def sandbox_spec(
    sandbox: SandboxId, task: Task, config: SandboxConfig, labels: Mapping[str, str]
) -> SandboxSpec:
    return SandboxSpec(
        id=sandbox,
        workdir=task.workdir,
        image=task.image,
        files=task.files,
        alteration=Alteration(task.base_patch, task.hidden_files),
        labels=labels,
        allow_hosts=task.allow_hosts,
        limits=Limits(
            memory_mb=config.memory_mb,
            max_pids=config.max_pids,
            cpus=config.cpus,
            disk_mb=config.disk_mb,
            output_bytes=config.output_bytes,
        ),
    )


class HeldSandboxes:
    def __init__(self, db: Database, known: Known, node: NodeId, backends: Backends) -> None:
        self._db = db
        self._known = known
        self._node = node
        self._backends = backends
        self._held: dict[SandboxId, Sandbox] = {}
        self._num_closing = 0

    def __len__(self) -> int:
        """Those being closed included: they still use the node."""
        return len(self._held) + self._num_closing

    def ids(self) -> set[SandboxId]:
        return set(self._held)

    def __contains__(self, sandbox: SandboxId) -> bool:
        return sandbox in self._held

    def get(self, sandbox: SandboxId) -> Sandbox:
        """Raises SandboxLost."""
        held = self._held.get(sandbox)
        if held is None:
            raise SandboxLost(f"sandbox {sandbox} is not on node {self._node} any more")
        return held

    @asynccontextmanager
    async def working(
        self, note: str, rollout: RolloutId, sandbox: SandboxId
    ) -> AsyncIterator[Beat]:
        """Heartbeats while an activity works on the sandbox; what goes wrong names it."""
        async with heartbeating(note) as beat, naming(self._known, self._node, rollout, sandbox):
            yield beat

    async def open(
        self,
        backend: SandboxBackend,
        spec: SandboxSpec,
        rollout: RolloutId,
        epoch: int,
        max_open: int | None,
    ) -> None:
        """Raises what the store and the backend raise; then nothing of it is left."""
        await sandboxes.open_lease(
            self._db,
            spec.id,
            rollout,
            epoch,
            purpose=SandboxPurpose.AGENT,
            node=self._node,
            backend=backend.name,
            max_open=max_open,
        )
        try:
            self._held[spec.id] = await backend.open(spec)
        except BaseException:
            # Also a cancel in the middle: the workflow never learns of this sandbox.
            await asyncio.shield(self._undo_open(backend, spec.id))
            raise

    async def adopt(self) -> int:
        """Take over what a predecessor on this node left; the number of sandboxes held now.

        Backends of your own are found by the names in leases, so that the reaper lists theirs."""
        for name in await sandboxes.backends_on(self._db, self._node):
            await self._backends.find(name)
        for lease in await sandboxes.open_leases(self._db, self._node):
            try:
                self._held[lease.sandbox] = await self._attach(lease)
            except SandboxLost as lost:
                log.info("not taken over", node=self._node, reason=lost.message)
                await sandboxes.close_lease(self._db, lease.sandbox, self._node, SandboxStatus.LOST)
        return len(self._held)

    async def release(self, sandbox: SandboxId) -> bool:
        """Remove a sandbox that this process holds; False when it holds none of this id."""
        held = self._held.pop(sandbox, None)
        if held is None:
            return False
        self._num_closing += 1
        try:
            await asyncio.shield(held.close())
        finally:
            self._num_closing -= 1
        return True

    async def close(self, sandbox: SandboxId) -> None:
        """Remove the sandbox and end its lease."""
        closed = await self.release(sandbox)
        status = SandboxStatus.CLOSED if closed else SandboxStatus.LOST
        await sandboxes.close_lease(self._db, sandbox, self._node, status)

    async def release_all(self) -> None:
        """At a stop that leaves nothing to a successor. Raises DatabaseError, and then too no
        sandbox is left."""
        held = list(self._held)
        await asyncio.gather(*map(self.release, held))
        for sandbox in held:
            await sandboxes.close_lease(self._db, sandbox, self._node)

    async def ping(self) -> None:
        """Tell all sandboxes that their node lives. One that is gone reports it at its next use."""

        async def one(sandbox: Sandbox) -> None:
            with contextlib.suppress(SandboxLost):
                await sandbox.ping()

        await asyncio.gather(*map(one, self._held.values()))

    async def _attach(self, lease: sandboxes.Lease) -> Sandbox:
        backend = await self._backends.find(lease.backend)
        if lease.purpose is not SandboxPurpose.AGENT:
            raise SandboxLost(f"sandbox {lease.sandbox} was grading: grading starts again")
        if isinstance(backend, BackendUnavailable):
            raise SandboxLost(f"sandbox {lease.sandbox}: {backend.message}")
        claim = await self._known.rollout(lease.rollout)
        task = await self._known.task(claim.task)
        config = await self._known.config(claim.campaign)
        spec = sandbox_spec(lease.sandbox, task, config.sandbox, labels={})
        return await backend.attach(spec, busy_s=config.agent.command_timeout_s)

    async def _undo_open(self, backend: SandboxBackend, sandbox: SandboxId) -> None:
        await backend.remove(sandbox)
        await sandboxes.close_lease(self._db, sandbox, self._node)
