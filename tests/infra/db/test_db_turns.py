"""Replies and results: the first one written stands, everyone gets it, stale lives get nothing."""

import asyncio
import dataclasses
from dataclasses import replace

import pytest
from store_records import RUN, add_claimed_rollout, call, execution, finish, put_two_turns

from infra.db.database import Database
from infra.db.fence import Fenced, UnknownId
from infra.db.rollouts import rollouts, turns
from mainspring.ids import RolloutId
from mainspring.trajectories.tree import branches, check_tree


async def test_two_attempts_with_different_tokens_both_get_the_first(db: Database) -> None:
    rollout = await add_claimed_rollout(db)
    start = 0
    for turn in range(12):
        attempts = [call(turn, start, seed=f"attempt {n}") for n in range(4)]
        stored = await asyncio.gather(
            *(turns.put_call(db, rollout, 0, attempt) for attempt in attempts)
        )
        assert stored[0] in attempts
        assert stored == [stored[0]] * 4
        assert await turns.get_call(db, rollout, 0, turn) == stored[0]
        start = stored[0].end
    recorded, _ = await turns.history(db, rollout, 0)
    check_tree(rollout, recorded)
    assert len(recorded) == 12


async def test_a_stale_epoch_is_refused_even_for_a_turn_it_wrote(db: Database) -> None:
    rollout = await add_claimed_rollout(db)
    await put_two_turns(db, rollout, 0, "old")
    await turns.put_intent(db, rollout, 0, 0, 0, "ls")
    await rollouts.claim(db, rollout, "run-b")
    for write in (
        turns.put_call(db, rollout, 0, call(0, 0, "old")),
        turns.put_call(db, rollout, 0, call(5, 0, "old")),
        turns.put_intent(db, rollout, 0, 0, 0, "ls"),
        turns.put_execution(db, rollout, 0, execution(0)),
        turns.put_execution(db, rollout, 0, execution(3)),
    ):
        with pytest.raises(Fenced, match="epoch 0 is over, epoch 1 has begun"):
            await write
    assert await turns.history(db, rollout, 1) == ([], [])
    kept, _ = await turns.history(db, rollout, 0)
    assert len(kept) == 2


async def test_a_finished_rollout_gives_what_it_has_and_takes_nothing(db: Database) -> None:
    rollout = await add_claimed_rollout(db)
    await put_two_turns(db, rollout, 0, "x")
    await turns.put_intent(db, rollout, 0, 0, 0, "ls")
    await finish(db, rollout, 0, 1.0)
    first = call(0, 0, "x")
    assert await turns.put_call(db, rollout, 0, first) == first
    for write in (
        turns.put_call(db, rollout, 0, call(2, 24, "x")),
        turns.put_intent(db, rollout, 0, 1, 0, "ls"),
        turns.put_execution(db, rollout, 0, execution(0)),
    ):
        with pytest.raises(Fenced, match="has ended"):
            await write


async def test_an_unknown_rollout_is_named(db: Database) -> None:
    with pytest.raises(UnknownId, match="no rollout nobody"):
        await turns.put_call(db, RolloutId("nobody"), 0, call(0, 0))


async def test_an_intent_without_a_result_means_run_or_re_attach(db: Database) -> None:
    rollout = await add_claimed_rollout(db)
    reply = await turns.put_call(db, rollout, 0, call(0, 0))
    asked = await asyncio.gather(
        *(turns.put_intent(db, rollout, 0, 0, 0, "echo 0") for _ in range(3))
    )
    assert asked == [None, None, None]
    assert await turns.history(db, rollout, 0) == ([reply], [])
    attempts = [execution(0, output=b"\0\xff" * n) for n in range(1, 5)]
    stored = await asyncio.gather(
        *(turns.put_execution(db, rollout, 0, attempt) for attempt in attempts)
    )
    assert stored[0] in attempts
    assert stored == [stored[0]] * 4
    assert await turns.put_intent(db, rollout, 0, 0, 0, "echo 0") == stored[0]
    assert await turns.history(db, rollout, 0) == ([reply], [stored[0]])


async def test_a_result_without_an_intent_is_kept(db: Database) -> None:
    rollout = await add_claimed_rollout(db)
    killed = replace(execution(0), returncode=-1, timed_out=True, truncated=True)
    assert await turns.put_execution(db, rollout, 0, killed) == killed
    assert await turns.put_intent(db, rollout, 0, 0, 0, "echo 0") == killed


async def test_history_is_every_reply_and_every_result_in_order(db: Database) -> None:
    rollout = await add_claimed_rollout(db)
    replies, results, start = [], [], 0
    for turn in range(5):
        replies.append(call(turn, start))
        start = replies[-1].end
        await turns.put_call(db, rollout, 0, replies[-1])
        if turn == 1:
            continue  # a reply without a command
        await turns.put_intent(db, rollout, 0, turn, 0, f"echo {turn}")
        if turn < 4:
            results.append(execution(turn, output=b"x" * turn))
            await turns.put_execution(db, rollout, 0, results[-1])
    assert await turns.history(db, rollout, 0) == (replies, results)
    assert (await rollouts.claim(db, rollout, RUN)).epoch == 0


async def test_branches_and_several_commands_of_a_call_are_read_back(db: Database) -> None:
    rollout = await add_claimed_rollout(db)
    root = call(0, 0)
    made = [root, call(1, root.end), dataclasses.replace(call(2, root.end), parent=0)]
    for each in made:
        await turns.put_call(db, rollout, 0, each)
    ran = [
        dataclasses.replace(execution(n), index=index, output=f"{n}.{index}".encode())
        for n, index in ((0, 0), (0, 1), (2, 0))
    ]
    for each in reversed(ran):
        await turns.put_intent(db, rollout, 0, each.call, each.index, each.command)
        await turns.put_execution(db, rollout, 0, each)
    assert await turns.history(db, rollout, 0) == (made, ran)
    assert await turns.put_intent(db, rollout, 0, 0, 1, "echo 0") == ran[1]
    assert [[each.number for each in path] for path in branches(made)] == [[0, 1], [0, 2]]
