"""Two trainer processes of one campaign: one works, the other stands aside and names the first."""

import asyncio
import os
import signal
import sys

import psutil
import pytest
from structlog.testing import capture_logs

from cli.operations.machine.embedded_stack import StackInfo
from infra import process_start
from infra.db.database import Database
from infra.db.runs import campaigns
from infra.db.training import trainers
from mainspring.config.campaign import CampaignConfig
from mainspring.ids import CampaignId, campaign_id
from mainspring.training.training_faults import TrainerFenced
from workers import trainer_lease

HOLDER = """
import asyncio, sys
from infra.db.database import Database
from mainspring.ids import campaign_id
from workers import trainer_lease

async def hold():
    async with Database.open(sys.argv[1]) as db:
        lease = await trainer_lease.take(db, campaign_id(sys.argv[2]))
        print("holds", lease.epoch, flush=True)
        await trainer_lease.keep(db, lease)

asyncio.run(hold())
"""


async def stored(db: Database, name: str) -> CampaignId:
    await campaigns.create(
        db, CampaignConfig.model_validate({"name": name, "trainer": {"warm_start": {}}})
    )
    return campaign_id(name)


async def test_the_second_trainer_waits_for_the_first_and_follows_its_death(
    stack: StackInfo,
) -> None:
    async with Database.open(stack.database_url) as db:
        campaign = await stored(db, "lease-death")
        first = await asyncio.create_subprocess_exec(
            sys.executable,
            "-c",
            HOLDER,
            stack.database_url,
            campaign,
            stdout=asyncio.subprocess.PIPE,
        )
        assert first.stdout is not None
        assert b"holds 1" in await _line_with(first.stdout, b"holds")
        with capture_logs() as said:
            second = asyncio.create_task(trainer_lease.take(db, campaign))
            while not said:
                await asyncio.sleep(0.1)
            assert not second.done()
        [waits] = said
        held = await trainers.holder(db, campaign)
        assert waits["holder"] == held.owner and f"pid {first.pid}" in held.owner
        assert waits["since"] == f"{held.since:%Y-%m-%d %H:%M:%S}"
        # seen by its pid, long before its silence would be
        os.kill(first.pid, signal.SIGKILL)
        await first.wait()
        lease = await second
        assert lease.epoch == 2


async def test_a_trainer_that_was_replaced_ends(stack: StackInfo) -> None:
    async with Database.open(stack.database_url) as db:
        campaign = await stored(db, "lease-fenced")
        mine = await trainer_lease.take(db, campaign)
        keeping = asyncio.create_task(trainer_lease.keep(db, mine))
        await asyncio.sleep(0.2)
        assert not keeping.done()
        keeping.cancel()
        await trainers.take(db, campaign, owner="other", process="p", ended=mine.process)
        with pytest.raises(TrainerFenced, match="trainer other took over"):
            await trainer_lease.keep(db, mine)


def test_a_process_is_known_beyond_its_pid() -> None:
    me = process_start.this_process()
    assert not process_start.has_ended(me)
    place, pid, _ = me.rsplit("/", 2)
    assert process_start.has_ended(f"{place}/{pid}/12.00")  # the pid was given again
    unused = max(psutil.pids()) + 100_000
    assert process_start.has_ended(f"{place}/{unused}/12.00")
    assert not process_start.has_ended(f"other-host/pid:[1]/{unused}/12.00")


async def _line_with(stream: asyncio.StreamReader, word: bytes) -> bytes:
    while word not in (line := await stream.readline()):
        assert line
    return line
