"""Sessions in the store: whatever comes in whichever order, one taker and one result."""

import asyncio
import random
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from store_records import CAMPAIGN, RUN, add_claimed_rollout, add_group, begin_campaign

from infra.db.database import Database
from infra.db.fence import Fenced
from infra.db.programs import campaign_keys, program_lives, session_ends, session_offers, sessions
from infra.db.programs.session_ends import HandedIn
from infra.db.programs.session_offers import ClaimOver
from infra.db.programs.sessions import SessionRecord
from infra.db.rollouts import rollouts
from mainspring.ids import CampaignId, RolloutId
from mainspring.programs.session import SessionEnd
from mainspring.status import StopReason, Verdict
from mainspring.tasks.criterion import HANDED_IN, GradeReport


async def take(
    db: Database, claim: str = "c", campaign: CampaignId = CAMPAIGN, **more: Any
) -> SessionRecord | None:
    return await session_offers.take(
        db,
        campaign,
        claim=claim,
        taken_by="me",
        timeout_s=60.0,
        key_of=lambda ident: f"key of {ident} for {claim}",
        **more,
    )


def patch(text: str) -> HandedIn:
    return HandedIn(SessionEnd.PATCH, f"digest of {text}", patch=text.encode())


def reward(score: float) -> HandedIn:
    report = GradeReport(judge=HANDED_IN, score=score)
    return HandedIn(
        SessionEnd.REWARD, f"digest of {score}", verdict=Verdict.NOT_RESOLVED, report=report
    )


async def end_rollout(db: Database, rollout: RolloutId, epoch: int = 0) -> None:
    await rollouts.finish(
        db,
        rollout,
        epoch,
        stop_reason=StopReason.CANCELLED,
        verdict=None,
        reward=None,
        fault=None,
        num_turns=0,
        phase_s={},
    )


async def test_an_offer_is_one_row_and_is_taken_once(db: Database) -> None:
    rollout = await add_claimed_rollout(db)
    found = await asyncio.gather(
        *(session_offers.offer(db, rollout, 0, 0, CAMPAIGN) for _ in range(4))
    )
    assert len({each.id for each in found}) == 1
    assert (await sessions.waiting(db, CAMPAIGN))[0] == 1
    taken = await asyncio.gather(*(take(db, f"c{n}") for n in range(12)))
    [session] = [each for each in taken if each is not None]
    assert (await sessions.waiting(db, CAMPAIGN))[0] == 0
    assert session.taken_by == "me" and session.deadline is not None


async def test_one_claim_takes_one_session_however_often_it_comes(db: Database) -> None:
    await begin_campaign(db)
    _, ids = await add_group(db, size=3)
    for each in ids:
        await rollouts.claim(db, each, RUN)
        await session_offers.offer(db, each, 0, 0, CAMPAIGN)
    taken = await asyncio.gather(*(take(db, "same") for _ in range(12)))
    assert len({each.id for each in taken if each}) == 1 and None not in taken
    assert (await sessions.waiting(db, CAMPAIGN))[0] == 2
    first = taken[0]
    assert first is not None
    key = f"key of {first.id} for same"
    held = await program_lives.holder(db, key)
    assert held is not None and held.rollout == first.rollout
    assert await sessions.with_key(db, first.id, key) is not None
    assert await sessions.with_key(db, first.id, "another") is None
    await session_ends.hand_in(db, first.id, patch("x"))
    with pytest.raises(ClaimOver):
        await take(db, "same")


async def test_kinds_of_tasks_choose(db: Database) -> None:
    rollout = await add_claimed_rollout(db)
    await session_offers.offer(db, rollout, 0, 0, CAMPAIGN)
    assert await take(db, kinds=["other"]) is None
    assert await take(db, kinds=["other", "swe"]) is not None


async def test_nothing_is_taken_of_a_rollout_that_has_ended_or_moved_on(db: Database) -> None:
    rollout = await add_claimed_rollout(db)
    await session_offers.offer(db, rollout, 0, 0, CAMPAIGN)
    assert await rollouts.new_epoch(db, rollout, 0, RUN) == 1
    assert await take(db) is None
    with pytest.raises(Fenced):
        await session_offers.offer(db, rollout, 0, 1, CAMPAIGN)
    await session_offers.offer(db, rollout, 1, 0, CAMPAIGN)
    session = await take(db)
    assert session is not None and session.epoch == 1
    await end_rollout(db, rollout, 1)
    assert not (await sessions.read(db, rollout, 1, 0)).is_open
    with pytest.raises(Fenced):
        await session_ends.hand_in(db, session.id, patch("late"))
    with pytest.raises(ClaimOver):
        await take(db)
    assert await rollouts.get_final_patch(db, rollout) is None


STEPS = [
    ("patch a", lambda db, s: session_ends.hand_in(db, s.id, patch("a"))),
    ("patch b", lambda db, s: session_ends.hand_in(db, s.id, patch("b"))),
    ("reward", lambda db, s: session_ends.hand_in(db, s.id, reward(0.5))),
    ("release", lambda db, s: session_ends.hand_in(db, s.id, HandedIn(SessionEnd.RELEASED, "r"))),
    (
        "error",
        lambda db, s: session_ends.hand_in(db, s.id, HandedIn(SessionEnd.ERROR, "e", note="n")),
    ),
    ("limit", lambda db, s: session_ends.end(db, s.rollout, 0, 0, SessionEnd.LIMIT, "over")),
    ("silent", lambda db, s: session_ends.end(db, s.rollout, 0, 0, SessionEnd.SILENT)),
    ("heartbeat", lambda db, s: sessions.heard(db, s.id)),
    ("again", lambda db, s: take(db, campaign=s.campaign)),
    ("cancel", lambda db, s: end_rollout(db, s.rollout)),
]


@given(order=st.permutations(range(len(STEPS))), at_once=st.integers(1, len(STEPS)))
@settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_whatever_the_order_one_result_stands(
    store_url: str, order: list[int], at_once: int
) -> None:
    asyncio.run(_one_result(store_url, order, at_once))


async def _one_result(url: str, order: list[int], at_once: int) -> None:
    name = f"p{random.SystemRandom().getrandbits(48):x}"
    async with Database.open(url) as db:
        campaign = await begin_campaign(db, name)
        _, [rollout] = await add_group(db, size=1, campaign=campaign)
        await rollouts.claim(db, rollout, RUN)
        offered = await session_offers.offer(db, rollout, 0, 0, campaign)
        session = await take(db, campaign=campaign)
        assert session is not None and session.id == offered.id
        seen: list[SessionEnd | None] = []
        for start in range(0, len(order), at_once):
            steps = [STEPS[each][1](db, session) for each in order[start : start + at_once]]
            ends = await asyncio.gather(*steps, return_exceptions=True)
            assert all(isinstance(each, Fenced) for each in ends if isinstance(each, Exception))
            seen.append((await sessions.read(db, rollout, 0, 0)).ending)
        known = [each for each in seen if each is not None]
        assert len(set(known)) <= 1  # the first end stands
        report = await rollouts.get_grade_report(db, rollout)
        stored = await rollouts.get_final_patch(db, rollout)
        ended = await sessions.read(db, rollout, 0, 0)
        if ended.ending is SessionEnd.PATCH:
            assert stored in (b"a", b"b")
            assert ended.result_hash == f"digest of {(stored or b'').decode()}"
            assert report is None
        elif ended.ending is SessionEnd.REWARD:
            assert stored is None and report is not None and report.score == 0.5
        else:
            assert stored == (b"" if ended.ending is SessionEnd.LIMIT else None)
            assert report is None


async def test_a_run_has_one_key_and_its_digest_is_stored(db: Database) -> None:
    await begin_campaign(db)
    made = await asyncio.gather(*(campaign_keys.make(db, CAMPAIGN) for _ in range(6)))
    [key] = [each for each in made if each is not None]
    assert await campaign_keys.campaign_of(db, key) == CAMPAIGN
    assert await campaign_keys.campaign_of(db, program_lives.digest(key)) is None
    assert await campaign_keys.made_at(db, CAMPAIGN) is not None
    assert await campaign_keys.revoke(db, CAMPAIGN) and not await campaign_keys.revoke(db, CAMPAIGN)
    assert await campaign_keys.campaign_of(db, key) is None
    assert await campaign_keys.make(db, CAMPAIGN) not in (None, key)
