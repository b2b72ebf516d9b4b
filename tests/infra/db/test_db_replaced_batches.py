"""A batch of which masks left nothing to train is replaced and never committed: once, whatever is
killed in between, with a bound, and by the newest trainer alone."""

from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select, update
from store_records import (
    CAMPAIGN,
    RUN,
    add_group,
    add_ready_group,
    config,
    put_two_turns,
    task,
)
from temporalio.testing import ActivityEnvironment
from test_db_training_activities import Backend

from activities.training.training import TrainingActivities
from infra.db.database import Database
from infra.db.plans import standing
from infra.db.reading import progress
from infra.db.rollouts import groups, rollouts
from infra.db.runs import campaigns
from infra.db.tables.models import GroupRow
from infra.db.tasks import tasks
from infra.db.training import policies, steps, trainers
from mainspring.config.campaign import CampaignConfig
from mainspring.ids import GroupId
from mainspring.protocol.campaign import StepInput, StepResult
from mainspring.status import GroupStatus, StepStatus, StopReason, Verdict
from mainspring.training.training_faults import NothingToTrain, TrainerFenced
from reports.collect import collect

STEP = StepInput(campaign=CAMPAIGN, step=1, num_groups=1)


async def begin(db: Database, schedule: str = "fastest", **trainer: Any) -> None:
    await tasks.put_tasks(db, [task(0)])
    raw = config().model_dump(mode="json") | {"schedule": schedule}
    raw["trainer"] |= {"groups_per_step": 1, "overlong": "mask"} | trainer
    await campaigns.create(db, CampaignConfig.model_validate(raw))
    await policies.put_first_policy(db, CAMPAIGN, "/models/v0", "/checkpoints/v0")
    await trainers.take(db, CAMPAIGN, owner="a", process="pa")


async def add_cut_group(db: Database, index: int, rewards: tuple[float, float]) -> GroupId:
    """Two rollouts that a limit cut off."""
    group, ids = await add_group(db, index, 2)
    for id, reward in zip(ids, rewards, strict=True):
        claim = await rollouts.claim(db, id, RUN)
        await put_two_turns(db, id, claim.epoch, seed=f"{id}")
        await rollouts.finish(
            db,
            id,
            claim.epoch,
            stop_reason=StopReason.STEP_LIMIT,
            verdict=Verdict.RESOLVED if reward else Verdict.NOT_RESOLVED,
            reward=reward,
            fault=None,
            num_turns=2,
            phase_s={},
        )
    await groups.finish_group(db, group)
    return group


async def train(db: Database, home: Path, backend: Backend, epoch: int = 1) -> StepResult:
    """As a trainer that was just started."""
    activities = TrainingActivities(db, home, backend, epoch)
    return await ActivityEnvironment().run(activities.train_step, STEP)


async def notes(db: Database) -> dict[str, tuple[GroupStatus, str | None]]:
    async with db.transaction() as connection:
        rows = await connection.execute(select(GroupRow.id, GroupRow.status, GroupRow.note))
        return {id: (status, note) for id, status, note in rows}


async def test_other_groups_take_its_place(db: Database, tmp_path: Path) -> None:
    await begin(db)
    cut = await add_cut_group(db, 0, (1.0, 0.0))
    assert await steps.plan_step(db, CAMPAIGN, 1, 1) == [cut]
    backend = Backend()
    first = await train(db, tmp_path, backend)
    assert first.version == 0
    assert first.replaced == '2 rollouts were cut off by a limit (trainer.overlong = "mask")'
    # The attempt after one that was killed before it could tell.
    again = await train(db, tmp_path, backend)
    assert again.replaced == "its batch is not planned any more"
    assert (backend.num_steps, backend.saved) == (0, [])
    status, note = (await notes(db))[cut]
    assert status is GroupStatus.MASKED and note == f"step 1 had nothing to train: {first.replaced}"
    assert await steps.get_step(db, CAMPAIGN, 1) is None
    # What `train`, `campaign show` and the report tell.
    assert (await progress.read(db, CAMPAIGN)).untrained == note
    assert (await collect(db, CAMPAIGN)).warnings == (f"1 groups were replaced: {note}",)
    newest = await policies.latest_policy(db, CAMPAIGN)
    assert newest is not None and newest.version == 0
    good = await add_ready_group(db, 1)
    assert await steps.plan_step(db, CAMPAIGN, 1, 1) == [good]
    assert (await train(db, tmp_path, backend)).replaced is None
    done = await steps.get_step(db, CAMPAIGN, 1)
    assert done is not None and done.status is StepStatus.DONE and backend.num_steps == 1


async def test_too_many_in_a_row_end_the_campaign_and_a_new_start_has_as_many(
    db: Database, tmp_path: Path
) -> None:
    await begin(db, max_flat_groups=2)
    backend = Backend()
    for start in (0, 10):
        for index in range(start, start + 2):
            if await steps.get_step(db, CAMPAIGN, 1) is None:
                await add_cut_group(db, index, (1.0, 0.0))
                await steps.plan_step(db, CAMPAIGN, 1, 1)
            assert (await train(db, tmp_path, backend)).replaced
        last = await add_cut_group(db, start + 5, (1.0, 0.0))
        assert await steps.plan_step(db, CAMPAIGN, 1, 1) == [last]
        with pytest.raises(
            NothingToTrain, match="nor of 2 groups before that were replaced"
        ) as told:
            await train(db, tmp_path, backend)
        assert "agent.step_limit" in told.value.remedy and 'overlong = "mask"' in str(told.value)
        # The plan stands, so that the campaign ends and does not look for something else.
        assert await steps.step_groups(db, CAMPAIGN, 1) == [last]
    assert backend.num_steps == 0


async def test_an_older_trainer_replaces_nothing(db: Database, tmp_path: Path) -> None:
    await begin(db)
    cut = await add_cut_group(db, 0, (1.0, 0.0))
    await steps.plan_step(db, CAMPAIGN, 1, 1)
    await trainers.take(db, CAMPAIGN, owner="b", process="pb", ended="pa")
    with pytest.raises(TrainerFenced):
        await train(db, tmp_path, Backend(), epoch=1)
    assert await steps.step_groups(db, CAMPAIGN, 1) == [cut]
    assert (await notes(db))[cut] == (GroupStatus.READY, None)
    assert (await train(db, tmp_path, Backend(), epoch=2)).replaced


async def test_a_reproducible_campaign_takes_the_next_draw(db: Database, tmp_path: Path) -> None:
    await begin(db, "reproducible", num_steps=4, device="cpu")
    await add_cut_group(db, 0, (1.0, 0.0))
    async with db.transaction() as connection:
        await connection.execute(update(GroupRow).values(draw=0))
    assert await steps.plan_step(db, CAMPAIGN, 1, 1)
    assert (await train(db, tmp_path, Backend())).replaced
    batches = (await campaigns.get(db, CAMPAIGN)).config.batches  # type: ignore[union-attr]
    seen = await standing.read(db, CAMPAIGN, batches=batches)
    # Draw 0 is over; its place takes the draw one stride later.
    assert seen.due[0] == 4


async def test_equal_rewards_that_the_filter_lets_through_are_a_step_that_trained_nothing(
    db: Database, tmp_path: Path
) -> None:
    """The campaign asked for it: it counts, and its figures tell."""
    await begin(db, filter="none", overlong="keep")
    flat = await add_cut_group(db, 0, (1.0, 1.0))
    assert await steps.plan_step(db, CAMPAIGN, 1, 1) == [flat]
    backend = Backend()
    assert (await train(db, tmp_path, backend)).replaced is None
    done = await steps.get_step(db, CAMPAIGN, 1)
    assert done is not None and done.metrics["num_tokens"] == 0 and backend.num_steps == 1
    seen = await progress.read(db, CAMPAIGN)
    assert (seen.empty_steps, seen.untrained) == ([1], None)
    [told] = (await collect(db, CAMPAIGN)).warnings
    assert told == "step 1 of 1 trained nothing: see num_tokens"
