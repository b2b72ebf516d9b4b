"""How a step's time was spent: the trainer's and the engines', from rows with times of our own."""

from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import text
from store_records import (
    CAMPAIGN,
    RUN,
    add_group,
    add_ready_group,
    begin_campaign,
    call,
    config,
    put_two_turns,
)

from infra.db.database import Database
from infra.db.rollouts import partial_calls, rollouts, turns
from infra.db.rollouts.partial_calls import Kept
from infra.db.runs import campaigns
from infra.db.training import policies, steps
from infra.db.training.step_clock import step_clock
from mainspring.ids import CampaignId, RolloutId
from mainspring.trajectories.turns import ReplyPart, VersionSpan

SINCE_S = 100
"""The version that the step begins with was committed so long ago."""
NOW = datetime.now(UTC)
OF_GROUP = "(SELECT id FROM rollouts WHERE group_id = :group)"


def ago(seconds: float) -> datetime:
    return NOW - timedelta(seconds=seconds)


async def write(db: Database, statement: str, **values: object) -> None:
    async with db.transaction() as connection:
        await connection.execute(text(statement), values)


async def ended(db: Database, rollout: RolloutId, number: int, at: datetime, lasted_s: float):
    await write(
        db,
        "UPDATE calls SET created_at = :at, latency_s = :lasted_s "
        "WHERE rollout_id = :rollout AND number = :number",
        at=at,
        lasted_s=lasted_s,
        rollout=rollout,
        number=number,
    )


async def group_ended(db: Database, group: str, at: datetime) -> None:
    calls = f"UPDATE calls SET created_at = :at WHERE rollout_id IN {OF_GROUP}"
    await write(db, calls, at=at, group=group)
    ends = f"UPDATE rollouts SET finished_at = :at WHERE id IN {OF_GROUP}"
    await write(db, ends, at=at, group=group)


async def committed(db: Database) -> None:
    await write(db, "UPDATE policy_versions SET created_at = :at", at=ago(SINCE_S))


async def under_way(db: Database, rollout: RolloutId, at: datetime, lasted_s: float) -> None:
    """Of whose reply the newest part was stored `at`."""
    for start, took_s in ((0, lasted_s / 2), (2, lasted_s)):
        part = ReplyPart(start, (1, 2), (-0.5, -0.5), (VersionSpan(0, start, start + 2),), took_s)
        await partial_calls.put(db, [Kept(rollout, 0, 0, 7, part)])
    await write(db, "UPDATE partial_calls SET updated_at = :at", at=at)


async def other_campaign_asks(db: Database) -> None:
    other = CampaignId("second")
    await campaigns.create(db, config(other))
    await policies.put_first_policy(db, other, "/models/v0", "/checkpoints/v0")
    _, [rollout] = await add_group(db, 0, 1, other)
    await rollouts.claim(db, rollout, RUN)
    await turns.put_call(db, rollout, 0, call(0, 0))
    await ended(db, rollout, 0, ago(20), 10)


async def test_engines_are_idle_while_no_request_of_the_campaign_is_there(db: Database) -> None:
    await begin_campaign(db)
    _, [first, second, third] = await add_group(db, 0, 3)
    for rollout in (first, second):
        await rollouts.claim(db, rollout, RUN)
        await put_two_turns(db, rollout, 0, seed=rollout)
    await ended(db, first, 0, ago(SINCE_S + 10), 30)  # before the step
    await ended(db, first, 1, ago(SINCE_S - 5), 20)  # 5 s of it within
    await ended(db, second, 0, ago(80), 10)
    await ended(db, second, 1, ago(75), 10)  # half of it beside the one before
    await rollouts.claim(db, third, RUN)
    await under_way(db, third, ago(40), 10)
    await other_campaign_asks(db)
    group = await add_ready_group(db, 1)
    await group_ended(db, group, ago(SINCE_S + 50))
    assert await steps.plan_step(db, CAMPAIGN, 1, 1) == [group]
    await committed(db)

    clock = await step_clock(db, CAMPAIGN, 1)
    assert SINCE_S <= clock.trainer_idle_s <= clock.since_before_s
    assert clock.since_before_s - clock.engine_idle_s == pytest.approx(5 + 15 + 10, abs=0.001)
    assert clock.engine_request_s == pytest.approx(5 + 10 + 10 + 10, abs=0.001)


async def test_without_a_request_engines_are_idle_all_the_time(db: Database) -> None:
    await begin_campaign(db)
    group = await add_ready_group(db, 0)
    assert await steps.plan_step(db, CAMPAIGN, 1, 1) == [group]
    await group_ended(db, group, ago(SINCE_S + 50))
    await committed(db)
    clock = await step_clock(db, CAMPAIGN, 1)
    assert clock.engine_idle_s == clock.since_before_s and clock.engine_request_s == 0
    assert clock.figures(0)["engine_requests_mean"] == 0


async def test_a_step_that_was_never_planned_has_no_clock(db: Database) -> None:
    await begin_campaign(db)
    with pytest.raises(steps.StepOutOfOrder, match="step 3 was never planned"):
        await step_clock(db, CAMPAIGN, 3)
