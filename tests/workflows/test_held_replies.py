"""A reply that is there is kept while Postgres does not answer: no token is generated again."""

import pytest
from scripted import SUBMIT, bash

from activities.replies import asking
from infra.db.rollouts import turns
from mainspring.errors import DatabaseError
from mainspring.status import StopReason

FIX = "sed -i 's/a - b/a + b/' calc.py"


@pytest.mark.parametrize("turns_per_activity", [1, 3])
async def test_an_outage_of_the_store_costs_no_reply(
    cluster, monkeypatch: pytest.MonkeyPatch, turns_per_activity: int
) -> None:
    store, num_refused = turns.put_call, []

    async def away_twice(*arguments):
        if len(num_refused) < 2:
            num_refused.append(1)
            raise DatabaseError("Postgres at 127.0.0.1:1 does not answer")
        return await store(*arguments)

    monkeypatch.setattr(turns, "put_call", away_twice)
    monkeypatch.setattr(asking, "HOLD_WAIT_S", 0.05)
    said = (bash(FIX), SUBMIT)
    cluster.policy.say = lambda rollout, turn: said[turn]
    campaign, group, [rollout] = await cluster.make_rollouts(turns_per_activity=turns_per_activity)
    result = await (await cluster.start(rollout, campaign, group)).result()
    assert (result.stop_reason, result.reward) == (StopReason.SUBMITTED, 1.0)
    assert len(num_refused) == 2
    mine = [each for each in cluster.policy.asked if each.startswith(rollout)]
    assert mine == [f"{rollout}.t0", f"{rollout}.t1"], "a reply was asked for again"


async def test_an_outage_that_lasts_is_left_to_the_next_attempt(
    cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, num_refused = turns.put_call, []

    async def away_at_first(*arguments):
        if len(num_refused) < 4:
            num_refused.append(1)
            raise DatabaseError("Postgres at 127.0.0.1:1 does not answer")
        return await store(*arguments)

    monkeypatch.setattr(turns, "put_call", away_at_first)
    monkeypatch.setattr(asking, "HOLD_S", 0.1)
    monkeypatch.setattr(asking, "HOLD_WAIT_S", 0.05)
    cluster.policy.say = lambda rollout, turn: SUBMIT
    campaign, group, [rollout] = await cluster.make_rollouts()
    result = await (await cluster.start(rollout, campaign, group)).result()
    assert result.stop_reason is StopReason.SUBMITTED
    assert len(num_refused) == 4
    assert 1 < len([each for each in cluster.policy.asked if each.startswith(rollout)]) <= 3
