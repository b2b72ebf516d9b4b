"""Details of a step: stored with it or not at all, and removed, kept and written back with its
campaign."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from sqlalchemy import func, select, text
from store_records import CAMPAIGN, add_ready_group, begin_campaign
from temporalio.testing import ActivityEnvironment
from test_db_campaign_rows import digests
from test_db_retrained import AGAIN, retrain
from test_db_training_activities import Backend

from activities.training.training import TrainingActivities
from infra.db.database import Database
from infra.db.runs import campaign_rows, campaigns, removal
from infra.db.tables.step_detail_rows import StepGapRow, StepRolloutRow
from infra.db.training import step_details, steps, trainers
from infra.db.training.steps import StepOutOfOrder
from mainspring.ids import CampaignId, GroupId, RolloutId, rollout_id
from mainspring.protocol.campaign import StepInput
from mainspring.status import CampaignStatus, Untrained
from mainspring.training.step_metrics import StepMetrics
from mainspring.training.trained_rollouts import (
    KeptCall,
    StepDetails,
    StoredGap,
    TokenGap,
    TrainedRollout,
)
from mainspring.trajectories.samples import Sample


def told(group: GroupId) -> tuple[list[TrainedRollout], list[StoredGap]]:
    first, second = rollout_id(group, 0), rollout_id(group, 1)
    rollouts = [
        TrainedRollout(first, 0.5, True, 10, None, {0: 0.25, 1: 0.75}),
        TrainedRollout(second, None, False, 0, Untrained.MASKED),
    ]
    gaps = [
        StoredGap(first, 1, 4, -0.5, -0.75),
        StoredGap(first, 0, 2, -0.5, float("nan")),
        StoredGap(second, 0, 0, -1.0, -3.0),
    ]
    return rollouts, gaps


def kept(group: GroupId) -> list[KeptCall]:
    numbers = np.array([-0.5, np.nan, -2.0], np.float32)
    first = rollout_id(group, 0)
    return [KeptCall(first, 0, numbers, -numbers), KeptCall(first, 1, numbers[:1], None)]


async def commit(db: Database, group: GroupId, **given: Any) -> None:
    rollouts, gaps = told(group)
    await steps.commit_step(
        db,
        CAMPAIGN,
        1,
        metrics={},
        policy_path="/v1",
        checkpoint=None,
        **({"rollouts": rollouts, "gaps": gaps, "kept": kept(group)} | given),
    )


async def planned(db: Database) -> GroupId:
    await begin_campaign(db)
    group = await add_ready_group(db, 0)
    await steps.plan_step(db, CAMPAIGN, 1, 1)
    return group


async def counted(db: Database) -> tuple[int, int]:
    async with db.transaction() as connection:
        numbers = [
            await connection.scalar(select(func.count()).select_from(row)) or 0
            for row in (StepRolloutRow, StepGapRow)
        ]
    return numbers[0], numbers[1]


async def test_details_come_with_the_step_once(db: Database) -> None:
    group = await planned(db)
    rollouts, gaps = told(group)
    with pytest.raises(StepOutOfOrder):
        await commit(db, group, groups=[GroupId("first/g000009")])
    assert await counted(db) == (0, 0)
    await commit(db, group)
    await commit(db, group, rollouts=[], gaps=gaps[:1])  # a second attempt finds it done
    async with db.transaction() as connection:
        stored = await step_details.of_step(connection, CAMPAIGN, 1)
        worst = await step_details.gaps_of_step(connection, CAMPAIGN, 1)
        of_first = await step_details.of_rollout(connection, rollouts[0].rollout)
        of_none = await step_details.of_rollout(connection, RolloutId("first/g000009/000"))
        assert of_first is not None
        numbers = await step_details.kept_of(connection, of_first, 0, 0)
        both = await step_details.kept_of(connection, of_first, 0, 9)
        chosen = await step_details.by_rollouts(connection, CAMPAIGN, [rollouts[1].rollout])
    assert stored == {each.rollout: each for each in rollouts}
    assert worst == [replace(gaps[1], recomputed=None), gaps[2], gaps[0]]
    assert of_first is not None and (of_first.step, of_first.trained) == (1, rollouts[0])
    assert [gap.call for gap in of_first.gaps] == [0, 1] and of_none is None
    expected = kept(group)
    assert list(numbers) == [0] and list(both) == [0, 1]
    assert numbers[0].logprobs == pytest.approx(expected[0].logprobs, nan_ok=True)
    assert numbers[0].entropies == pytest.approx(expected[0].entropies, nan_ok=True)
    assert both[1].entropies is None
    assert chosen == {rollouts[1].rollout: rollouts[1]}


async def test_details_go_and_come_back_with_their_own_campaign(db: Database) -> None:
    group = await planned(db)
    await commit(db, group)
    await campaigns.set_status(db, CAMPAIGN, CampaignStatus.CANCELLED)
    before = await digests(db)
    archived = {}
    async with db.snapshot() as connection:
        for table in campaign_rows.tables():
            archived[table.name] = [
                dict(zip(table.columns, row, strict=True))
                async for rows in campaign_rows.read(connection, table, CAMPAIGN)
                for row in rows
            ]
    num_rows = {name: len(rows) for name, rows in archived.items()}
    assert (num_rows["step_rollouts"], num_rows["step_gaps"], num_rows["step_tokens"]) == (2, 3, 2)
    await removal.remove(db, CAMPAIGN, await removal.mark(db, CAMPAIGN))
    assert await counted(db) == (0, 0)
    async with db.transaction() as connection:
        for table in campaign_rows.tables():
            await campaign_rows.write(connection, table, archived[table.name])
    assert await digests(db) == before


async def test_a_program_that_does_not_know_them_may_delete_the_step(db: Database) -> None:
    group = await planned(db)
    await commit(db, group)
    async with db.transaction() as connection:
        await connection.execute(text("DELETE FROM step_groups"))
        await connection.execute(text("DELETE FROM steps"))
    assert await counted(db) == (0, 0)


class Measuring(Backend):
    """Tells of one token of the first sample."""

    def train_step(self, samples: list[Sample], step: int) -> StepMetrics:
        metrics = super().train_step(samples, step)
        first = samples[0]
        place = int(first.action_mask.nonzero()[0][-1])
        gap = TokenGap(first.rollout, first.branch, place, float(first.logprobs[place]), -9.0)
        return replace(metrics, details=StepDetails((gap,)))


async def test_a_campaign_that_trains_batches_again_has_details_of_its_own(
    db: Database, tmp_path: Any
) -> None:
    group = await planned(db)
    await commit(db, group)
    await retrain(db, (1,))
    lease = await trainers.take(db, AGAIN, owner="a", process="a")
    assert lease is not None
    activities = TrainingActivities(db, tmp_path, Measuring(), lease.epoch)
    ask = StepInput(campaign=AGAIN, step=1, num_groups=1)
    await ActivityEnvironment().run(activities.train_step, ask)
    await ActivityEnvironment().run(activities.train_step, ask)
    assert await counted(db) == (4, 4)
    first = rollout_id(group, 0)
    async with db.transaction() as connection:
        again = await step_details.of_step(connection, AGAIN, 1)
        worst = await step_details.gaps_of_step(connection, AGAIN, 1)
        own = await step_details.of_rollout(connection, first)
    assert again[first].num_trained_tokens == 10 and again[first].advantage == pytest.approx(
        1, abs=1e-3
    )
    assert [(gap.rollout, gap.call, gap.offset, gap.recomputed) for gap in worst] == [
        (first, 1, 4, -9.0)
    ]
    assert own is not None and own.campaign == CAMPAIGN
    await campaigns.set_status(db, CampaignId(AGAIN), CampaignStatus.CANCELLED)
    await removal.remove(db, AGAIN, await removal.mark(db, AGAIN))
    assert await counted(db) == (2, 3)
