"""Judgements: the first vote and the first judgement stand, in their own epoch alone."""

import asyncio
from dataclasses import replace

import pytest
from store_records import RUN, add_claimed_rollout, finish

from infra.db.database import Database
from infra.db.fence import Fenced
from infra.db.rollouts import judged_turns, judgements, rollouts, turns
from infra.db.rollouts.judgements import JudgeQuestion
from mainspring.config.agents.judges import JudgeScope
from mainspring.ids import CampaignId
from mainspring.rewards.votes import Judgement, Vote
from mainspring.trajectories.turns import Call, Execution


async def settle(db: Database, question: JudgeQuestion, score: float | None) -> Judgement:
    given = [] if score is None else [Vote("good", score)]
    missing = "no connection" if score is None else None
    return await judgements.put(
        db, question, prompt_sha256="0" * 64, score=score, given=given, missing=missing
    )


async def test_the_first_vote_and_the_first_judgement_stand(db: Database) -> None:
    rollout = await add_claimed_rollout(db)
    question = JudgeQuestion(rollout, 0, "q", JudgeScope.TURNS, 2)
    await asyncio.gather(
        *(judgements.put_vote(db, question, n, Vote(f"vote {n}\0", 1.0)) for n in (0, 1, 2))
    )
    await judgements.put_vote(db, question, 1, Vote("another", None))
    stored = await judgements.votes(db, question)
    assert stored == {n: Vote(f"vote {n}\ufffd", 1.0) for n in (0, 1, 2)}
    assert await judgements.get(db, question) is None
    first = await settle(db, question, None)
    assert first == await settle(db, question, 1.0) == await judgements.get(db, question)
    assert (first.score, first.missing) == (None, "no connection")
    whole = await settle(db, replace(question, of=JudgeScope.ROLLOUT, call=0), -1.0)
    assert await judgements.scores(db, rollout, 0) == [whole, first]
    found = await judgements.of_rollout(db, rollout, 0)
    assert {each.judgement.of: len(each.votes) for each in found} == {
        JudgeScope.TURNS: 3,
        JudgeScope.ROLLOUT: 0,
    }
    campaign = (await rollouts.get(db, rollout)).campaign
    recent = await judgements.recent(db, campaign, "q", 20)
    assert recent.judgements == (whole, first)
    assert await judgements.missing(db, campaign) == {"q": (1, 2)}
    assert await judgements.missing(db, CampaignId("another")) == {}


async def test_an_older_epoch_and_an_end_refuse_judgements(db: Database) -> None:
    rollout = await add_claimed_rollout(db)
    old = JudgeQuestion(rollout, 0, "q", JudgeScope.TURNS, 0)
    await judgements.put_vote(db, old, 0, Vote("x", 1.0))
    await rollouts.new_epoch(db, rollout, 0, RUN)
    with pytest.raises(Fenced, match="epoch 0 is over"):
        await judgements.put_vote(db, old, 1, Vote("late", 1.0))
    with pytest.raises(Fenced, match="epoch 0 is over"):
        await settle(db, old, 1.0)
    new = replace(old, epoch=1)
    assert await judgements.votes(db, new) == {}
    await settle(db, new, 0.5)
    assert [each.score for each in await judgements.scores(db, rollout, 1)] == [0.5]
    await finish(db, rollout, 1, 1.0)
    with pytest.raises(Fenced, match="has ended"):
        await settle(db, replace(new, call=1), 1.0)
    with pytest.raises(Fenced, match="has ended"):
        await judgements.put_vote(db, replace(new, call=1), 0, Vote("late", 1.0))


async def test_a_turn_is_read_with_those_before_it_that_ran(db: Database) -> None:
    rollout = await add_claimed_rollout(db)
    for number in range(6):
        call = Call(number, None, 0, (), (), (), (), text=f"reply {number}", finish_reason="stop")
        await turns.put_call(db, rollout, 0, call)
        for index in range(0 if number == 3 else 2):
            await turns.put_intent(db, rollout, 0, number, index, f"c{index}")
            if number < 5:
                ran = Execution(number, index, f"c{index}", 1, b"\xffout", False, False, 0.1)
                await turns.put_execution(db, rollout, 0, ran)
    shown, num_before = await judged_turns.up_to(db, rollout, 0, 4, 2)
    assert ([turn.number for turn in shown], num_before) == ([2, 3, 5], 1)
    assert [ran.command for ran in shown[-1].commands] == ["c0", "c1"]
    assert (shown[-1].reply, shown[-1].commands[0].output) == ("reply 4", "\ufffdout")
    # One that ran nothing, and one whose command still runs.
    assert await judged_turns.up_to(db, rollout, 0, 3, 8) == ([], 0)
    assert await judged_turns.up_to(db, rollout, 0, 5, 8) == ([], 0)
    whole = await judged_turns.whole(db, rollout, 0)
    assert [(turn.number, len(turn.commands)) for turn in whole] == [
        *((1, 2), (2, 2), (3, 2), (4, 0), (5, 2), (6, 0)),
    ]
