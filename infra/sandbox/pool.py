"""Sandboxes kept ready: opening one alike takes it instead of waiting for a start.

Owns the idle sandboxes of one backend, under ids of its own; otherwise it is that backend.
Invariants: an idle sandbox is given away once, and was never used before; idle ones are not
listed as open, so that no reaper takes them, but those of a process that died are; never more than
`size` are idle. Made by the node's worker, which tells what will be needed (`prepare`).
"""

import asyncio
import dataclasses
import uuid
from collections import Counter
from collections.abc import Hashable, Iterable

import structlog

from infra.sandbox.protocol import Sandbox, SandboxBackend, SandboxLost, SandboxSpec
from mainspring.errors import SandboxError
from mainspring.ids import SandboxId

log = structlog.get_logger()


class WarmPool:
    """A SandboxBackend in front of another one."""

    def __init__(self, backend: SandboxBackend, size: int) -> None:
        self._backend = backend
        self.size = size
        self._ready: dict[SandboxId, tuple[Hashable, Sandbox]] = {}
        self._moving: set[SandboxId] = set()
        """Being made, or on their way to who opened one; no other caller may touch them."""
        self._one_prepares = asyncio.Lock()

    @property
    def name(self) -> str:
        return self._backend.name

    @property
    def num_ready(self) -> int:
        return len(self._ready)

    async def probe(self) -> None:
        await self._backend.probe()

    async def open(self, spec: SandboxSpec) -> Sandbox:
        while (idle := self._take(_kind(spec))) is not None:
            self._moving.add(idle)
            try:
                sandbox = await self._backend.rename(idle, spec)
                await sandbox.ping()
                return sandbox
            except SandboxLost:
                log.info("a sandbox kept ready had ended", sandbox=idle)
            finally:
                self._moving.discard(idle)
        return await self._backend.open(spec)

    async def prepare(self, upcoming: Iterable[SandboxSpec]) -> None:
        """Keep one sandbox ready for each of `upcoming`, the most urgent first, up to the pool's
        size; their ids do not matter. What is ready and not wanted any more is removed."""
        async with self._one_prepares:
            specs = list(upcoming)[: self.size]
            missing = Counter(map(_kind, specs))
            for idle, (kind, _) in list(self._ready.items()):
                missing[kind] -= 1
                if missing[kind] < 0:
                    await self._drop(idle)
            for spec in specs:
                kind = _kind(spec)
                if missing[kind] > 0:
                    missing[kind] -= 1
                    await self._start(kind, spec)

    async def ping(self) -> None:
        """Idle sandboxes, too, must hear that their node lives; those that ended are forgotten."""
        for idle, (_, sandbox) in list(self._ready.items()):
            try:
                await sandbox.ping()
            except SandboxLost:
                self._ready.pop(idle, None)

    async def close(self) -> None:
        """Remove what was not taken."""
        await self.prepare([])

    async def attach(self, spec: SandboxSpec, busy_s: float) -> Sandbox:
        return await self._backend.attach(spec, busy_s)

    async def rename(self, sandbox: SandboxId, spec: SandboxSpec) -> Sandbox:
        return await self._backend.rename(sandbox, spec)

    async def list_open(self) -> list[SandboxId]:
        # Before and after the listing: what moves meanwhile must not look like a leftover.
        own = {*self._ready, *self._moving}
        ids = await self._backend.list_open()
        return [
            sandbox for sandbox in ids if sandbox not in own | self._ready.keys() | self._moving
        ]

    async def remove(self, sandbox: SandboxId) -> None:
        await self._backend.remove(sandbox)

    def _take(self, kind: Hashable) -> SandboxId | None:
        for idle, (idle_kind, _) in self._ready.items():
            if idle_kind == kind:
                del self._ready[idle]
                return idle
        return None

    async def _start(self, kind: Hashable, spec: SandboxSpec) -> None:
        # One after the other: getting ready must not slow the sandboxes that are in use.
        idle = SandboxId(f"idle-{uuid.uuid4().hex[:12]}")
        self._moving.add(idle)
        try:
            self._ready[idle] = kind, await self._backend.open(dataclasses.replace(spec, id=idle))
        except SandboxError as error:
            # The rollout that needs it meets the same error, and reports it.
            log.info("no sandbox kept ready", image=spec.image, reason=error.message)
        finally:
            self._moving.discard(idle)

    async def _drop(self, idle: SandboxId) -> None:
        _, sandbox = self._ready.pop(idle)
        try:
            await sandbox.close()
        except SandboxError as error:
            log.info("left to the reaper", sandbox=idle, reason=error.message)


def _kind(spec: SandboxSpec) -> Hashable:
    """Facts that two sandboxes must share for one to stand for the other."""
    return (
        spec.image,
        spec.workdir,
        tuple(sorted(spec.files.items())),
        spec.alteration,
        spec.limits,
        spec.allow_hosts,
        spec.writable_dirs,
        tuple(sorted(spec.mounts.items())),
        tuple(sorted(spec.environment.items())),
        spec.clock,
    )
