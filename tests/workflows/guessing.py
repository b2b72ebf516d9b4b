"""Campaigns whose tasks are the numbers of the example environment."""

import uuid
from pathlib import Path
from typing import Any

from cluster import Cluster

from mainspring.config.agents.agent import AgentConfig
from mainspring.config.campaign import CampaignConfig
from mainspring.config.policy import PolicyConfig
from mainspring.ids import CampaignId, RolloutId, TaskId, group_id
from mainspring.protocol.rollout import RolloutResult
from mainspring.tasks.own_task import OwnTask

EXAMPLE = Path(__file__).parents[2] / "examples" / "own-environment"
AGENT = "guess:GuessAgent"
ENVIRONMENT = "guess:GuessEnvironment"
GUESSES = ("50", "what?", "25", "42")


def config_of(name: str, environment: str = ENVIRONMENT, **agent: Any) -> CampaignConfig:
    return CampaignConfig(
        name=name,
        agent=AgentConfig(kind=AGENT, step_limit=8, **agent),
        environments={"guess": environment},
        policy=PolicyConfig(model="scripted", max_context=100_000, max_new_tokens=1000),
    )


async def make(
    cluster: Cluster, environment: str = ENVIRONMENT, **agent: Any
) -> tuple[CampaignId, RolloutId]:
    """A campaign with one task, the number 42, and one rollout."""
    name = f"guess-{uuid.uuid4().hex[:8]}"
    task = OwnTask(
        id=TaskId(name),
        kind="guess",
        source="tests",
        split="train",
        issue="It is below 100.",
        data={"secret": 42},
    )
    campaign, _, [rollout] = await cluster.store(config_of(name, environment, **agent), task)
    return campaign, rollout


async def play(cluster: Cluster, environment: str = ENVIRONMENT, **agent: Any) -> RolloutResult:
    campaign, rollout = await make(cluster, environment, **agent)
    handle = await cluster.start(rollout, campaign, group_id(campaign, 0))
    return await handle.result()
