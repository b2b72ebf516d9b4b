"""Of all trainers of a campaign one holds the lease, and what the others write does not count."""

import asyncio
import json

import pytest
from sqlalchemy import text
from store_records import CAMPAIGN, add_ready_group, begin_campaign, config

from infra.db.database import Database
from infra.db.runs import campaigns
from infra.db.training import policies, steps, trainers
from mainspring.ids import CampaignId
from mainspring.status import StepStatus
from mainspring.training.training_faults import TrainerFenced


async def test_one_of_many_takes_the_lease(db: Database) -> None:
    await begin_campaign(db)
    found = await asyncio.gather(
        *(trainers.take(db, CAMPAIGN, owner=f"host pid {n}", process=f"p{n}") for n in range(6))
    )
    [lease] = [each for each in found if each is not None]
    assert lease.epoch == 1
    assert await trainers.holder(db, CAMPAIGN) == lease
    # a process that is known to have ended, another one's end says nothing
    ended = {"owner": "b", "process": "pb"}
    assert await trainers.take(db, CAMPAIGN, **ended, ended="p-other") is None
    after = await trainers.take(db, CAMPAIGN, **ended, ended=lease.process)
    assert after is not None and after.epoch == 2
    with pytest.raises(TrainerFenced, match=r"trainer b took over .* \(epoch 2\); epoch 1 is over"):
        await trainers.renew(db, CAMPAIGN, 1)
    await trainers.release(db, CAMPAIGN, 1)  # late: changes nothing
    assert await trainers.take(db, CAMPAIGN, owner="c", process="pc") is None
    await trainers.release(db, CAMPAIGN, 2)
    third = await trainers.take(db, CAMPAIGN, owner="c", process="pc")
    assert third is not None and (third.epoch, third.released) == (3, False)


async def test_a_silent_owner_loses_the_lease_and_one_that_renews_does_not(db: Database) -> None:
    await begin_campaign(db)
    await trainers.take(db, CAMPAIGN, owner="a", process="pa")
    async with db.transaction() as connection:
        await connection.execute(
            text("UPDATE trainer_leases SET seen_at = now() - interval '21 seconds'")
        )
    await trainers.renew(db, CAMPAIGN, 1)
    assert await trainers.take(db, CAMPAIGN, owner="b", process="pb") is None
    async with db.transaction() as connection:
        await connection.execute(
            text("UPDATE trainer_leases SET seen_at = now() - interval '21 seconds'")
        )
    lease = await trainers.take(db, CAMPAIGN, owner="b", process="pb")
    assert lease is not None and (lease.epoch, lease.owner) == (2, "b")


async def test_a_fenced_trainer_makes_no_version(db: Database) -> None:
    await begin_campaign(db)
    group = await add_ready_group(db, 0)
    assert await steps.plan_step(db, CAMPAIGN, 1, 1) == [group]
    await trainers.take(db, CAMPAIGN, owner="a", process="pa")
    await trainers.take(db, CAMPAIGN, owner="b", process="pb", ended="pa")
    made = {"metrics": {"loss": None}, "policy_path": "/v1/hf", "checkpoint": "/v1"}
    with pytest.raises(TrainerFenced):
        await steps.commit_step(db, CAMPAIGN, 1, **made, trainer_epoch=1)
    step = await steps.get_step(db, CAMPAIGN, 1)
    assert step is not None and step.status is StepStatus.PLANNED
    done = await steps.commit_step(db, CAMPAIGN, 1, **made, trainer_epoch=2)
    assert done.status is StepStatus.DONE
    other = CampaignId("other")
    await campaigns.create(db, config(other))
    with pytest.raises(TrainerFenced, match="no trainer holds its lease"):
        await policies.put_first_policy(db, other, "/v0/hf", "/v0", trainer_epoch=1)
    assert await policies.latest_policy(db, other) is None


async def test_a_commit_under_way_holds_the_lease(db: Database) -> None:
    await begin_campaign(db)
    await trainers.take(db, CAMPAIGN, owner="a", process="pa")
    async with db.transaction() as connection:
        await trainers.refuse_fenced(connection, CAMPAIGN, 1)
        taking = asyncio.create_task(
            trainers.take(db, CAMPAIGN, owner="b", process="pb", ended="pa")
        )
        done, _ = await asyncio.wait([taking], timeout=0.5)
        assert not done
    assert (await taking).epoch == 2


async def test_a_campaign_has_an_identity_beyond_its_name(db: Database) -> None:
    await campaigns.create(db, config())
    first = await campaigns.get(db, CAMPAIGN)
    assert await campaigns.get(db, CAMPAIGN) == first
    async with db.transaction() as connection:
        await connection.execute(text("DELETE FROM campaigns"))
    await campaigns.create(db, config())
    again = await campaigns.get(db, CAMPAIGN)
    assert (again.config, again.config_digest) == (first.config, first.config_digest)
    assert again.uid != first.uid


async def test_what_an_earlier_version_stored_is_read(db: Database) -> None:
    await campaigns.create(db, config())
    old = config().model_dump(mode="json")
    for name in ("gap", "device", "max_token_staleness"):
        del old["trainer"][name]
    del old["policy"]["dtype"]
    old["trainer"]["max_logprob_gap"] = 0.25
    async with db.transaction() as connection:
        await connection.execute(
            text("UPDATE campaigns SET config = CAST(:old AS jsonb)"), {"old": json.dumps(old)}
        )
    record = await campaigns.get(db, CAMPAIGN)
    assert record.config.trainer.gap.max == 0.25
