"""Groups appear whole, close once and never reopen."""

import asyncio

import pytest
from sqlalchemy.exc import IntegrityError
from store_records import (
    CAMPAIGN,
    RUN,
    add_group,
    add_ready_group,
    begin_campaign,
    call,
    finish,
    task,
)

from infra.db.database import Database
from infra.db.fence import Fenced, UnknownId
from infra.db.plans import standing
from infra.db.reading.endings import group_counts
from infra.db.rollouts import groups, rollouts, turns
from infra.db.rollouts.groups import NewRollout
from mainspring.algorithms.closing import closing_status
from mainspring.config.trainer import TrainerConfig
from mainspring.errors import UsageError
from mainspring.ids import TaskId, eval_group_id, group_id, rollout_id
from mainspring.status import GroupKind, GroupStatus, RolloutPhase, Sampling, StopReason


async def test_created_once_by_many(db: Database) -> None:
    await begin_campaign(db)
    made = await asyncio.gather(*(add_group(db, 3, 4) for _ in range(5)))
    group, ids = made[0]
    assert [each.id for each in await rollouts.list_rollouts(db, group=group)] == ids
    record = await groups.get(db, group)
    assert (record.index, record.size, record.status) == (3, 4, GroupStatus.RUNNING)
    async with db.snapshot() as connection:
        assert (await group_counts(connection, CAMPAIGN))[GroupStatus.RUNNING] == 1


async def test_a_failure_halfway_leaves_no_group(db: Database) -> None:
    await begin_campaign(db)
    group = group_id(CAMPAIGN, 0)
    with pytest.raises(IntegrityError):
        await groups.create_group(
            db,
            group,
            CAMPAIGN,
            GroupKind.TRAIN,
            index=0,
            policy_version=0,
            split="train",
            rollouts=[
                NewRollout(rollout_id(group, 0), task(0).id, 0, 1.0),
                NewRollout(rollout_id(group, 1), TaskId("nowhere"), 1, 1.0),
            ],
        )
    with pytest.raises(UnknownId):
        await groups.get(db, group)
    await add_group(db, 0)


async def test_an_empty_group_is_refused(db: Database) -> None:
    await begin_campaign(db)
    with pytest.raises(UsageError, match="no rollouts"):
        await add_group(db, size=0)


async def test_a_step_gets_only_groups_that_teach_something(db: Database) -> None:
    await begin_campaign(db)
    expected = {
        (1.0, 0.0, None, None): GroupStatus.READY,
        (1.0, None, None, None): GroupStatus.MASKED,
        (None, None, None, None): GroupStatus.MASKED,
        (0.0, 0.0, 0.0, 0.0): GroupStatus.FLAT,
        (1.0, 1.0, None, 1.0): GroupStatus.FLAT,
    }
    for index, (rewards, status) in enumerate(expected.items()):
        group, ids = await add_group(db, index, len(rewards))
        for id, reward in zip(ids, rewards, strict=True):
            await rollouts.claim(db, id, RUN)
            await finish(db, id, 0, reward)
        ended = await asyncio.gather(*(groups.finish_group(db, group) for _ in range(4)))
        assert set(ended) == {status}
    tally = await groups.tally(db, group_id(CAMPAIGN, 0))
    assert (tally.num_resolved, tally.num_masked) == (1, 2)
    stands = await standing.read(db, CAMPAIGN)
    assert (stands.num_ready, stands.running, stands.next_index) == (1, [], 5)
    # Newest last: the two flat ones ended the row of masked ones.
    assert (stands.num_masked_in_a_row, stands.num_flat_in_a_row) == (0, 2)


async def test_what_is_enough_is_the_campaigns_choice(db: Database) -> None:
    await begin_campaign(db)
    settings = TrainerConfig(min_scored=1, filter="none")
    assert closing_status([0.0, None], GroupKind.TRAIN, settings) is GroupStatus.READY
    assert closing_status([None, None], GroupKind.TRAIN, settings) is GroupStatus.MASKED
    assert closing_status([0.1 + 0.2, 0.3], GroupKind.TRAIN, TrainerConfig()) is GroupStatus.FLAT
    # Nothing is compared within an evaluation.
    assert closing_status([1.0, None], GroupKind.EVAL, TrainerConfig()) is GroupStatus.READY
    for index in range(3):
        group, _ = await add_group(db, index)
        await groups.finish_group(db, group)
    before = await standing.read(db, CAMPAIGN)
    assert before.num_masked_in_a_row == 3
    last = (await groups.get(db, group)).finished_at
    assert last is not None
    since = last.timestamp() - 1e-6
    assert (await standing.read(db, CAMPAIGN, since)).num_masked_in_a_row == 1
    assert (await standing.read(db, CAMPAIGN, since + 1)).num_masked_in_a_row == 0


async def test_closing_ends_what_still_runs(db: Database) -> None:
    await begin_campaign(db)
    group, [late, done] = await add_group(db)
    for id in (late, done):
        await rollouts.claim(db, id, RUN)
    await finish(db, done, 0, 1.0)
    assert await groups.unfinished(db, group) == [0]
    assert await groups.finish_group(db, group) is GroupStatus.MASKED
    with pytest.raises(Fenced, match="has ended"):
        await turns.put_call(db, late, 0, call(0, 0))
    assert await finish(db, late, 0, 1.0) is None
    record = await rollouts.get(db, late)
    assert (record.phase, record.stop_reason) == (RolloutPhase.DONE, StopReason.INFRA_FAULT)
    assert record.reward is None


async def test_cancelling(db: Database) -> None:
    await begin_campaign(db)
    group, [rollout, _] = await add_group(db)
    assert await groups.finish_group(db, group, cancelled=True) is GroupStatus.CANCELLED
    assert await groups.finish_group(db, group) is GroupStatus.CANCELLED
    assert (await rollouts.get(db, rollout)).stop_reason is StopReason.CANCELLED
    with pytest.raises(Fenced, match="is final"):
        await rollouts.claim(db, rollout, RUN)


async def test_claims_and_closing_at_once_do_not_deadlock(db: Database) -> None:
    await begin_campaign(db)
    for index in range(8):
        group, ids = await add_group(db, index, 4)
        await asyncio.gather(
            *(rollouts.claim(db, id, RUN) for id in ids),
            groups.finish_group(db, group),
            *(rollouts.claim(db, id, "run-b") for id in ids),
            return_exceptions=True,
        )
        assert (await groups.get(db, group)).status is GroupStatus.MASKED
        phases = {r.phase for r in await rollouts.list_rollouts(db, group=group)}
        assert phases == {RolloutPhase.DONE}


async def test_evaluations_are_apart(db: Database) -> None:
    await begin_campaign(db)
    await add_ready_group(db, 0)
    group = eval_group_id(CAMPAIGN, "heldout", Sampling.GREEDY, 0)
    await groups.create_group(
        db,
        group,
        CAMPAIGN,
        GroupKind.EVAL,
        policy_version=0,
        split="heldout",
        sampling=Sampling.GREEDY,
        rollouts=[NewRollout(rollout_id(group, 0), task(0).id, 0, 0.0)],
    )
    rollout = rollout_id(group, 0)
    await rollouts.claim(db, rollout, RUN)
    await finish(db, rollout, 0, None)
    assert await groups.finish_group(db, group) is GroupStatus.MASKED
    assert (await standing.read(db, CAMPAIGN)).num_ready == 1
    assert [g.id for g in await groups.list_groups(db, CAMPAIGN, GroupKind.EVAL)] == [group]
    # An evaluation's rollout may be tried again by a person: nobody trains on it.
    assert (await rollouts.claim(db, rollout, "run-b")).epoch == 1
    assert await finish(db, rollout, 1, 1.0) == 1.0
