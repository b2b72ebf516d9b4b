"""Rollouts of rows in verl's columns: imported, and played by the agents that they ask for."""

import uuid
from typing import Any

import pytest
from cluster import Cluster
from scripted import called

from infra.db.rollouts import rollouts
from infra.sources.protocol import ImportOptions, Place
from infra.sources.rows import read_row
from mainspring.config.agents.agent import AgentConfig
from mainspring.config.campaign import CampaignConfig
from mainspring.config.policy import PolicyConfig
from mainspring.ids import group_id
from mainspring.status import StopReason, Verdict
from mainspring.tasks.own_task import OwnTask

AGENTS = {
    "single_turn_agent": AgentConfig.model_validate({"kind": "single", "single": "text"}),
    "tool_agent": AgentConfig(kind="tools", tools=("act",), step_limit=4),
}


def task_of(name: str, agent: str) -> OwnTask:
    row = {
        "data_source": name,
        "prompt": [
            {"role": "user", "content": "What is 6 x 7?"},
            {"role": "assistant", "content": "42"},
            {"role": "user", "content": "And half of it?"},
        ],
        "reward_model": {"style": "rule", "ground_truth": "21"},
        "extra_info": {"index": 0},
        "agent_name": agent,
    }
    found = read_row(row, Place("f", 1), ImportOptions(), source="s")
    assert found is not None and isinstance(found.result, OwnTask), found
    return found.result


@pytest.mark.parametrize(
    ("agent", "replies", "verdict", "num_turns"),
    [
        ("single_turn_agent", ["42 / 2 = 21\n#### 21"], Verdict.RESOLVED, 1),
        ("single_turn_agent", [r"\boxed{84}"], Verdict.NOT_RESOLVED, 1),
        ("tool_agent", ["Let me think.", called("act", action="21.0")], Verdict.RESOLVED, 2),
    ],
)
async def test_the_agent_that_a_row_asks_for_answers_it(
    cluster: Cluster, agent: str, replies: list[str], verdict: Verdict, num_turns: int
) -> None:
    name = f"verl-{uuid.uuid4().hex[:8]}"
    policy: dict[str, Any] = {"model": "scripted", "max_context": 100_000}
    config = CampaignConfig(
        name=name, agents=AGENTS, policy=PolicyConfig(**policy, max_new_tokens=1000)
    )
    campaign, _, [rollout] = await cluster.store(config, task_of(name, agent))
    cluster.policy.say = lambda _, turn: replies[turn]
    result = await (await cluster.start(rollout, campaign, group_id(campaign, 0))).result()
    assert (result.stop_reason, result.verdict) == (StopReason.SUBMITTED, verdict)
    assert (result.num_turns, result.reward) == (num_turns, float(verdict is Verdict.RESOLVED))
    prompt = bytes(cluster.policy.prompts[f"{rollout}.t0"]).decode()
    assert "What is 6 x 7?" in prompt and "And half of it?" in prompt
    row = await cluster.row(rollout)
    output = await rollouts.get_grade_output(cluster.db, rollout, row.epoch)
    assert output is not None and output.endswith("accepted: '21'")
