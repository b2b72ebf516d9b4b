"""A store that was restored from an older backup, under a Temporal that is newer.

The rows of a campaign are put back to what they were at an earlier point while its workflow is held
at a later one. That is what a restored dump does, without the minutes of stopping the services.
"""

import pytest
from finished import NUM_STEPS, check_finished, has_ended, replay
from scripted_trainer import Hold, hold_policy, mixed, small_config, trainer_of, until_reached
from sqlalchemy import text

from activities.runs import RunActivities
from cli.operations.runs import campaign_launch as launch
from infra.db.database import Database
from infra.db.runs import campaign_rows, campaigns, removal, runs
from infra.db.runs.campaign_rows import CAMPAIGNS, TASKS
from mainspring.errors import UsageError
from mainspring.ids import CampaignId, campaign_workflow
from mainspring.protocol.campaign import CampaignPlan, CampaignState, Survey
from mainspring.protocol.run import RunGroupInput
from mainspring.status import CampaignStatus
from tests.waiting import until
from workflows.admitting import GroupAdmission, Memory

Rows = dict[str, list[dict[str, object]]]


async def rows_of(db: Database, campaign: CampaignId) -> Rows:
    found: Rows = {}
    async with db.snapshot() as connection:
        for table in campaign_rows.tables():
            found[table.name] = [
                dict(zip(table.columns, row, strict=True))
                async for rows in campaign_rows.read(connection, table, campaign)
                for row in rows
            ]
    return found


async def put_back(db: Database, campaign: CampaignId, rows: Rows) -> None:
    await campaigns.set_status(db, campaign, CampaignStatus.CANCELLED)
    await removal.remove(db, campaign, await removal.mark(db, campaign))
    async with db.transaction() as connection:
        for table in campaign_rows.tables():
            if table.name != TASKS:
                await campaign_rows.write(connection, table, rows[table.name])


@pytest.mark.parametrize("later", ["/v1", "/v2"])
async def test_a_campaign_starts_anew_from_an_older_store(cluster, later: str) -> None:
    cluster.policy.say = mixed
    config = await small_config(cluster, num_steps=NUM_STEPS, max_staleness=0)
    hold = Hold("/v0")
    hold_policy(cluster, {config.name: hold})
    campaign = await launch.create(cluster.db, config)
    async with trainer_of(cluster, campaign, hold):
        handle = await launch.start(cluster.client, cluster.db, campaign)
        await until_reached(hold)
        first = (await handle.describe()).run_id
        older = await rows_of(cluster.db, campaign)
        hold.move(later)
        await until_reached(hold)
        assert len(older[CAMPAIGNS]) == 1 and not older["groups"]
        await put_back(cluster.db, campaign, older)
        hold.move("nowhere")
        await until(lambda: has_ended(cluster, campaign))
        await check_finished(cluster, campaign)
        await replay(cluster, campaign_workflow(campaign), [first])


def test_what_is_remembered_and_not_stored_is_ahead() -> None:
    seen = Survey(version=2, running=[6, 7], next_index=8)
    assert not Memory(frozenset({0, 5}), newest=7, published=2).is_ahead_of(seen)
    assert not Memory(frozenset(), newest=-1, published=-1).is_ahead_of(Survey(version=None))
    assert Memory(frozenset(), newest=8, published=2).is_ahead_of(seen)
    assert Memory(frozenset(), newest=7, published=3).is_ahead_of(seen)
    told_by_an_earlier_version = Survey(version=2, running=[6])
    assert not Memory(frozenset({6}), newest=9, published=3).is_ahead_of(told_by_an_earlier_version)


def test_a_group_that_is_open_in_the_store_has_not_ended() -> None:
    plan = CampaignPlan(
        num_steps=1,
        groups_per_step=1,
        max_staleness=0,
        eval_every_steps=1,
        eval_splits=[],
        eval_greedy=False,
        eval_concurrency=1,
    )
    admission = GroupAdmission(CampaignState(campaign=CampaignId("first"), plan=plan))
    admission.ended(3)
    admission.ended(4)
    admission.forget({3})
    assert admission.memory().ended == {4}


async def test_a_run_whose_parts_are_missing_is_refused(cluster) -> None:
    campaign, _, _ = await cluster.make_rollouts(1)
    ask = RunGroupInput(campaign=campaign, index=7)
    with pytest.raises(UsageError, match="restored from an older backup"):
        await RunActivities(cluster.db).create_run_group(ask)
    async with cluster.db.transaction() as connection:
        as_run = text("UPDATE campaigns SET kind = 'eval' WHERE id = :id")
        await connection.execute(as_run, {"id": campaign})
    with pytest.raises(UsageError, match="parts unfinished"):
        await runs.refuse_open_parts(cluster.db, campaign)
