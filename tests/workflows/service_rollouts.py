"""Campaigns whose tasks are games of the example service, or of a fake one."""

import uuid
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import psutil
from cluster import Cluster

from infra.functions.labelled import LABEL
from infra.sources.protocol import ImportOptions
from infra.sources.resolve import open_source
from mainspring.config.campaign import CampaignConfig
from mainspring.config.files.reading import read_environments, read_layers
from mainspring.ids import CampaignId, GroupId, RolloutId, TaskId
from mainspring.protocol.rollout import RolloutResult
from mainspring.tasks.own_task import OwnTask
from tests.processes import running

EXAMPLE = Path(__file__).parents[2] / "examples" / "agentgym"
FILE = EXAMPLE / "campaign.toml"
NUMBER = 16
"""Of a game that is won in four steps: the key is to the right, the door to the right of that."""
WINS = ("go right", "take the key", "go right", "open the door")


def says(action: str) -> str:
    return f"Thought: I do that.\nAction: {action}"


@cache
def games() -> Mapping[int, OwnTask]:
    """The example's tasks by number, as they are imported."""
    found = {}
    for row in open_source(str(FILE), ImportOptions()).rows():
        assert isinstance(row.result, OwnTask)
        found[row.result.data["data_idx"]] = row.result
    return found


def config_of(**changed: Any) -> CampaignConfig:
    """`environment`: fields of the example's section, or others in its place."""
    raw = read_layers(FILE).table
    environment = changed.pop("environment", None) or {}
    section = read_environments(FILE)["rooms"].model_dump(mode="json", exclude_unset=True)
    if "url" in environment:
        section = {"kind": "agentgym", "family": "textcraft"}
    agent = {**raw["agent"], "step_limit": 8, **changed.pop("agent", {})}
    return CampaignConfig.model_validate(
        {
            "name": f"gym-{uuid.uuid4().hex[:8]}",
            "agent": agent,
            "environments": {"rooms": section | environment},
            "policy": {"model": "scripted", "max_context": 100_000, "max_new_tokens": 1000},
            **changed,
        }
    )


async def make(
    cluster: Cluster, config: CampaignConfig | None = None, issue: str | None = None
) -> tuple[CampaignId, GroupId, list[RolloutId]]:
    config = config or config_of()
    changed = {"id": TaskId(config.name), "source": "tests"}
    task = games()[NUMBER].model_copy(update=changed | ({"issue": issue} if issue else {}))
    return await cluster.store(config, task)


async def play(
    cluster: Cluster, config: CampaignConfig | None = None, issue: str | None = None
) -> RolloutResult:
    campaign, group, [rollout] = await make(cluster, config, issue)
    handle = await cluster.start(rollout, campaign, group)
    return await handle.result()


def processes_of(campaign: str) -> list[psutil.Process]:
    """Services that nodes started for a campaign."""
    return running(lambda process: f"/{campaign}-rooms." in process.environ().get(LABEL, ""))
