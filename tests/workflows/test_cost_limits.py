"""Rollouts that reach `agent.cost_limit`: agents turn by turn and together, and programs."""

import pytest
from cluster import Cluster
from program_cluster import ProgramCluster, calling
from scripted import bash

from infra.db.rollouts import turns
from mainspring.config.agents.prices import PriceConfig
from mainspring.status import StopReason, Verdict
from reports import one_rollout

PRICES = {"scripted": PriceConfig(input=0.0, output=1000.0)}
"""A thousandth of a dollar for each token of a reply."""
EDIT = "sed -i 's/a - b/a + b/' calc.py"
FIX = bash(EDIT)


@pytest.mark.parametrize("together", [1, 4])
async def test_an_agent_ends_after_the_turn_that_reaches_it(
    cluster: Cluster, together: int
) -> None:
    """The last command runs, and what the tree holds is graded."""
    said = (bash("true"), FIX, bash("false"))
    cluster.policy.say = lambda rollout, turn: said[turn]
    limit = sum(len(each) + 1 for each in said[:2]) / 1000  # with the token that ends a reply
    rollout, result = await cluster.play(
        cost_limit=limit, prices=PRICES, turns_per_activity=together
    )
    row = await cluster.row(rollout)
    assert (result.stop_reason, result.num_turns) == (StopReason.COST_LIMIT, 2)
    assert (row.stop_reason, row.verdict) == (StopReason.COST_LIMIT, Verdict.RESOLVED)
    assert result.reward == 1.0
    view = await one_rollout.read(cluster.db, rollout)
    assert view.cost == pytest.approx(limit)


async def test_a_program_is_ended_when_it_asks_beyond_it(programs: ProgramCluster) -> None:
    programs.engine.say = lambda prompt, turn: calling(EDIT if turn == 0 else "true")
    rollout, result = await programs.play(cost_limit=0.0001, prices=PRICES)
    assert (result.stop_reason, result.reward, result.num_turns) == (StopReason.COST_LIMIT, 1.0, 1)
    calls, _ = await turns.history(programs.workers.db, rollout, 0)
    assert len(calls) == 1
