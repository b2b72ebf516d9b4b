"""The worlds this node's process holds: opened, taken over from its predecessor, released.

Invariants: a lease is written before a world is made and closed after it is gone; what is held
can be used at once and everything else is lost; sandboxes outlive the process, and the next one
takes over (`adopt`) those whose rollouts continue. Used by the sandbox activities and the reaper.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import structlog

from infra.db.cache import FactCache
from infra.db.database import Database
from infra.db.nodes import sandboxes
from infra.environments.hosted import Environments, Hosted, HostedWorld
from infra.sandbox.protocol import BackendUnavailable, SandboxLost
from infra.temporal.faults import naming
from infra.temporal.heartbeat import Beat, heartbeating
from mainspring.environments.protocol import Place, WorldLost
from mainspring.errors import ConfigError
from mainspring.ids import NodeId, RolloutId, SandboxId
from mainspring.status import SandboxPurpose, SandboxStatus
from mainspring.tasks.sandbox_choice import IN_PROCESS

log = structlog.get_logger()


class HeldSandboxes:
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
        self._held: dict[SandboxId, HostedWorld] = {}
        self._num_closing = 0
        self._beside: dict[SandboxId, Callable[[], Awaitable[None]]] = {}
        """By sandbox, what ends that which works beside it."""

    def __len__(self) -> int:
        """Those being closed included: they still use the node."""
        return len(self._held) + self._num_closing

    def ids(self) -> set[SandboxId]:
        return set(self._held)

    def __contains__(self, sandbox: SandboxId) -> bool:
        return sandbox in self._held

    def get(self, sandbox: SandboxId) -> HostedWorld:
        """Raises WorldLost."""
        live = self._held.get(sandbox)
        if live is None:
            raise SandboxLost(f"sandbox {sandbox} is not on node {self._node} any more")
        return live

    @contextmanager
    def beside(self, sandbox: SandboxId, end: Callable[[], Awaitable[None]]) -> Iterator[None]:
        """While the block runs, `end` is called before the sandbox is removed: what works beside it
        must not outlive it."""
        self._beside[sandbox] = end
        try:
            yield
        finally:
            del self._beside[sandbox]

    @asynccontextmanager
    async def working(
        self, note: str, rollout: RolloutId, sandbox: SandboxId
    ) -> AsyncIterator[Beat]:
        """Heartbeats while an activity works on the sandbox; what goes wrong names it."""
        async with heartbeating(note) as beat, naming(self._cache, self._node, rollout, sandbox):
            yield beat

    async def open(self, sandbox: SandboxId, rollout: RolloutId, epoch: int) -> None:
        """Raises what the store and the environment raise; then nothing of it is left."""
        is_leased = False

        async def lease(backend: str) -> None:
            nonlocal is_leased
            await sandboxes.open_lease(
                self._db,
                sandbox,
                rollout,
                epoch,
                purpose=SandboxPurpose.AGENT,
                node=self._node,
                backend=backend,
                max_open=place.config.sandbox.max_open,
            )
            is_leased = True

        environment, task, place = await self._placed(sandbox, rollout, epoch, lease)
        try:
            self._held[sandbox] = await environment.open(task, place)
        except BaseException:
            if is_leased:
                await asyncio.shield(sandboxes.close_lease(self._db, sandbox, self._node))
            raise

    async def adopt(self) -> int:
        """Take over what a predecessor on this node left; the number of sandboxes held now.

        Backends of your own are found by the names in leases, so that the reaper lists theirs."""
        for name in await sandboxes.backends_on(self._db, self._node):
            if name != IN_PROCESS:
                await self._environments.backends.find(name)
        for lease in await sandboxes.open_leases(self._db, self._node):
            try:
                self._held[lease.sandbox] = await self._attach(lease)
            except WorldLost as lost:
                log.info("not taken over", node=self._node, reason=lost.message)
                await sandboxes.close_lease(self._db, lease.sandbox, self._node, SandboxStatus.LOST)
        return len(self._held)

    async def release(self, sandbox: SandboxId) -> bool:
        """Remove a sandbox that this process holds; False when it holds none of this id."""
        live = self._held.pop(sandbox, None)
        if live is None:
            return False
        self._num_closing += 1
        try:
            if (end := self._beside.get(sandbox)) is not None:
                await asyncio.shield(end())
            await asyncio.shield(live.close())
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
        ids = list(self._held)
        await asyncio.gather(*map(self.release, ids))
        for sandbox in ids:
            await sandboxes.close_lease(self._db, sandbox, self._node)

    async def ping(self) -> None:
        """Tell all sandboxes that their node lives. One that is gone reports it at its next use."""

        async def one(world: HostedWorld) -> None:
            with contextlib.suppress(WorldLost):
                await world.ping()

        await asyncio.gather(*map(one, self._held.values()))

    async def _attach(self, lease: sandboxes.Lease) -> HostedWorld:
        if lease.purpose is not SandboxPurpose.AGENT:
            raise SandboxLost(f"sandbox {lease.sandbox} was grading: grading starts again")
        if lease.backend == IN_PROCESS:
            raise WorldLost(f"world {lease.sandbox} ended with the process that held it")
        backend = await self._environments.backends.find(lease.backend)
        if isinstance(backend, BackendUnavailable):
            raise SandboxLost(f"sandbox {lease.sandbox}: {backend.message}")
        try:
            environment, task, place = await self._placed(
                lease.sandbox, lease.rollout, lease.epoch, _is_leased
            )
        except ConfigError as error:
            raise SandboxLost(f"sandbox {lease.sandbox}: {error.message}") from error
        return await environment.attach(task, place, backend)

    async def _placed(
        self,
        sandbox: SandboxId,
        rollout: RolloutId,
        epoch: int,
        lease: Callable[[str], Awaitable[None]],
    ) -> tuple[Hosted, Any, Place]:
        """Its environment, its task and its place. Raises ConfigError."""
        facts = await self._cache.rollout(rollout)
        labels = {
            "campaign": facts.campaign,
            "rollout": rollout,
            "epoch": str(epoch),
            "node": self._node,
        }
        place = Place(sandbox, rollout, facts.config, labels, lease)
        return self._environments.of(facts.config, facts.task), facts.task, place


async def _is_leased(backend: str) -> None:
    """A sandbox that is taken over has its lease."""
