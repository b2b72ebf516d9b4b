"""One live epoch, one owner; the first end stands."""

import asyncio

import pytest
from sqlalchemy import text
from store_records import (
    CAMPAIGN,
    RUN,
    add_claimed_rollout,
    add_group,
    begin_campaign,
    finish,
    put_two_turns,
)

from infra.db.database import Database
from infra.db.fence import Fenced, UnknownId
from infra.db.rollouts import rollouts
from mainspring.ids import RolloutId
from mainspring.status import RolloutPhase, StopReason, Verdict
from tests.waiting import DEADLINE_S


async def test_the_owner_claims_as_often_as_it_likes(db: Database) -> None:
    rollout = await add_claimed_rollout(db)
    claims = await asyncio.gather(*(rollouts.claim(db, rollout, RUN) for _ in range(4)))
    assert {c.epoch for c in claims} == {0}
    assert (claims[0].campaign, claims[0].task) == (CAMPAIGN, "train-0")


async def test_concurrent_claims_by_different_runs_get_different_epochs(db: Database) -> None:
    await begin_campaign(db)
    _, ids = await add_group(db, size=6)
    for rollout in ids:
        runs = ["run-a", "run-b", "run-c"]
        claims = await asyncio.gather(*(rollouts.claim(db, rollout, run) for run in runs))
        assert sorted(c.epoch for c in claims) == [0, 1, 2]
        last = max(zip(claims, runs, strict=True), key=lambda pair: pair[0].epoch)[1]
        record = await rollouts.get(db, rollout)
        assert (record.epoch, record.run_id) == (2, last)


async def test_an_older_run_cannot_take_the_rollout_back(db: Database) -> None:
    rollout = await add_claimed_rollout(db)
    assert (await rollouts.claim(db, rollout, "run-b")).epoch == 1
    with pytest.raises(Fenced, match="run run-b has taken it over"):
        await rollouts.claim(db, rollout, RUN)
    assert (await rollouts.claim(db, rollout, "run-b")).epoch == 1


async def test_every_write_of_a_stale_epoch_is_refused(db: Database) -> None:
    rollout = await add_claimed_rollout(db)
    await rollouts.put_patch(db, rollout, 0, b"old")
    await rollouts.claim(db, rollout, "run-b")
    for write in (
        rollouts.set_phase(db, rollout, 0, RolloutPhase.GRADING),
        rollouts.put_patch(db, rollout, 0, b"old"),
        rollouts.get_patch(db, rollout, 0),
        rollouts.put_grade(db, rollout, 0, Verdict.RESOLVED, ""),
        rollouts.get_grade_output(db, rollout, 0),
        finish(db, rollout, 0, 1.0),
        rollouts.new_epoch(db, rollout, 0, RUN),
        put_two_turns(db, rollout, 0, ""),
    ):
        with pytest.raises(Fenced):
            await write
    record = await rollouts.get(db, rollout)
    assert (record.phase, record.reward, record.num_turns) == (RolloutPhase.OPENING, None, 0)
    assert await rollouts.get_patch(db, rollout, 1) is None


async def test_a_write_that_waits_for_a_claim_sees_what_it_decided(db: Database) -> None:
    """The race that a check before the write would lose."""
    rollout = await add_claimed_rollout(db)
    async with db.transaction() as claim:
        await claim.execute(text("UPDATE rollouts SET epoch = 1"))
        writes = [
            asyncio.create_task(put_two_turns(db, rollout, 0, "")),
            asyncio.create_task(finish(db, rollout, 0, 1.0)),
        ]
        async with asyncio.timeout(DEADLINE_S):
            while await _num_waiting(db) < len(writes):
                await asyncio.sleep(0.01)
    for result in await asyncio.gather(*writes, return_exceptions=True):
        assert isinstance(result, Fenced)


async def test_divergence_begins_one_new_epoch_however_often_it_is_asked(db: Database) -> None:
    rollout = await add_claimed_rollout(db)
    await rollouts.set_phase(db, rollout, 0, RolloutPhase.RESTORING)
    begun = await asyncio.gather(*(rollouts.new_epoch(db, rollout, 0, RUN) for _ in range(4)))
    assert set(begun) == {1}
    assert (await rollouts.claim(db, rollout, RUN)).epoch == 1
    assert await rollouts.new_epoch(db, rollout, 1, RUN) == 2
    with pytest.raises(Fenced, match="epoch 2"):
        await rollouts.new_epoch(db, rollout, 0, RUN)


async def test_the_first_end_stands(db: Database) -> None:
    rollout = await add_claimed_rollout(db)
    rewards = await asyncio.gather(
        *(finish(db, rollout, 0, reward) for reward in (1.0, 0.0, None, 1.0))
    )
    assert len(set(rewards)) == 1
    assert await finish(db, rollout, 0, 0.5 if rewards[0] is None else None) == rewards[0]
    before = await rollouts.get(db, rollout)
    assert before.phase is RolloutPhase.DONE
    assert before.phase_s == {"generate": 1.5}
    late = await rollouts.set_phase(db, rollout, 0, RolloutPhase.RUNNING)
    assert late is RolloutPhase.DONE
    assert await rollouts.get(db, rollout) == before


async def test_the_first_patch_and_the_first_verdict_count(db: Database) -> None:
    rollout = await add_claimed_rollout(db)
    patches = await asyncio.gather(
        *(rollouts.put_patch(db, rollout, 0, patch) for patch in (b"one", b"two", b"\0\xff"))
    )
    assert len(set(patches)) == 1
    assert await rollouts.get_patch(db, rollout, 0) == patches[0]
    await rollouts.put_grade(db, rollout, 0, Verdict.RESOLVED, "1 passed")
    again = await rollouts.put_grade(db, rollout, 0, Verdict.FAULT, "", "timeout")
    assert again is Verdict.RESOLVED
    assert await rollouts.get_grade_output(db, rollout, 0) == "1 passed"
    await finish(db, rollout, 0, 1.0)
    assert await rollouts.put_patch(db, rollout, 0, b"late") == patches[0]


async def test_a_patch_after_the_end_is_refused(db: Database) -> None:
    rollout = await add_claimed_rollout(db)
    await finish(db, rollout, 0, None)
    with pytest.raises(Fenced, match="has ended"):
        await rollouts.put_patch(db, rollout, 0, b"late")


async def test_a_new_run_of_an_ended_rollout_starts_clean(db: Database) -> None:
    rollout = await add_claimed_rollout(db)
    await rollouts.put_patch(db, rollout, 0, b"p")
    await finish(db, rollout, 0, None)
    first = await rollouts.get(db, rollout)
    assert first.stop_reason is StopReason.INFRA_FAULT
    assert (await rollouts.claim(db, rollout, "run-b")).epoch == 1
    record = await rollouts.get(db, rollout)
    assert (record.stop_reason, record.fault, record.finished_at) == (None, None, None)
    assert record.started_at == first.started_at


async def test_listing_and_unknown_ids(db: Database) -> None:
    await begin_campaign(db)
    group, ids = await add_group(db, 0, 3)
    await add_group(db, 1, 3)
    await rollouts.set_phase(db, ids[1], 0, RolloutPhase.RUNNING)
    assert [r.id for r in await rollouts.list_rollouts(db, group=group)] == ids
    assert len(await rollouts.list_rollouts(db, campaign=CAMPAIGN, limit=4)) == 4
    running = await rollouts.list_rollouts(db, campaign=CAMPAIGN, phase=RolloutPhase.RUNNING)
    assert [r.id for r in running] == [ids[1]]
    for call in (
        rollouts.get(db, RolloutId("x")),
        rollouts.claim(db, RolloutId("x"), RUN),
        rollouts.set_phase(db, RolloutId("x"), 0, RolloutPhase.RUNNING),
        rollouts.new_epoch(db, RolloutId("x"), 0, RUN),
    ):
        with pytest.raises(UnknownId, match="no rollout x"):
            await call


async def _num_waiting(db: Database) -> int:
    async with db.transaction() as connection:
        return (
            await connection.execute(
                text(
                    "SELECT count(*) FROM pg_stat_activity "
                    "WHERE datname = current_database() AND wait_event_type = 'Lock'"
                )
            )
        ).scalar_one()
