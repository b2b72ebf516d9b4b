"""Gateways that die under agents outside: what was asked is asked again, and one result stands."""

import asyncio
from collections.abc import Awaitable, Callable

import httpx
import pytest
from outside import Outside, client_of, started, work
from program_checks import THREE, check_answered_once
from program_cluster import ProgramCluster, gateway_of

from cli.operations.machine.embedded_stack import StackInfo
from gateway.sessions.session_desk import SessionDesk
from infra.db.programs import campaign_keys, session_ends, sessions
from mainspring.programs.session import SessionEnd
from mainspring.status import StopReason
from tests.waiting import until


class Stuck:
    """Stops a gateway before it tells the workflow, the `nth` time it would, until it is killed."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, nth: int) -> None:
        self.reached = asyncio.Event()
        num_told = 0
        tell: Callable[..., Awaitable[bool]] = getattr(SessionDesk, "_tell")  # noqa: B009

        async def stop(*about: object) -> bool:
            nonlocal num_told
            num_told += 1
            if num_told == nth:
                self.reached.set()
                await asyncio.Event().wait()
            return await tell(*about)

        monkeypatch.setattr(SessionDesk, "_tell", stop)


@pytest.mark.parametrize("has_token", [True, False])
async def test_a_gateway_that_dies_between_a_claim_and_its_answer(
    stack: StackInfo, ungated: ProgramCluster, monkeypatch: pytest.MonkeyPatch, has_token: bool
) -> None:
    ungated.engine.forget()
    token = "claim-1" if has_token else None
    stuck = Stuck(monkeypatch, 1)
    campaign, _, [rollout], [handle] = await started(ungated, options={"silence_s": 3.0})
    key = await campaign_keys.make(ungated.workers.db, campaign)
    assert key is not None

    async def is_offered() -> bool:
        return (await sessions.waiting(ungated.workers.db, campaign))[0] == 1

    await until(is_offered)
    async with gateway_of(stack, ungated.workers) as url, httpx.AsyncClient(base_url=url) as http:
        asking = asyncio.create_task(Outside(http, key).claim(token))
        await stuck.reached.wait()
    with pytest.raises(httpx.HTTPError):
        if (await asking).status_code >= 500:  # told that the gateway ends
            raise httpx.HTTPError("ends")
    async with gateway_of(stack, ungated.workers) as url, httpx.AsyncClient(base_url=url) as http:
        agent = Outside(http, key)
        if has_token:
            session = await agent.take(token)
            again = await agent.take(token)
            assert session["id"] == again["id"] and session["key"] == again["key"]
            assert (await agent.claim("another")).status_code == 429
        else:
            # It is lost, until its workflow finds that nothing comes from what took it.
            assert (await agent.claim()).status_code == 429
            [lost] = await sessions.of_rollout(ungated.workers.db, rollout, 0)
            await session_ends.end(ungated.workers.db, rollout, 0, 0, SessionEnd.SILENT)
            await ungated.workers.client.get_workflow_handle(handle.id).signal("session")
            session = await agent.take()
            assert session["id"] != lost.id
        async with client_of(session) as client:
            await client.responses.create(model="m", input="hello")
        assert (await agent.finish(session, patch="")).status_code == 200
        assert (await handle.result()).stop_reason is StopReason.SUBMITTED
        if has_token:  # its session is over, and the claim with it
            assert (await agent.claim(token)).status_code == 409


async def test_a_gateway_that_dies_between_a_stored_result_and_the_signal(
    stack: StackInfo, ungated: ProgramCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    ungated.engine.forget()
    ungated.engine.say = lambda prompt, turn: THREE[turn]
    stuck = Stuck(monkeypatch, 2)
    campaign, _, [rollout], [handle] = await started(ungated)
    key = await campaign_keys.make(ungated.workers.db, campaign)
    assert key is not None
    async with gateway_of(stack, ungated.workers) as url, httpx.AsyncClient(base_url=url) as http:
        agent = Outside(http, key)
        session = await agent.take()
        patch = await work(session)
        asking = asyncio.create_task(agent.finish(session, patch=patch))
        await stuck.reached.wait()
    await asyncio.gather(asking, return_exceptions=True)
    async with gateway_of(stack, ungated.workers) as url, httpx.AsyncClient(base_url=url) as http:
        agent = Outside(http, key)
        assert (await agent.finish(session, patch="")).status_code == 409
        assert (await agent.finish(session, patch=patch)).status_code == 200
        assert (await handle.result()).reward == 1.0
    await check_answered_once(ungated, rollout, num_calls=3, num_lives=1)
