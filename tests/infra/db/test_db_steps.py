"""A step's batch is fixed once, commits whole, and takes each group once."""

import asyncio

import numpy as np
import pytest
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError, IntegrityError
from store_records import CAMPAIGN, RUN, add_group, add_ready_group, begin_campaign, call, finish

from infra.db.database import Database
from infra.db.fence import Fenced
from infra.db.rollouts import groups, rollouts, turns
from infra.db.training import batches, policies, steps
from infra.db.training.steps import StepOutOfOrder, StepRecord
from mainspring.ids import CampaignId, group_id
from mainspring.status import GroupStatus, StepStatus, StopReason
from mainspring.trajectories.samples import digest, samples_of


async def commit(db: Database, step: int, loss: float = 0.5) -> StepRecord:
    return await steps.commit_step(
        db,
        CAMPAIGN,
        step,
        metrics={"loss": loss, "grad_norm": float("nan")},
        policy_path=f"/models/v{step}",
        checkpoint=f"/checkpoints/v{step}",
    )


async def test_the_oldest_ready_are_planned_and_stay_planned(db: Database) -> None:
    await begin_campaign(db)
    for index in (4, 2, 0):
        await add_ready_group(db, index)
    await add_group(db, 1)
    assert await steps.plan_step(db, CAMPAIGN, 1, 4) == []
    assert await steps.get_step(db, CAMPAIGN, 1) is None
    planned = [group_id(CAMPAIGN, 0), group_id(CAMPAIGN, 2)]
    assert await steps.plan_step(db, CAMPAIGN, 1, 2) == planned
    await add_ready_group(db, 3)
    assert await steps.plan_step(db, CAMPAIGN, 1, 3) == planned
    assert await steps.step_groups(db, CAMPAIGN, 1) == planned
    record = await steps.get_step(db, CAMPAIGN, 1)
    assert record is not None
    assert (record.status, record.policy_version_before) == (StepStatus.PLANNED, 0)


async def test_planned_twice_at_once_is_planned_once(db: Database) -> None:
    await begin_campaign(db)
    for index in range(4):
        await add_ready_group(db, index)
    plans = await asyncio.gather(*(steps.plan_step(db, CAMPAIGN, 1, 2) for _ in range(5)))
    assert plans == [[group_id(CAMPAIGN, 0), group_id(CAMPAIGN, 1)]] * 5


async def test_campaigns_do_not_take_each_others_groups(db: Database) -> None:
    await begin_campaign(db)
    other = await begin_campaign(db, "second")
    await add_ready_group(db, 0, other)
    assert await steps.plan_step(db, CAMPAIGN, 1, 1) == []
    assert await steps.plan_step(db, other, 1, 1) == [group_id(other, 0)]


async def test_commit_shows_everything_at_once_and_only_once(db: Database) -> None:
    await begin_campaign(db)
    for index in range(3):
        await add_ready_group(db, index)
    planned = await steps.plan_step(db, CAMPAIGN, 1, 2)
    records = await asyncio.gather(*(commit(db, 1, loss=float(n)) for n in range(4)))
    assert records == [records[0]] * 4
    assert records[0].status is StepStatus.DONE
    assert records[0].metrics["grad_norm"] is None
    assert await commit(db, 1, loss=9.0) == records[0]
    for group in planned:
        assert (await groups.get(db, group)).status is GroupStatus.CONSUMED
        assert await groups.finish_group(db, group, cancelled=True) is GroupStatus.CONSUMED
    newest = await policies.latest_policy(db, CAMPAIGN)
    assert newest is not None
    assert (newest.version, newest.step, newest.path) == (1, 1, "/models/v1")
    assert newest.checkpoint == "/checkpoints/v1"
    assert await steps.plan_step(db, CAMPAIGN, 2, 1) == [group_id(CAMPAIGN, 2)]
    await commit(db, 2)
    assert [s.step for s in await steps.list_steps(db, CAMPAIGN)] == [1, 2]
    assert [p.version for p in await policies.list_policies(db, CAMPAIGN)] == [0, 1, 2]


async def test_a_commit_that_dies_in_the_middle_shows_nothing(db: Database) -> None:
    await begin_campaign(db)
    group = await add_ready_group(db, 0)
    await steps.plan_step(db, CAMPAIGN, 1, 1)
    async with db.transaction() as connection:
        await connection.execute(
            text(
                "CREATE FUNCTION die() RETURNS trigger LANGUAGE plpgsql AS "
                "$$ BEGIN RAISE EXCEPTION 'died'; END $$"
            )
        )
        await connection.execute(
            text("CREATE TRIGGER die BEFORE UPDATE ON steps EXECUTE FUNCTION die()")
        )
    try:
        with pytest.raises(DBAPIError, match="died"):
            await commit(db, 1)
    finally:
        async with db.transaction() as connection:
            await connection.execute(text("DROP FUNCTION die CASCADE"))
    assert (await groups.get(db, group)).status is GroupStatus.READY
    newest = await policies.latest_policy(db, CAMPAIGN)
    assert newest is not None
    assert newest.version == 0
    assert (await commit(db, 1)).status is StepStatus.DONE


async def test_steps_in_order_only(db: Database) -> None:
    await begin_campaign(db)
    for index in range(2):
        await add_ready_group(db, index)
    with pytest.raises(StepOutOfOrder, match="step 2 needs policy version 1"):
        await steps.plan_step(db, CAMPAIGN, 2, 1)
    with pytest.raises(StepOutOfOrder, match="step 1 was never planned"):
        await commit(db, 1)
    await steps.plan_step(db, CAMPAIGN, 1, 1)
    with pytest.raises(StepOutOfOrder, match="step 2"):
        await steps.plan_step(db, CAMPAIGN, 2, 1)


async def test_a_group_cannot_be_in_two_steps(db: Database) -> None:
    await begin_campaign(db)
    group = await add_ready_group(db, 0)
    await steps.plan_step(db, CAMPAIGN, 1, 1)
    await commit(db, 1)
    assert await steps.plan_step(db, CAMPAIGN, 2, 1) == []
    with pytest.raises(IntegrityError, match="pk_step_groups"):
        async with db.transaction() as connection:
            await connection.execute(
                text(
                    "INSERT INTO steps (campaign_id, step, status, policy_version_before) "
                    "VALUES (:campaign, 2, 'planned', 1)"
                ),
                {"campaign": CAMPAIGN},
            )
            await connection.execute(
                text("INSERT INTO step_groups VALUES (:group, :campaign, 2, 0)"),
                {"group": group, "campaign": CAMPAIGN},
            )


async def test_the_batch_holds_every_token_and_reads_the_same_for_ever(db: Database) -> None:
    await begin_campaign(db)
    for index in (1, 0):
        await add_ready_group(db, index)
    mixed, [lost, *scored] = await add_group(db, 2, 3)
    for id, reward in zip((lost, *scored), (None, 0.0, 1.0), strict=True):
        await rollouts.claim(db, id, RUN)
        await finish(db, id, 0, reward)
    await groups.finish_group(db, mixed)
    assert await batches.load_batch(db, CAMPAIGN, 1) == []
    await steps.plan_step(db, CAMPAIGN, 1, 3)
    batch = await batches.load_batch(db, CAMPAIGN, 1)
    assert [g.id for g in batch] == [group_id(CAMPAIGN, n) for n in range(3)]
    rewards = [[r.reward for r in g.rollouts] for g in batch]
    assert rewards == [[1.0, 0.0], [1.0, 0.0], [None, 0.0, 1.0]]
    faulty, ended = StopReason.INFRA_FAULT, StopReason.SUBMITTED
    assert [r.stop_reason for r in batch[2].rollouts] == [faulty, ended, ended]
    [sample] = samples_of("x", batch[0].rollouts[0].calls)
    assert (len(sample.token_ids), sample.num_action_tokens) == (24, 10)
    with pytest.raises(Fenced):
        await rollouts.claim(db, lost, "run-b")
    await commit(db, 1)
    assert await batches.load_batch(db, CAMPAIGN, 1) == batch


async def test_a_batch_read_in_pages_gives_the_samples_of_the_recorded_calls(
    db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    await begin_campaign(db)
    ids = [await add_ready_group(db, index) for index in range(3)]
    whole = await batches.load_groups(db, ids)
    monkeypatch.setattr(batches, "PAGE_ROLLOUTS", 4)
    paged = await batches.load_groups(db, ids)
    assert paged == whole and len(paged) == 3
    for rollout in (each for group in paged for each in group.rollouts):
        recorded, _ = await turns.history(db, rollout.id, 0)
        assert len(recorded) == len(rollout.calls) == 2
        for field in ("prompt_ids", "completion_ids", "logprobs"):
            values = getattr(rollout.calls[0], field)
            assert isinstance(values, np.ndarray) and not values.flags.writeable
        assert digest(samples_of(rollout.id, rollout.calls, 0.5)) == digest(
            samples_of(rollout.id, recorded, 0.5)
        )


async def test_the_batch_takes_the_last_epoch_only(db: Database) -> None:
    from store_records import put_two_turns

    campaign = await begin_campaign(db)
    group, [rollout] = await add_group(db, size=1)
    await rollouts.claim(db, rollout, RUN)
    await put_two_turns(db, rollout, 0, "abandoned")
    await rollouts.new_epoch(db, rollout, 0, RUN)
    await put_two_turns(db, rollout, 1, "kept")
    await finish(db, rollout, 1, 1.0)
    await groups.finish_group(db, group)
    [loaded] = await batches.load_groups(db, [group])
    first = call(0, 0, "kept")
    kept = [first, call(1, first.end, "kept")]
    assert [tuple(each.completion_ids) for each in loaded.rollouts[0].calls] == [
        each.completion_ids for each in kept
    ]
    assert await batches.load_groups(db, [group_id(CampaignId(campaign), 99)]) == []
