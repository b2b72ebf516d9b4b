"""Agents outside reach gateways through an edge: real processes, killed while a request waits."""

import asyncio
from pathlib import Path

import httpx
import pytest
from outside import Outside, started, work
from program_checks import THREE, Held, check_answered_once
from program_cluster import ProgramCluster

from cli.operations.machine.embedded_stack import StackInfo
from infra.db.programs import campaign_keys
from mainspring.status import StopReason
from tests.edge_process import edge_process, gateway_process


@pytest.fixture
async def held(ungated: ProgramCluster) -> Held:
    """The engine makes three replies, and waits within the second."""
    ungated.engine.forget()
    ungated.engine.say = lambda prompt, turn: THREE[turn]
    ungated.engine.hold = held = Held(1)
    return held


async def test_a_gateway_behind_an_edge_is_killed_while_a_reply_is_made(
    stack: StackInfo, ungated: ProgramCluster, held: Held, tmp_path: Path
) -> None:
    """The agent, which sends nothing twice, sees no more of it than a longer wait."""
    campaign, _, [rollout], [handle] = await started(ungated)
    key = await campaign_keys.make(ungated.workers.db, campaign)
    assert key is not None
    async with (
        edge_process(tmp_path) as (url, edge),
        httpx.AsyncClient(base_url=url, timeout=120.0) as http,
        gateway_process(tmp_path, stack.home, url) as first,
    ):
        agent = Outside(http, key)
        session = await agent.take()
        assert session["base_urls"]["openai"] == f"{url}/v1"
        working = asyncio.create_task(work(session, max_retries=0))
        await held.reached.wait()
        async with gateway_process(tmp_path, stack.home, url):
            first.kill()
            await edge.until_told("a gateway left")
            held.let_go.set()
            patch = await working
            assert (await agent.finish(session, patch=patch)).status_code == 200
            result = await handle.result()
    assert (result.stop_reason, result.reward) == (StopReason.SUBMITTED, 1.0)
    await check_answered_once(ungated, rollout, num_calls=3, num_lives=1)


async def test_an_edge_is_killed_while_a_reply_is_made(
    stack: StackInfo, ungated: ProgramCluster, held: Held, tmp_path: Path
) -> None:
    """The gateway dials again, and what the agent sends again is answered from the store."""
    campaign, _, [rollout], [handle] = await started(ungated)
    key = await campaign_keys.make(ungated.workers.db, campaign)
    assert key is not None
    async with edge_process(tmp_path) as (url, edge), gateway_process(tmp_path, stack.home, url):
        port = int(url.rpartition(":")[2])
        async with httpx.AsyncClient(base_url=url, timeout=120.0) as http:
            session = await Outside(http, key).take()
        working = asyncio.create_task(work(session, max_retries=60))
        await held.reached.wait()
        edge.kill()
        held.let_go.set()
        async with (
            edge_process(tmp_path, port) as (_, again),
            httpx.AsyncClient(base_url=url, timeout=120.0) as http,
        ):
            patch = await working
            assert (await Outside(http, key).finish(session, patch=patch)).status_code == 200
            assert len(again.told("a gateway connected")) == 1
            result = await handle.result()
    assert (result.stop_reason, result.reward) == (StopReason.SUBMITTED, 1.0)
    await check_answered_once(ungated, rollout, num_calls=3, num_lives=1)
