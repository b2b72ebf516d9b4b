"""Replies under way: each grows, belongs to one epoch, and ends with its call or its rollout."""

import asyncio
from dataclasses import replace

from store_records import RUN, add_claimed_rollout, add_group, begin_campaign, call, finish

from infra.db.database import Database
from infra.db.rollouts import partial_calls, rollouts, turns
from infra.db.rollouts.partial_calls import Kept
from mainspring.ids import RolloutId
from mainspring.trajectories.turns import PartialCall, ReplyPart, VersionSpan


def partial(length: int) -> PartialCall:
    return PartialCall(
        tuple(range(length)), (-0.25,) * length, (VersionSpan(3, 0, length),), float(length)
    )


async def put(
    db: Database, rollout: RolloutId, epoch: int, number: int, length: int, *, start: int = 0
) -> None:
    part = ReplyPart.of_call(partial(length), start)
    await partial_calls.put(db, [Kept(rollout, epoch, number, length - start, part)])


async def test_the_longest_stands_whoever_comes_last(db: Database) -> None:
    rollout = await add_claimed_rollout(db)
    assert await partial_calls.get(db, rollout, 0, 0) is None
    await asyncio.gather(*(put(db, rollout, 0, 0, length) for length in (32, 96, 64)))
    assert await partial_calls.get(db, rollout, 0, 0) == partial(96)


async def test_parts_of_one_sampling_are_put_together_and_never_with_others(db: Database) -> None:
    rollout = await add_claimed_rollout(db)
    ours = partial(96)

    async def add(sampling: int, start: int, end: int, token: int | None = None) -> None:
        part = ReplyPart.of_call(partial(end), start)
        if token is not None:
            part = replace(part, completion_ids=(token,) * (end - start))
        await partial_calls.put(db, [Kept(rollout, 0, 0, sampling, part)])

    await add(1, 0, 32)
    await add(2, 0, 64, token=7)
    await add(1, 64, 96)  # a part before it was lost
    assert (await partial_calls.get(db, rollout, 0, 0)).completion_ids == (7,) * 64
    await add(1, 32, 64)
    assert await partial_calls.get(db, rollout, 0, 0) == ours
    await add(1, 32, 64, token=9)  # a write that is repeated changes nothing
    assert await partial_calls.get(db, rollout, 0, 0) == ours
    await turns.put_call(db, rollout, 0, call(0, 0))
    await put(db, rollout, 0, 1, 4)
    assert await partial_calls.get(db, rollout, 0, 0) is None


async def test_calls_at_once_are_kept_each_until_it_is_stored(db: Database) -> None:
    rollout = await add_claimed_rollout(db)
    await asyncio.gather(*(put(db, rollout, 0, number, 8 + number) for number in range(4)))
    for number in range(4):
        assert await partial_calls.get(db, rollout, 0, number) == partial(8 + number)
    await turns.put_call(db, rollout, 0, call(0, 0))
    await put(db, rollout, 0, 2, 64)
    found = [await partial_calls.get(db, rollout, 0, number) for number in range(4)]
    assert found == [None, partial(9), partial(64), partial(11)]
    await put(db, rollout, 0, 0, 128)
    assert await partial_calls.get(db, rollout, 0, 0) is None, "written after its call was stored"


async def test_an_older_epoch_changes_nothing_and_the_end_drops_it(db: Database) -> None:
    rollout = await add_claimed_rollout(db)
    await put(db, rollout, 0, 4, 32)
    await rollouts.new_epoch(db, rollout, 0, RUN)
    assert await partial_calls.get(db, rollout, 1, 4) is None
    await put(db, rollout, 1, 0, 8)
    await put(db, rollout, 0, 4, 64)
    assert await partial_calls.get(db, rollout, 0, 4) is None
    assert await partial_calls.get(db, rollout, 1, 0) == partial(8)
    await finish(db, rollout, 1, 1.0)
    assert await partial_calls.get(db, rollout, 1, 0) is None
    await put(db, rollout, 1, 0, 16)
    assert await partial_calls.get(db, rollout, 1, 0) is None, "written after the end"


async def test_parts_of_several_rollouts_are_one_write_and_one_that_ended_spoils_none(
    db: Database,
) -> None:
    await begin_campaign(db)
    _, mine = await add_group(db, size=5)
    for rollout in mine:
        await rollouts.claim(db, rollout, RUN)
    await finish(db, mine[2], 0, 1.0)
    await partial_calls.put(
        db,
        [
            Kept(rollout, 0, 1, 5, ReplyPart.of_call(partial(4 + n)))
            for n, rollout in enumerate(mine)
        ],
    )
    found = [await partial_calls.get(db, rollout, 0, 1) for rollout in mine]
    assert found == [partial(4), partial(5), None, partial(7), partial(8)]
