"""The reply under way: it grows, belongs to one epoch, and ends with its rollout."""

import asyncio

import pytest
from store_records import RUN, add_claimed_rollout, finish

from infra.db import partial_calls, rollouts
from infra.db.database import Database
from infra.db.fence import Fenced
from mainspring.trajectories.turns import PartialCall, VersionSpan


def partial(length: int) -> PartialCall:
    return PartialCall(
        tuple(range(length)), (-0.25,) * length, (VersionSpan(3, 0, length),), float(length)
    )


async def test_the_longest_stands_whoever_comes_last(db: Database) -> None:
    rollout = await add_claimed_rollout(db)
    assert await partial_calls.get(db, rollout, 0, 0) is None
    await asyncio.gather(
        *(partial_calls.put(db, rollout, 0, 0, partial(length)) for length in (32, 96, 64))
    )
    assert await partial_calls.get(db, rollout, 0, 0) == partial(96)
    await partial_calls.put(db, rollout, 0, 1, partial(8))
    await partial_calls.put(db, rollout, 0, 0, partial(128))
    assert await partial_calls.get(db, rollout, 0, 0) is None
    assert await partial_calls.get(db, rollout, 0, 1) == partial(8)


async def test_an_older_epoch_is_refused_and_the_end_drops_it(db: Database) -> None:
    rollout = await add_claimed_rollout(db)
    await partial_calls.put(db, rollout, 0, 4, partial(32))
    await rollouts.new_epoch(db, rollout, 0, RUN)
    assert await partial_calls.get(db, rollout, 1, 4) is None
    with pytest.raises(Fenced, match="epoch 0 is over"):
        await partial_calls.put(db, rollout, 0, 4, partial(64))
    await partial_calls.put(db, rollout, 1, 0, partial(8))
    await finish(db, rollout, 1, 1.0)
    assert await partial_calls.get(db, rollout, 1, 0) is None
