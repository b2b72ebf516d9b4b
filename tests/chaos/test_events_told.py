"""A campaign whose node, engine, trainer and Postgres are killed: each leaves its event, once."""

import asyncio
import os
import signal

import pytest

from cli.operations.machine.embedded_stack import temporary
from cli.operations.machine.fleet import Fleet
from cli.operations.runs import campaign_launch, run_to_end
from cli.operations.runs.local_campaign import members
from infra.db.connect import open_database
from infra.db.database import Database
from infra.db.runs import campaigns, events
from infra.db.training import policies, trainers
from infra.stack.postgres_server import Postgres
from infra.temporal.connection import connect
from infra.temporal.service import settled
from mainspring.config.any_run import training
from mainspring.config.settings import load_settings
from mainspring.errors import DatabaseError
from mainspring.ids import CampaignId
from mainspring.status import CampaignStatus, EventKind
from tests.chaos.small_run import TIMEOUT_S, SmallRun, small_campaign
from tests.waiting import until


@pytest.mark.chaos
@pytest.mark.timeout(2 * TIMEOUT_S)
async def test_each_kill_leaves_its_event_once(monkeypatch: pytest.MonkeyPatch) -> None:
    fleets: list[Fleet] = []

    class Known(Fleet):
        async def __aenter__(self) -> Fleet:
            fleets.append(self)
            return await super().__aenter__()

    monkeypatch.setattr(run_to_end, "Fleet", Known)
    async with temporary("mainspring-told-") as info:
        settings = load_settings(info.home)
        async with open_database(settings) as db:
            settings = await settled(settings, db)
            client = await connect(settings, db)
            campaign = await campaign_launch.create(db, small_campaign())
            config = training((await campaigns.get(db, campaign)).config)
            running = asyncio.create_task(
                run_to_end.run_to_end(
                    db, client, campaign, members(settings, config), settings, print
                )
            )
            try:
                await until(lambda: bool(fleets))
                run = SmallRun(db, campaign, fleets[0])
                await run.step_done(0)
                await run.rollouts_running()
                await until(lambda: count(db, campaign, EventKind.NODE_BEGAN, 1))

                run.kill("sandbox")
                await until(lambda: count(db, campaign, EventKind.NODE_BEGAN, 2), TIMEOUT_S)
                engine = next(name for name in run.fleet.members if name.startswith("engine"))
                run.kill(engine)
                await until(lambda: count(db, campaign, EventKind.PROCESS_RESTARTED, 2), TIMEOUT_S)
                # By the first rollout that asks it: a version published meanwhile would do as well.
                await until(lambda: count(db, campaign, EventKind.ENGINE_RELOADED, 1), TIMEOUT_S)
                lease = await trainers.holder(db, campaign)
                assert lease is not None
                os.kill(int(lease.process.split("/")[-2]), signal.SIGKILL)
                await until(lambda: count(db, campaign, EventKind.TRAINER_REPLACED, 1), TIMEOUT_S)
                postgres = Postgres(info.home).daemon.pid()
                assert postgres is not None
                os.kill(postgres, signal.SIGKILL)
                await until(lambda: count(db, campaign, EventKind.SERVICE_REVIVED, 1), TIMEOUT_S)
                record = await asyncio.wait_for(running, TIMEOUT_S)
            finally:
                running.cancel()
                await asyncio.wait([running])
            assert record.status is CampaignStatus.FINISHED
            assert await policies.latest_policy(db, campaign) is not None
            found = await events.newest(db, campaign)
            told = [(each.kind, each.subject, each.count) for each in found]
            print(*(f"{each.at} {each.text}" for each in found), sep="\n")

    # One that starts while Postgres is away may end by itself, and is told of as well.
    killed = [each.subject for each in found if "it was killed from outside" in each.text]
    trainer = "trainer" if "trainer" in killed else "trainer-2"
    assert sorted(killed) == sorted(["sandbox", engine, trainer])
    assert [each for each in told if each[0] == "service_revived"] == [
        ("service_revived", "postgres", 1)
    ]
    # The next one may be silent for too long while Postgres is away, and is told of as well.
    replaced = [each for each in told if each[0] == "trainer_replaced"]
    assert replaced[:1] == [("trainer_replaced", lease.owner, 1)]
    assert len({each[1] for each in replaced}) == len(replaced)
    assert len([each for each in told if each[0] == "node_began"]) == 2
    statuses = [each.text for each in found if each.kind == "campaign_status"]
    assert statuses == [
        "chaos started",
        "chaos has its first policy and runs",
        "chaos finished",
    ]


async def count(db: Database, campaign: CampaignId, kind: EventKind, number: int) -> bool:
    """Whether there are at least `number`. The store may not answer for a moment."""
    try:
        return len(await events.newest(db, campaign, kinds=[kind])) >= number
    except DatabaseError:
        return False
