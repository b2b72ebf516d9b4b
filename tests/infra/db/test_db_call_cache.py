"""A rollout's turns are read once by a process; later reads ask the store for what is new."""

from dataclasses import replace

import pytest
from store_records import add_claimed_rollout, call, execution, put_two_turns, task
from traced import memory_of

from infra.db.database import Database
from infra.db.rollouts import rollouts, turns
from infra.db.rollouts.call_cache import CallCache, HistoryReads, packed
from mainspring.agents.asking import next_request
from mainspring.agents.choice import agent_for
from mainspring.config.run import RunConfig
from mainspring.ids import RolloutId
from mainspring.trajectories.turns import Call, Execution, VersionSpan


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """Of each read of the store: the first call that is asked for, and how many came."""
    found: list[tuple[int, int]] = []
    history = turns.history

    async def counted(db: Database, rollout: RolloutId, epoch: int, first: int = 0):
        calls, executions = await history(db, rollout, epoch, first)
        found.append((first, len(calls)))
        return calls, executions

    monkeypatch.setattr(turns, "history", counted)
    return found


async def stored_history(db: Database, rollout: RolloutId) -> tuple[list[Call], list[Execution]]:
    """All of epoch 0, as it is kept."""
    calls, executions = await turns.history(db, rollout, 0)
    return [packed(call) for call in calls], executions


async def test_a_read_asks_for_the_newest_known_call_and_what_came_after(
    db: Database, reads: list[tuple[int, int]]
) -> None:
    rollout = await add_claimed_rollout(db)
    known = CallCache(db)
    assert (await known.played(rollout, 0)).calls == []
    start = 0
    for number in range(30):
        stored = await turns.put_call(db, rollout, 0, call(number, start))
        await turns.put_intent(db, rollout, 0, number, 0, "ls")
        # Read between a reply and its command, as a second command of the reply would be.
        assert (await known.played(rollout, 0)).calls[-1] == packed(stored)
        await turns.put_execution(db, rollout, 0, execution(number))
        start = stored.end
    past = await known.played(rollout, 0)
    assert max(num_calls for _, num_calls in reads) == 2
    assert (past.calls, past.executions) == await stored_history(db, rollout)
    assert known.reads == HistoryReads(num_known=30, num_whole=1)


async def test_what_a_caller_adds_is_its_own_until_it_is_kept(db: Database) -> None:
    rollout = await add_claimed_rollout(db)
    await put_two_turns(db, rollout, 0, "x")
    known = CallCache(db)
    mine, other = await known.played(rollout, 0), await known.played(rollout, 0)
    mine.add_call(await turns.put_call(db, rollout, 0, call(2, mine.calls[-1].end, "x")))
    assert len(other.calls) == 2
    known.keep(rollout, 0, mine)
    assert (await known.played(rollout, 0)).calls == mine.calls


async def test_another_call_in_the_store_is_believed_and_another_epoch_is_another(
    db: Database, reads: list[tuple[int, int]]
) -> None:
    rollout = await add_claimed_rollout(db)
    await put_two_turns(db, rollout, 0, "x")
    known = CallCache(db)
    wrong = await known.played(rollout, 0)
    wrong.calls[-1] = replace(wrong.calls[-1], text="never stored")
    known.keep(rollout, 0, wrong)
    right = await known.played(rollout, 0)
    assert (right.calls, right.executions) == await stored_history(db, rollout)
    assert known.reads == HistoryReads(num_whole=2)
    assert reads[:3] == [(0, 2), (1, 1), (0, 2)]
    await rollouts.claim(db, rollout, "run-b")
    assert (await known.played(rollout, 1)).calls == []


async def test_memory_is_bounded_and_what_left_it_is_read_again(
    db: Database, reads: list[tuple[int, int]]
) -> None:
    rollout = await add_claimed_rollout(db)
    await put_two_turns(db, rollout, 0, "x")
    await rollouts.claim(db, rollout, "run-b")
    await put_two_turns(db, rollout, 1, "x")
    num_bytes = (await CallCache(db).played(rollout, 0)).num_bytes
    known = CallCache(db, max_bytes=num_bytes * 3 // 2)
    reads.clear()
    for epoch in (0, 1, 1, 0):
        past = await known.played(rollout, epoch)
        assert (len(past.calls), past.num_bytes) == (2, num_bytes)
    assert reads == [(0, 2), (0, 2), (1, 1), (0, 2)]


async def test_what_is_forgotten_takes_no_room_and_is_read_again_whole(
    db: Database, reads: list[tuple[int, int]]
) -> None:
    rollout = await add_claimed_rollout(db)
    await put_two_turns(db, rollout, 0, "x")
    known = CallCache(db)
    before = await known.played(rollout, 0)
    known.forget(rollout, 0)
    known.forget(rollout, 0)
    assert known._num_bytes == 0
    assert (await known.played(rollout, 0)).calls == before.calls
    assert reads == [(0, 2), (0, 2)]


NUM_TURNS = 40
PROMPT_TOKENS, REPLY_TOKENS = 750, 250
"""40,000 tokens in all."""


async def put_long_turns(db: Database, rollout: RolloutId) -> None:
    start = 0
    for number in range(NUM_TURNS):
        reply = Call(
            number,
            number - 1 if number else None,
            start,
            tuple(range(100_000, 100_000 + PROMPT_TOKENS)),
            tuple(range(50_000, 50_000 + REPLY_TOKENS)),
            tuple(-0.1 * n for n in range(REPLY_TOKENS)),
            (VersionSpan(3, 0, REPLY_TOKENS),),
            f"THOUGHT: {number}" + 300 * "x",
            "stop",
        )
        start = (await turns.put_call(db, rollout, 0, reply)).end
        await turns.put_intent(db, rollout, 0, number, 0, "ls")
        await turns.put_execution(db, rollout, 0, replace(execution(number), output=2000 * b"o"))


async def test_the_bytes_that_are_counted_are_those_that_memory_has(db: Database) -> None:
    rollout = await add_claimed_rollout(db)
    await put_long_turns(db, rollout)
    asker = agent_for(RunConfig(name="r"), task(0))

    known = CallCache(db)
    past = await known.played(rollout, 0)
    past.add_asked(next_request(asker, task(0), past.record))
    known.keep(rollout, 0, past)
    taken = memory_of(past)
    assert known._num_bytes == pytest.approx(taken, rel=0.2)
    num_values = NUM_TURNS * (PROMPT_TOKENS + 2 * REPLY_TOKENS)
    texts_and_outputs = NUM_TURNS * (300 + 2 * 2000)
    assert taken < 4 * num_values + texts_and_outputs + NUM_TURNS * 4000


async def test_tokens_and_log_probs_are_those_of_the_store_to_the_last_bit(db: Database) -> None:
    rollout = await add_claimed_rollout(db)
    await put_long_turns(db, rollout)
    [*calls], _ = await turns.history(db, rollout, 0)
    for kept, stored in zip((await CallCache(db).played(rollout, 0)).calls, calls, strict=True):
        assert [*kept.prompt_ids] == [*stored.prompt_ids]
        assert [*kept.completion_ids] == [*stored.completion_ids]
        assert [*kept.logprobs] == [*stored.logprobs]
        assert replace(stored, prompt_ids=(), completion_ids=(), logprobs=()) == replace(
            kept, prompt_ids=(), completion_ids=(), logprobs=()
        )
