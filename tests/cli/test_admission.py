"""A node's room: the decision, the count of what it holds, and the slots it polls with."""

import asyncio
import dataclasses
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from temporalio.testing import ActivityEnvironment
from temporalio.worker import SlotPermit, SlotReleaseContext

from infra.temporal.faults import NodeFull, failure
from mainspring.config.settings import Settings
from mainspring.ids import SANDBOX_QUEUE, NodeId, node_queue
from mainspring.status import FaultKind, NodeRefusal
from node.capacity import Admission, Free, SandboxSlots, room

NODE = NodeId("n")
PLENTY = Free(memory_mb=9000, disk_mb=9000)
WATERMARKS = Free(memory_mb=512, disk_mb=2048)


@pytest.mark.parametrize(
    ("num_taken", "draining", "free", "refusal"),
    [
        (0, False, PLENTY, None),
        (3, False, PLENTY, None),
        (4, False, PLENTY, "full"),
        (9, False, PLENTY, "full"),
        (0, True, PLENTY, "draining"),
        (4, True, Free(0, 0), "draining"),
        (0, False, Free(511, 9000), "low memory"),
        (0, False, Free(512, 2048), None),
        (0, False, Free(9000, 2047), "low disk"),
        (4, False, Free(0, 0), "full"),
    ],
)
def test_room(num_taken: int, draining: bool, free: Free, refusal: str | None) -> None:
    found = room(num_taken=num_taken, capacity=4, draining=draining, free=free, at_least=WATERMARKS)
    assert found == refusal


def test_a_watermark_of_zero_is_off() -> None:
    none = Free(memory_mb=0, disk_mb=0)
    assert room(num_taken=0, capacity=1, draining=False, free=none, at_least=none) is None


def admission(home: Path, held: list[str], capacity: int = 2, **settings: int) -> Admission:
    watermarks = {"node_min_free_memory_mb": 0, "node_min_free_disk_mb": 0} | settings
    return Admission(NODE, capacity, lambda: len(held), Settings(home=home, **watermarks))


def test_what_is_free_is_measured(tmp_path: Path) -> None:
    impossible = 1 << 40
    assert admission(tmp_path, []).refusal() is None
    low_memory = admission(tmp_path, [], node_min_free_memory_mb=impossible)
    assert low_memory.refusal() is NodeRefusal.LOW_MEMORY
    low_disk = admission(tmp_path, [], node_min_free_disk_mb=impossible)
    assert low_disk.refusal() is NodeRefusal.LOW_DISK


async def soon(slot: asyncio.Task[SlotPermit]) -> bool:
    done, _ = await asyncio.wait([slot], timeout=0.3)
    return bool(done)


CONTEXT: Any = None
"""What the SDK says of a reservation; nothing here depends on it."""


async def test_slots_are_what_is_left_and_come_back(tmp_path: Path) -> None:
    held = ["one"]
    slots = SandboxSlots(admission(tmp_path, held))
    first = await slots.reserve_slot(CONTEXT)
    assert slots.try_reserve_slot(CONTEXT) is None
    waiting = asyncio.create_task(slots.reserve_slot(CONTEXT))
    assert not await soon(waiting)
    # The poll brought nothing: its slot is free again.
    slots.release_slot(SlotReleaseContext(slot_info=None, permit=first))
    assert await soon(waiting)
    waiting = asyncio.create_task(slots.reserve_slot(CONTEXT))
    assert not await soon(waiting)
    held.clear()
    assert await soon(waiting)


async def test_a_cancelled_wait_for_a_slot_takes_nothing(tmp_path: Path) -> None:
    held = ["one", "two"]
    slots = SandboxSlots(admission(tmp_path, held))
    waiting = [asyncio.create_task(slots.reserve_slot(CONTEXT)) for _ in range(3)]
    await asyncio.sleep(0.1)
    for each in waiting:
        each.cancel()
    await asyncio.wait(waiting)
    held.clear()
    assert slots.try_reserve_slot(CONTEXT) is not None
    assert slots.try_reserve_slot(CONTEXT) is not None
    assert slots.try_reserve_slot(CONTEXT) is None


async def test_a_draining_node_reserves_nothing(tmp_path: Path) -> None:
    node = admission(tmp_path, [])
    slots = SandboxSlots(node)
    node.draining = True
    waiting = asyncio.create_task(slots.reserve_slot(CONTEXT))
    assert not await soon(waiting)
    node.draining = False
    assert await soon(waiting)


async def as_activity(queue: str, call: Callable[[], Awaitable[None]]) -> None:
    environment = ActivityEnvironment()
    environment.info = dataclasses.replace(environment.info, task_queue=queue)
    await environment.run(call)


async def test_a_slot_whose_sandbox_is_being_opened_counts_once(tmp_path: Path) -> None:
    held: list[str] = []
    node = admission(tmp_path, held, capacity=2)
    slots = SandboxSlots(node)
    permit = slots.try_reserve_slot(CONTEXT)
    assert permit is not None

    async def open_one() -> None:
        with node.opening():
            assert node.num_open == 1
            second = slots.try_reserve_slot(CONTEXT)
            assert second is not None
            assert slots.try_reserve_slot(CONTEXT) is None
            slots.release_slot(SlotReleaseContext(slot_info=None, permit=second))
            held.append("opened")

    await as_activity(SANDBOX_QUEUE, open_one)
    slots.release_slot(SlotReleaseContext(slot_info=None, permit=permit))
    assert node.num_open == 1
    assert slots.try_reserve_slot(CONTEXT) is not None
    assert slots.try_reserve_slot(CONTEXT) is None


async def test_an_open_that_a_full_node_gets_is_refused_and_may_be_retried(tmp_path: Path) -> None:
    held: list[str] = []
    node = admission(tmp_path, held, capacity=1)
    slots = SandboxSlots(node)
    # Polling with its only slot, the node takes an open for its own queue: the poll may still
    # bring another, which then has to go elsewhere.
    assert slots.try_reserve_slot(CONTEXT) is not None

    async def open_both() -> None:
        with node.opening():
            with pytest.raises(NodeFull) as refused, node.opening():
                raise AssertionError("opened a second one")
            told = failure(refused.value, attempt=50, waited_s=3600.0)
            assert told.type == FaultKind.NODE_FULL and not told.non_retryable

    await as_activity(node_queue(NODE), open_both)
    assert node.num_open == 0


async def test_an_open_that_fails_leaves_its_place(tmp_path: Path) -> None:
    node = admission(tmp_path, [], capacity=1)

    async def fail() -> None:
        with pytest.raises(OSError), node.opening():
            raise OSError("no image")

    await as_activity(SANDBOX_QUEUE, fail)
    assert (node.num_open, node.num_opening_by_slot, node.refusal()) == (0, 0, None)
