"""What a process keeps of programs' calls: the same as the store has, however they came."""

import pytest
from sqlalchemy import text
from store_records import add_claimed_rollout
from traced import memory_of

from infra.db.database import Database
from infra.db.programs import model_requests
from infra.db.rollouts.call_cache import CallCache, HistoryReads, packed
from mainspring.ids import RolloutId
from mainspring.programs.matching import StoredCall, key_of
from mainspring.programs.record import BranchKind
from mainspring.programs.request import ChatMessage, Dialect, ModelRequest, Role
from mainspring.trajectories.turns import Call, VersionSpan


async def _ask(db: Database, rollout: RolloutId, num_requests: int) -> None:
    for number in range(num_requests):
        message = ChatMessage(role=Role.USER, text=f"question {number}")
        asked = ModelRequest(dialect=Dialect.CHAT, model="m", messages=(message,))
        key = key_of(asked)
        await model_requests.ask(
            db, rollout, 0, 0, asked, key, kind=BranchKind.MAIN, setting="", is_retry=False
        )


async def _reply(db: Database, rollout: RolloutId, number: int) -> StoredCall:
    span = VersionSpan(0, 0, 2)
    call = Call(number, None, 0, (1, number), (3, 4), (-0.5, -0.5), (span,), "hello", "stop")
    await model_requests.put_reply(db, rollout, 0, call, f"h{number}")
    return StoredCall(packed(call), f"h{number}")


async def test_replies_are_read_in_whatever_order_they_were_stored(db: Database) -> None:
    rollout = await add_claimed_rollout(db)
    await _ask(db, rollout, 5)
    kept = CallCache(db)
    assert await kept.settled(rollout, 0) == []
    third = await _reply(db, rollout, 2)
    assert await kept.settled(rollout, 0) == [third]
    first = await _reply(db, rollout, 0)
    assert await kept.settled(rollout, 0) == [first, third]
    await model_requests.refuse(db, rollout, 0, 1, {"kind": "unusable"})
    last = await _reply(db, rollout, 4)
    for reader in (kept, kept, CallCache(db)):
        assert await reader.settled(rollout, 0) == [first, third, last]
    fourth = await _reply(db, rollout, 3)
    assert await kept.settled(rollout, 0) == [first, third, fourth, last]
    assert await kept.settled(rollout, 1) == []


async def test_what_is_known_is_not_read_again(db: Database) -> None:
    rollout = await add_claimed_rollout(db)
    await _ask(db, rollout, 3)
    kept = CallCache(db)
    first, second = [await _reply(db, rollout, number) for number in range(2)]
    assert await kept.settled(rollout, 0) == [first, second]
    # It is only read as long as it is not known: nothing changes what stands but this test.
    async with db.transaction() as connection:
        await connection.execute(text("UPDATE calls SET text = 'other' WHERE number = 0"))
    third = await _reply(db, rollout, 2)
    assert await kept.settled(rollout, 0) == [first, second, third]
    assert kept.reads == HistoryReads(num_known=1, num_whole=1)


async def test_another_store_than_the_known_one_is_read_whole(db: Database) -> None:
    rollout = await add_claimed_rollout(db)
    await _ask(db, rollout, 2)
    kept = CallCache(db)
    for number in range(2):
        await _reply(db, rollout, number)
    await kept.settled(rollout, 0)
    async with db.transaction() as connection:
        await connection.execute(text("UPDATE calls SET text = 'other'"))
    assert [each.call.text for each in await kept.settled(rollout, 0)] == ["other", "other"]


async def test_the_epoch_used_longest_ago_leaves_first(db: Database) -> None:
    rollout = await add_claimed_rollout(db)
    await _ask(db, rollout, 1)
    kept = CallCache(db, max_bytes=1)
    first = await _reply(db, rollout, 0)
    for epoch in (0, 1, 0):
        assert await kept.settled(rollout, epoch) == ([first] if epoch == 0 else [])


async def test_the_bytes_that_are_counted_are_those_that_memory_has(db: Database) -> None:
    rollout = await add_claimed_rollout(db)
    await _ask(db, rollout, 40)
    for number in range(40):
        prompt, reply = tuple(range(100_000, 100_750)), tuple(range(50_000, 50_250))
        spans = (VersionSpan(3, 0, 250),)
        call = Call(number, None, 0, prompt, reply, 250 * (-0.5,), spans, 300 * "x", "stop")
        await model_requests.put_reply(db, rollout, 0, call, f"{number:064}")
    kept = CallCache(db)
    taken = memory_of(await kept.settled(rollout, 0))
    assert kept._num_bytes == pytest.approx(taken, rel=0.2)
    assert taken < 40 * (4 * 1250 + 2000)
