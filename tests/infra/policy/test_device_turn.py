"""Requests wait for the engines' turn on shared devices, and one look is for all of a process."""

import asyncio

import pytest

from infra.db.leases import Holder
from infra.policy.engines import device_turn
from infra.policy.engines.device_turn import SINCE_CUT_S, DeviceTurn
from infra.process_start import pid_space, this_process
from mainspring.errors import EngineBusy

ENDED = f"{pid_space()}/{2**22 - 1}/1"
"""A process that is not there."""


class Devices:
    def __init__(self) -> None:
        self.holder: Holder | None = None
        self.num_looks = 0

    async def look(self) -> Holder | None:
        self.num_looks += 1
        return self.holder


def trainer(process: str = "", silent_s: float = 0.0) -> Holder:
    return Holder("host pid 7", process or this_process(), 5.0, silent_s)


async def test_all_requests_of_a_process_wait_with_one_look_at_a_time() -> None:
    devices = Devices()
    turn = DeviceTurn(devices.look)
    await asyncio.gather(*(turn.come() for _ in range(50)))
    assert devices.num_looks == 1
    devices.holder = trainer()
    await turn.come()  # what was seen a moment ago holds
    await asyncio.sleep(SINCE_CUT_S)
    waiting = [asyncio.create_task(turn.come(anew=True)) for _ in range(50)]
    await asyncio.sleep(1.2)
    assert devices.num_looks <= 6 and not any(task.done() for task in waiting)
    devices.holder = None
    await asyncio.wait_for(asyncio.gather(*waiting), 60)


@pytest.mark.parametrize("holder", [trainer(process=ENDED), trainer(silent_s=1e6)])
async def test_nothing_waits_for_a_trainer_that_is_gone(holder: Holder) -> None:
    devices = Devices()
    devices.holder = holder
    assert holder.is_gone
    await asyncio.wait_for(DeviceTurn(devices.look).come(), 60)


async def test_a_wait_that_lasts_is_told_as_what_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_turn, "WAIT_S", 0.1)
    devices = Devices()
    devices.holder = trainer()
    with pytest.raises(EngineBusy, match="given their memory to the trainer") as told:
        await DeviceTurn(devices.look).come()
    assert "trainer.colocate" in told.value.remedy
