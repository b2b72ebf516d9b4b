"""The node's reaper: removes sandboxes without an owner.

Invariant 7's third layer, for what `finally` cannot reach (terminate, SIGKILL, reboot). A sandbox
is owned while its lease is open on this node for a rollout that has not ended; leases are written
before sandboxes are opened, so everything else that exists here is removed.
"""

import asyncio

import structlog

from infra.db.database import Database
from infra.db.nodes import sandboxes
from infra.sandbox.backends import Backends
from mainspring.errors import DatabaseError, SandboxError
from mainspring.ids import NodeId
from mainspring.protocol.timeouts import REAP_EVERY_S
from mainspring.status import SandboxStatus
from node.held_sandboxes import HeldSandboxes

log = structlog.get_logger()


class Reaper:
    def __init__(
        self,
        db: Database,
        node: NodeId,
        backends: Backends,
        held: HeldSandboxes,
    ) -> None:
        self._db = db
        self._node = node
        self._backends = backends
        self._held = held

    async def reap(self) -> int:
        """Remove sandboxes without an owner; the number removed."""
        num_removed = 0
        for lease in await sandboxes.leases_without_live_rollout(self._db, self._node):
            await self._held.release(lease.sandbox)
            await sandboxes.close_lease(self._db, lease.sandbox, self._node, SandboxStatus.REAPED)
        # Held without a lease: its rollout ended while it was being opened.
        existing = [(sandbox, None) for sandbox in self._held.ids()]
        for backend in self._backends.working().values():
            existing += [(sandbox, backend) for sandbox in await backend.list_open()]
        owned = {lease.sandbox for lease in await sandboxes.open_leases(self._db, self._node)}
        for sandbox, backend in existing:
            if sandbox not in owned:
                if await self._held.release(sandbox):
                    num_removed += 1
                elif backend is not None:
                    await backend.remove(sandbox)
                    num_removed += 1
        if num_removed:
            log.info("reaped", node=self._node, sandboxes=num_removed)
        return num_removed

    async def run_forever(self) -> None:
        while True:
            await asyncio.sleep(REAP_EVERY_S)
            await self._held.ping()
            try:
                await self.reap()
            except (DatabaseError, SandboxError) as error:
                log.warning("nothing reaped this time", node=self._node, reason=error.message)
