"""What the sweep reads and ends: only the life it looked at, and for good."""

import pytest
from sqlalchemy import event, text
from store_records import (
    RUN,
    add_claimed_rollout,
    add_group,
    begin_campaign,
    call,
    execution,
    finish,
    put_two_turns,
)

from infra.db.database import Database
from infra.db.fence import Fenced
from infra.db.nodes import sandboxes
from infra.db.rollouts import groups, orphans, rollouts, turns
from infra.db.rollouts.orphans import Playing
from mainspring.ids import NodeId, SandboxId
from mainspring.status import RolloutPhase, SandboxPurpose, StopReason, Verdict
from mainspring.tasks.sandbox_choice import BWRAP


async def test_an_ended_rollout_refuses_its_dead_run(db: Database) -> None:
    rollout = await add_claimed_rollout(db)
    await put_two_turns(db, rollout, 0, seed="a")
    await rollouts.put_grade(db, rollout, 0, Verdict.RESOLVED, "passed")
    [seen] = await orphans.playing_rollouts(db, 0.0)
    assert seen == Playing(rollout, 0, RUN)
    assert await orphans.end_rollout(db, seen, "terminated")
    assert not await orphans.end_rollout(db, seen, "again")
    row = await rollouts.get(db, rollout)
    assert (row.phase, row.stop_reason) == (RolloutPhase.DONE, StopReason.TERMINATED)
    assert (row.verdict, row.reward, row.fault, row.num_turns) == (None, None, "terminated", 2)
    assert row.finished_at is not None
    assert await orphans.playing_rollouts(db, 0.0) == []

    late = call(2, 24)
    with pytest.raises(Fenced):
        await turns.put_call(db, rollout, 0, late)
    with pytest.raises(Fenced):
        await turns.put_intent(db, rollout, 0, 1, 0, "true")
    with pytest.raises(Fenced):
        await turns.put_execution(db, rollout, 0, execution(1))
    with pytest.raises(Fenced):
        await rollouts.put_patch(db, rollout, 0, b"late")
    with pytest.raises(Fenced):
        await rollouts.put_grade(db, rollout, 0, Verdict.RESOLVED, "late")
    with pytest.raises(Fenced):
        await rollouts.new_epoch(db, rollout, 0, RUN)
    with pytest.raises(Fenced):
        await sandboxes.open_lease(
            db,
            SandboxId("late"),
            rollout,
            0,
            purpose=SandboxPurpose.AGENT,
            node=NodeId("a"),
            backend=BWRAP,
        )
    assert await finish(db, rollout, 0, 1.0) is None
    await rollouts.claim(db, rollout, RUN)
    assert await rollouts.get(db, rollout) == row


async def test_a_rollout_that_was_taken_over_is_left_alone(db: Database) -> None:
    rollout = await add_claimed_rollout(db)
    [seen] = await orphans.playing_rollouts(db, 0.0)
    claim = await rollouts.claim(db, rollout, "run-b")
    assert not await orphans.end_rollout(db, seen, "terminated")
    row = await rollouts.get(db, rollout)
    assert (row.phase, row.epoch) == (RolloutPhase.OPENING, claim.epoch)


async def test_the_young_and_the_unclaimed_are_not_looked_at(db: Database) -> None:
    await add_claimed_rollout(db)
    await add_group(db, index=1)
    assert len(await orphans.playing_rollouts(db, 0.0)) == 1
    assert await orphans.playing_rollouts(db, 3600.0) == []
    assert len(await orphans.open_groups(db, 0.0)) == 2
    assert await orphans.open_groups(db, 3600.0) == []


async def test_a_group_is_complete_when_every_rollout_ended_by_itself(db: Database) -> None:
    await begin_campaign(db)
    group, (first, second) = await add_group(db, index=3, size=2)
    [seen] = await orphans.open_groups(db, 0.0)
    assert (seen.group, seen.index, seen.num_playing, seen.is_complete) == (group, 3, 0, False)
    await rollouts.claim(db, first, RUN)
    await rollouts.claim(db, second, RUN)
    await finish(db, first, 0, 1.0)
    [seen] = await orphans.open_groups(db, 0.0)
    assert (seen.num_playing, seen.is_complete) == (1, False)
    await finish(db, second, 0, None)
    [seen] = await orphans.open_groups(db, 0.0)
    assert (seen.num_playing, seen.is_complete) == (0, True)
    await groups.finish_group(db, group)
    assert await orphans.open_groups(db, 0.0) == []


async def test_a_group_with_a_rollout_that_was_cut_is_not_complete(db: Database) -> None:
    await begin_campaign(db)
    _, (first, second) = await add_group(db, size=2)
    await rollouts.claim(db, first, RUN)
    await finish(db, first, 0, 1.0)
    await rollouts.claim(db, second, RUN)
    [playing] = await orphans.playing_rollouts(db, 0.0)
    assert await orphans.end_rollout(db, playing, "terminated")
    [seen] = await orphans.open_groups(db, 0.0)
    assert (seen.num_playing, seen.is_complete) == (0, False)


async def test_the_sweep_of_each_minute_reads_no_rollout_that_ended(db: Database) -> None:
    """By the plan of its statement, among many that ended."""
    await begin_campaign(db)
    for index in range(3):
        _, mine = await add_group(db, index, size=4)
        for rollout in mine:
            await rollouts.claim(db, rollout, RUN)
            if index:
                await finish(db, rollout, 0, 1.0)
    statements: list[str] = []

    def note(connection, cursor, statement, parameters, context, executemany) -> None:
        statements.append(statement)

    engine = db._engine.sync_engine
    event.listen(engine, "before_cursor_execute", note)
    try:
        playing = await orphans.playing_rollouts(db, -1.0)
    finally:
        event.remove(engine, "before_cursor_execute", note)
    assert len(playing) == 4
    [statement] = [each for each in statements if "rollouts.run_id" in each]
    assert "rollouts.phase != 'done'" in statement
    async with db.transaction() as connection:
        await connection.execute(text("SET LOCAL enable_seqscan = off"))
        found = await connection.execute(
            text(
                "EXPLAIN SELECT id FROM rollouts WHERE phase != 'done' AND run_id IS NOT NULL "
                "AND started_at <= now()"
            )
        )
        assert "ix_rollouts_playing" in "\n".join(line for (line,) in found)
