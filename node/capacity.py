"""Capacity of a node: how many sandboxes it takes, when none, and the poll slots that follow.

Invariants: sandboxes open and being opened never exceed the capacity, whichever queue asked for
them; a node that takes nothing does not poll the shared queue, so that what waits there goes to
another node; a slot whose poll brought no sandbox is given back. Made by the node's worker process,
used by the sandbox activities and the node's beat.
"""

import asyncio
import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import psutil
from temporalio import activity
from temporalio.worker import (
    CustomSlotSupplier,
    FixedSizeSlotSupplier,
    SlotMarkUsedContext,
    SlotPermit,
    SlotReleaseContext,
    SlotReserveContext,
    WorkerTuner,
)

from infra.temporal.faults import NodeFull
from mainspring.config.settings import Settings
from mainspring.ids import SANDBOX_QUEUE, NodeId
from mainspring.status import NodeRefusal

ASK_AGAIN_S = 0.05
"""A full node looks this often whether it has room: what a waiting open loses at most."""
MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class Free:
    """Memory and disk that are left on a node, or must be left for it to take a sandbox."""

    memory_mb: int
    disk_mb: int


def room(
    *, num_taken: int, capacity: int, draining: bool, free: Free, at_least: Free
) -> NodeRefusal | None:
    """Why a node in this state takes no new sandbox; None: it does."""
    if draining:
        return NodeRefusal.DRAINING
    if num_taken >= capacity:
        return NodeRefusal.FULL
    if free.memory_mb < at_least.memory_mb:
        return NodeRefusal.LOW_MEMORY
    if free.disk_mb < at_least.disk_mb:
        return NodeRefusal.LOW_DISK
    return None


class Admission:
    """One node's count of what it holds, and its answer to whether it takes more."""

    def __init__(
        self, node: NodeId, capacity: int, held: Callable[[], int], settings: Settings
    ) -> None:
        """`held` gives the number of sandboxes that are open, without those being opened."""
        self.node = node
        self.capacity = capacity
        self.draining = False
        self._held = held
        self._state_dir = settings.home
        self._at_least = Free(settings.node_min_free_memory_mb, settings.node_min_free_disk_mb)
        self._num_opening = 0
        self.num_opening_by_slot = 0
        """Those of them that came through a slot of the shared queue."""

    @property
    def num_open(self) -> int:
        """Sandboxes open or being opened."""
        return self._held() + self._num_opening

    def free(self) -> Free:
        return Free(
            memory_mb=psutil.virtual_memory().available // MIB,
            disk_mb=shutil.disk_usage(self._state_dir).free // MIB,
        )

    def refusal(self, num_reserved: int = 0) -> NodeRefusal | None:
        """Why nothing new is taken, `num_reserved` sandboxes that may yet come counted in."""
        return room(
            num_taken=self.num_open + num_reserved,
            capacity=self.capacity,
            draining=self.draining,
            free=self.free(),
            at_least=self._at_least,
        )

    @contextmanager
    def opening(self) -> Iterator[None]:
        """Around the opening of one sandbox, until it is held. Raises NodeFull.

        Nothing may be awaited between the sandbox's being held and the end of this.
        """
        if (refusal := self.refusal()) is not None:
            raise NodeFull(f"node {self.node} takes no new sandbox: {refusal}")
        by_slot = activity.info().task_queue == SANDBOX_QUEUE
        self._num_opening += 1
        self.num_opening_by_slot += by_slot
        try:
            yield
        finally:
            self._num_opening -= 1
            self.num_opening_by_slot -= by_slot


class SandboxSlots(CustomSlotSupplier):
    """A slot to poll the shared queue with for each sandbox the node has room for.

    A slot counts from its reservation until its sandbox is being opened, which counts itself, or
    until it is released. One supplier for each Worker: slots do not outlive it.
    """

    def __init__(self, admission: Admission) -> None:
        self._admission = admission
        self._reserved: set[SlotPermit] = set()
        self._asking = asyncio.Lock()
        # The SDK reserves on the event loop and releases on threads of its own.
        self._counting = threading.Lock()

    async def reserve_slot(self, ctx: SlotReserveContext) -> SlotPermit:
        async with self._asking:
            while (permit := self.try_reserve_slot(ctx)) is None:
                await asyncio.sleep(ASK_AGAIN_S)
            return permit

    def try_reserve_slot(self, ctx: SlotReserveContext) -> SlotPermit | None:
        with self._counting:
            num_waiting = len(self._reserved) - self._admission.num_opening_by_slot
            if self._admission.refusal(num_reserved=max(0, num_waiting)) is not None:
                return None
            permit = SlotPermit()
            self._reserved.add(permit)
            return permit

    def mark_slot_used(self, ctx: SlotMarkUsedContext) -> None:
        """Nothing changes: the sandbox counts in the slot's place once it is being opened."""

    def release_slot(self, ctx: SlotReleaseContext) -> None:
        with self._counting:
            self._reserved.discard(ctx.permit)

    def tuner(self) -> WorkerTuner:
        """For a worker that runs activities only."""
        unused = FixedSizeSlotSupplier(1)
        return WorkerTuner.create_composite(
            workflow_supplier=unused,
            activity_supplier=self,
            local_activity_supplier=unused,
            nexus_supplier=unused,
        )
