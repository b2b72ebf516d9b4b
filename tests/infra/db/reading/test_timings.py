"""Where time went, counted within each rollout."""

from store_records import add_group, begin_campaign, put_two_turns

from infra.db.database import Database
from infra.db.reading import timings
from infra.db.rollouts import rollouts


async def test_time_between_replies_is_never_taken_across_rollouts(db: Database) -> None:
    await begin_campaign(db)
    _, ids = await add_group(db, size=3)
    for rollout in ids[:2]:
        claim = await rollouts.claim(db, rollout, "run")
        await put_two_turns(db, rollout, claim.epoch, seed=rollout)
    async with db.snapshot() as connection:
        found = await timings.between_replies(connection, ids)
    assert [number for number, _ in found] == [1, 1]
    assert min(seconds for _, seconds in found) > 0
