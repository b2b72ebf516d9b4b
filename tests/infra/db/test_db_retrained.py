"""A campaign that trains another one's batches again, in the store: its steps are planned with it
on the groups of its parent, which stay the parent's."""

import uuid
from pathlib import Path
from typing import Any

import pytest
from store_records import (
    CAMPAIGN,
    add_ready_group,
    begin_campaign,
    config,
)
from temporalio.testing import ActivityEnvironment
from test_db_replaced_batches import add_cut_group
from test_db_training_activities import Backend

from activities.training.batch_reading import read_batch
from activities.training.retraining import RetrainActivities
from activities.training.training import TrainingActivities
from infra.db.database import Database
from infra.db.reading import trained_steps
from infra.db.rollouts import groups
from infra.db.runs import campaigns, changes, forks, removal
from infra.db.runs.campaign_record import Parent
from infra.db.runs.forks import ForkedVersion
from infra.db.training import batches, discards, policies, steps, trainers
from mainspring.config.any_run import training
from mainspring.config.files.changes import given
from mainspring.config.files.layers import assignments
from mainspring.errors import UsageError
from mainspring.ids import CampaignId, GroupId
from mainspring.protocol.campaign import StepInput
from mainspring.protocol.retrain import RetrainSurveyInput
from mainspring.status import CampaignStatus, GroupStatus, StepStatus
from mainspring.training.step_metrics import Origin, TrainerJob
from mainspring.training.training_faults import NothingToTrain

AGAIN = CampaignId("again")


async def trained_twice(db: Database) -> list[GroupId]:
    """A campaign with two steps of one group each."""
    await begin_campaign(db)
    made: list[GroupId] = []
    for step in (1, 2):
        made.append(await add_ready_group(db, step))
        await steps.plan_step(db, CAMPAIGN, step, 1)
        await steps.commit_step(
            db, CAMPAIGN, step, metrics={}, policy_path=f"/models/v{step}", checkpoint=None
        )
    return made


async def retrain(
    db: Database, order: tuple[int, ...], *values: str, name: CampaignId = AGAIN
) -> None:
    parent = await campaigns.get(db, CAMPAIGN)
    wanted = given(config(name), assignments(values))
    own = {".".join(keys): value for keys, value in assignments(values)}
    await forks.add(
        db,
        wanted,
        str(uuid.uuid4()),
        parent,
        Parent(CAMPAIGN, 0, 0, order, own),
        [ForkedVersion(0, "/again/v0/hf", "/again/v0")],
        (),
    )


async def train(db: Database, home: Path, step: int, backend: Backend) -> None:
    activities = TrainingActivities(db, home, backend, 1)
    ask = StepInput(campaign=AGAIN, step=step, num_groups=0)
    await ActivityEnvironment().run(activities.train_step, ask)


async def status_of(db: Database, group: GroupId) -> GroupStatus:
    return next(each.status for each in await groups.list_groups(db, CAMPAIGN) if each.id == group)


async def test_its_steps_train_the_parents_groups_in_their_order(
    db: Database, tmp_path: Path
) -> None:
    first, second = await trained_twice(db)
    await retrain(db, (2, 1))
    record = await campaigns.get(db, AGAIN)
    assert record.is_retrained and record.retrained_from == CAMPAIGN and record.num_steps == 2
    planned = [await steps.step_groups(db, AGAIN, step) for step in (1, 2)]
    assert planned == [[second], [first]]
    await trainers.take(db, AGAIN, owner="a", process="pa")
    backend = Backend()
    await train(db, tmp_path, 1, backend)
    samples = [
        rollout.id
        for [group] in [await batches.load_groups(db, [second])]
        for rollout in group.rollouts
    ]
    assert {sample.rollout for sample in backend.samples} == set(samples)
    done = await steps.get_step(db, AGAIN, 1)
    assert done is not None and done.status is StepStatus.DONE
    assert done.metrics["trainer_idle_s"] == 0 and done.metrics["engine_idle_s"] is None
    assert await status_of(db, second) is GroupStatus.CONSUMED
    # The parent's own steps are as they were, and its reading knows nothing of the other one.
    assert [await steps.step_groups(db, CAMPAIGN, step) for step in (1, 2)] == [[first], [second]]
    async with db.transaction() as connection:
        read = await trained_steps.read(connection, CAMPAIGN)
    assert [(step.step, step.solve_rate, step.all_one_groups) for step in read] == [
        *((step, 0.5, 0) for step in (1, 2))
    ]


async def test_what_becomes_of_the_parents_step_changes_no_batch(db: Database) -> None:
    _, second = await trained_twice(db)
    await retrain(db, (1, 2))
    await campaigns.set_status(db, CAMPAIGN, CampaignStatus.CANCELLED)
    assert await discards.rollback(db, CAMPAIGN, 2) is not None
    assert await status_of(db, second) is GroupStatus.MASKED
    assert await steps.step_groups(db, CAMPAIGN, 2) == []
    [group] = await batches.load_batch(db, AGAIN, 2)
    assert group.id == second and all(rollout.calls for rollout in group.rollouts)
    with pytest.raises(UsageError, match="no step 2 any more"):
        await retrain(db, (1, 2), name=CampaignId("later"))
    assert await campaigns.find(db, CampaignId("later")) is None


async def test_it_is_not_deleted_under_another(db: Database) -> None:
    await trained_twice(db)
    await retrain(db, (1,))
    await campaigns.set_status(db, CAMPAIGN, CampaignStatus.CANCELLED)
    with pytest.raises(UsageError, match=f"trained again by {AGAIN}"):
        await removal.mark(db, CAMPAIGN)
    uid = await removal.mark(db, AGAIN)
    await removal.remove(db, AGAIN, uid)
    assert await campaigns.find(db, AGAIN) is None
    assert [len(await batches.load_batch(db, CAMPAIGN, step)) for step in (1, 2)] == [1, 1]
    await removal.mark(db, CAMPAIGN)
    with pytest.raises(UsageError, match="is being deleted"):
        await retrain(db, (1,))


async def test_its_batches_are_not_its_own_to_discard_or_to_change(db: Database) -> None:
    await trained_twice(db)
    await retrain(db, (1, 2))
    with pytest.raises(UsageError, match="not its own to discard"):
        await discards.planned_batch(db, AGAIN)
    with pytest.raises(UsageError, match="not its own to discard"):
        await discards.newest_to_discard(db, AGAIN)
    with pytest.raises(UsageError, match=r"trainer\.loss cannot change"):
        await changes.add(db, AGAIN, assignments(["trainer.loss=cispo"]), "someone")
    kept = await changes.add(db, AGAIN, assignments(["trainer.keep_checkpoints=5"]), "someone")
    assert [change.field for change in kept.changes] == ["trainer.keep_checkpoints"]


async def test_where_it_stands_is_read_from_the_store(db: Database) -> None:
    await trained_twice(db)
    await retrain(db, (1,))
    ask = RetrainSurveyInput(campaign=AGAIN, status=CampaignStatus.RUNNING)
    survey = RetrainActivities(db).survey_retrain
    seen = await ActivityEnvironment().run(survey, ask)
    assert (seen.version, seen.num_steps) == (0, 1)
    assert (await campaigns.get(db, AGAIN)).status is CampaignStatus.RUNNING
    await steps.commit_step(
        db, AGAIN, 1, metrics={}, policy_path="/again/v1/hf", checkpoint="/again/v1"
    )
    assert (await ActivityEnvironment().run(survey, ask)).version == 1
    # Its configuration has more steps, for the learning rate.
    assert training((await campaigns.get(db, AGAIN)).config).trainer.num_steps > 1
    assert await campaigns.finish(db, AGAIN)


async def test_another_reward_is_computed_from_what_is_stored(db: Database) -> None:
    await trained_twice(db)
    failed = "{name='outcome', options={failed=-1.0}}"
    await retrain(db, (1,), f"reward.parts=[{failed}, {{name='length', options={{free_turns=1}}}}]")
    record = await campaigns.get(db, AGAIN)
    assert record.rescores
    job = TrainerJob(
        training(record.config),
        Origin(campaign=AGAIN, uid="u", config_digest="d"),
        1,
        rescores=True,
    )
    [group] = await read_batch(db, job, 1)
    penalty = -1 / (record.config.agent.step_limit - 1)
    assert [rollout.reward for rollout in group.rollouts] == [1 + penalty, -1 + penalty]
    [before] = await batches.load_batch(db, AGAIN, 1)
    assert [rollout.reward for rollout in before.rollouts] == [1.0, 0.0]
    async with db.transaction() as connection:  # as of one that a fault ended
        await connection.exec_driver_sql("UPDATE rollouts SET reward = NULL WHERE sample_index = 0")
    [group] = await read_batch(db, job, 1)
    assert [rollout.reward for rollout in group.rollouts] == [None, -1 + penalty]


async def test_a_batch_that_masks_leave_empty_ends_it(db: Database, tmp_path: Path) -> None:
    """There are no other groups to take its place."""
    await begin_campaign(db)
    cut = await add_cut_group(db, 0, (1.0, 0.0))
    await steps.plan_step(db, CAMPAIGN, 1, 1)
    await steps.commit_step(db, CAMPAIGN, 1, metrics={}, policy_path="/v1", checkpoint=None)
    await retrain(db, (1,), "trainer.overlong=mask")
    await trainers.take(db, AGAIN, owner="a", process="pa")
    with pytest.raises(NothingToTrain, match="nothing can be trained of its stored batch: 2 roll"):
        await train(db, tmp_path, 1, Backend())
    assert await steps.step_groups(db, AGAIN, 1) == [cut]
    assert await status_of(db, cut) is GroupStatus.CONSUMED
    newest = await policies.latest_policy(db, AGAIN)
    assert newest is not None and newest.version == 0


async def test_rollouts_without_their_tokens_are_named(db: Database) -> None:
    await trained_twice(db)
    assert await batches.without_tokens(db, CAMPAIGN, (1, 2)) == []
    [group] = await batches.load_batch(db, CAMPAIGN, 2)
    lost: Any = group.rollouts[1].id
    async with db.transaction() as connection:
        await connection.exec_driver_sql(f"DELETE FROM calls WHERE rollout_id = '{lost}'")
    assert await batches.without_tokens(db, CAMPAIGN, (1, 2)) == [(2, lost)]
    assert await batches.without_tokens(db, CAMPAIGN, (1,)) == []
