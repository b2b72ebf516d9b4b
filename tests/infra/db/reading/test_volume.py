"""What a load test reads of the store: ends as expected, those in flight together, bytes."""

from store_records import RUN, add_group, begin_campaign, put_two_turns

from infra.db.database import Database
from infra.db.reading import volume
from infra.db.rollouts import rollouts
from mainspring.status import StopReason, Verdict


async def test_only_the_end_that_was_asked_counts_as_expected(db: Database) -> None:
    campaign = await begin_campaign(db)
    _, ids = await add_group(db, size=5)
    asked = (StopReason.STEP_LIMIT, Verdict.NO_PATCH, 2)
    played = [
        (asked, None),
        ((StopReason.STEP_LIMIT, Verdict.NO_PATCH, 1), None),
        ((StopReason.INFRA_FAULT, None, 2), "NodeFailed: it broke"),
    ]
    for rollout, ((stop_reason, verdict, num_turns), fault) in zip(ids, played, strict=False):
        claim = await rollouts.claim(db, rollout, RUN)
        await put_two_turns(db, rollout, claim.epoch, seed=rollout)
        await rollouts.finish(
            db,
            rollout,
            claim.epoch,
            stop_reason=stop_reason,
            verdict=verdict,
            reward=None,
            fault=fault,
            num_turns=num_turns,
            phase_s={},
        )
    for rollout in ids[3:]:
        await rollouts.claim(db, rollout, RUN)
    async with db.snapshot() as connection:
        ends = await volume.ends(connection, campaign, *asked)
        # The first three one after the other, the last two together.
        assert await volume.most_in_flight(connection, campaign) == 2
        assert await volume.num_calls(connection, campaign) == 6
        assert await volume.faults(connection, campaign, limit=3) == ["NodeFailed: it broke"]
        assert await volume.stored_bytes(connection) > 1 << 20
    assert (ends.num_ended, ends.num_as_expected) == (3, 1)
    assert ends.last_end is not None
