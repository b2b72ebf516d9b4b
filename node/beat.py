"""The node's beat: it reports what the node holds, hears whether to drain, and acts on it.

Invariants: while the node drains, the shared queues are not polled at all, and it reports
`draining` only once that is so; an unreachable database is waited for and ends nothing. Owns the
workers of the shared queues: they start when the first beat was heard, so that a node which was
drained before a reboot takes nothing after it.
"""

import asyncio
import time
from collections.abc import Callable
from datetime import UTC, datetime

import structlog
from temporalio.common import MetricMeter
from temporalio.worker import Worker

from infra.db.database import Database
from infra.db.nodes import nodes
from infra.sandbox.backends import Backends
from infra.tracking import process_figures
from mainspring import __version__
from mainspring.errors import DatabaseError
from mainspring.protocol.timeouts import NODE_BEAT_S
from node.capacity import Admission

IMAGES_EVERY_S = 30.0
"""Images come and go slowly, and a host may have a thousand of them."""

log = structlog.get_logger()


class NodePulse:
    def __init__(
        self,
        db: Database,
        admission: Admission,
        backends: Backends,
        images: Callable[[], list[str]],
        shared: Callable[[], list[Worker]],
        meter: MetricMeter,
    ) -> None:
        """`images` lists those present, and may block; `shared` makes the workers of the shared
        queues, anew each time the node begins to take work."""
        self._db = db
        self._admission = admission
        self._backends = backends
        self._list_images = images
        self._make_shared = shared
        self._meter = meter
        self._started = time.monotonic()
        self._images: list[str] = []
        self._images_at = -IMAGES_EVERY_S
        self._polling: list[tuple[Worker, asyncio.Task[None]]] = []

    async def run_forever(self) -> None:
        """Returns never; raises what ends a worker of the shared queues."""
        try:
            while True:
                try:
                    await self.beat()
                except DatabaseError as error:
                    log.warning("the node's beat is late", reason=error.message)
                await asyncio.sleep(NODE_BEAT_S)
        finally:
            await self._stop_taking()

    async def beat(self) -> None:
        """Once. Raises DatabaseError."""
        for _, running in self._polling:
            if running.done():
                running.result()
        said = await self._said()
        draining = await nodes.beat(self._db, said)
        process_figures.node_state(self._meter, said, draining=draining)
        if draining != self._admission.draining:
            log.info("the node drains" if draining else "the node takes new work again")
        self._admission.draining = draining
        if draining:
            await self._stop_taking()
        elif not self._polling:
            self._polling = [
                (worker, asyncio.create_task(worker.run())) for worker in self._make_shared()
            ]

    async def _said(self) -> nodes.NodeBeat:
        if time.monotonic() - self._images_at >= IMAGES_EVERY_S:
            self._images = await asyncio.to_thread(self._list_images)
            self._images_at = time.monotonic()
        free = self._admission.free()
        return nodes.NodeBeat(
            id=self._admission.node,
            capacity=self._admission.capacity,
            num_open=self._admission.num_open,
            refusal=self._admission.refusal(),
            backends=list(self._backends.working()),
            images=self._images,
            disk_free_mb=free.disk_mb,
            memory_free_mb=free.memory_mb,
            version=__version__,
            running_s=time.monotonic() - self._started,
            clock=datetime.now(UTC),
        )

    async def _stop_taking(self) -> None:
        """Returns when nothing is polled for any more and what was taken has ended or gone back."""
        await asyncio.gather(*(worker.shutdown() for worker, _ in self._polling))
        await asyncio.gather(*(running for _, running in self._polling))
        self._polling.clear()
