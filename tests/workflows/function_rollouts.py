"""Rollouts that functions play, and the game of examples/own-function as a process."""

import asyncio
import socket
import sys
import uuid
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import psutil
from program_cluster import ProgramCluster

from infra.functions.labelled import LABEL
from mainspring.config.agents.agent import AgentConfig
from mainspring.config.campaign import CampaignConfig
from mainspring.config.policy import PolicyConfig
from mainspring.ids import CampaignId, GroupId, RolloutId, TaskId
from mainspring.protocol.rollout import RolloutResult
from mainspring.tasks.own_task import OwnTask
from tests.processes import running
from tests.waiting import until

EXAMPLE = Path(__file__).parents[2] / "examples" / "own-function"


def function(name: str, **options: Any) -> dict[str, Any]:
    """Fields of [agent]."""
    path = name if ":" in name else f"acting_functions:{name}"
    return {"kind": "function", "tool_parser": "none", "options": {"function": path, **options}}


def config_of(
    agent: Mapping[str, Any],
    environments: Mapping[str, str] | None = None,
    max_context: int = 100_000,
    **limits: Any,
) -> CampaignConfig:
    return CampaignConfig(
        name=f"f-{uuid.uuid4().hex[:8]}",
        agent=AgentConfig(**{"step_limit": 20, **agent, **limits}),
        environments=dict(environments or {}),
        policy=PolicyConfig(
            model="scripted", max_context=max_context, max_new_tokens=max_context // 4
        ),
    )


def game_task(name: str, number: int = 1) -> OwnTask:
    return OwnTask(
        id=TaskId(name),
        kind="treasure",
        source="tests",
        split="train",
        issue="You have twelve steps.",
        data={"data_idx": number},
    )


async def begin(
    cluster: ProgramCluster, agent: Mapping[str, Any], **options: Any
) -> tuple[CampaignId, GroupId, RolloutId]:
    """A campaign of its own with one task of the kind treasure."""
    config = config_of(agent, **options)
    campaign, group, [rollout] = await cluster.workers.store(config, game_task(config.name))
    return campaign, group, rollout


async def play(
    cluster: ProgramCluster, agent: Mapping[str, Any], **options: Any
) -> tuple[RolloutId, RolloutResult]:
    campaign, group, rollout = await begin(cluster, agent, **options)
    handle = await cluster.workers.start(rollout, campaign, group)
    return rollout, await handle.result()


def processes_of(rollout: RolloutId) -> list[psutil.Process]:
    """Of its function, and what that started."""
    mark = f"{rollout.replace('/', '.')}."
    return running(lambda process: mark in process.environ().get(LABEL, ""))


@asynccontextmanager
async def game_service(idle_s: float = 900.0) -> AsyncIterator[str]:
    """Its URL."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    words = (str(EXAMPLE / "treasure.py"), "--port", str(port), "--idle-s", str(idle_s))
    serving = await asyncio.create_subprocess_exec(sys.executable, *words)
    url = f"http://127.0.0.1:{port}"
    try:
        await until(lambda: _answers(url))
        yield url
    finally:
        serving.kill()
        await serving.wait()


async def _answers(url: str) -> bool:
    try:
        return (await games(url)) == []
    except httpx.TransportError:
        return False


async def games(url: str) -> list[str]:
    """Those that are open."""
    async with httpx.AsyncClient() as asking:
        return (await asking.get(url)).json()["games"]
