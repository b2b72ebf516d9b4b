"""Agents outside that leave, signals that are lost, rollouts that end: one result stands."""

import asyncio
from typing import Any

import openai
import pytest
from outside import client_of, outside, remote, started, work
from program_checks import THREE, check_answered_once, replays
from program_cluster import ProgramCluster
from temporalio.client import WorkflowFailureError

from gateway.sessions.session_desk import SessionDesk
from infra.db.programs import sessions
from mainspring.programs.session import SessionEnd
from mainspring.status import StopReason
from tests.waiting import until


async def ask_one(session: dict[str, Any]) -> None:
    async with client_of(session) as client:
        await client.responses.create(model="m", input="hello")


async def test_a_session_that_was_left_is_over_once_it_is_offered_again(
    programs: ProgramCluster,
) -> None:
    campaign, _, [rollout], [handle] = await started(programs, options={"silence_s": 2.0})
    async with outside(programs, campaign) as agent:
        first = await agent.take()
        await ask_one(first)
        second = await agent.take()  # as soon as the first has been silent
        assert second["rollout"] == rollout and second["id"] != first["id"]
        assert second["key"] != first["key"]
        late = await agent.finish(first, patch="")
        assert late.status_code == 409 and "offered again" in late.json()["error"]["message"]
        assert (await agent.ask(first, "POST", "/heartbeat")).status_code == 410
        with pytest.raises(openai.AuthenticationError):
            await ask_one(first)
        await ask_one(second)
        assert (await agent.finish(second, patch="")).status_code == 200
    assert (await handle.result()).stop_reason is StopReason.SUBMITTED


async def test_a_heartbeat_keeps_a_session(programs: ProgramCluster) -> None:
    campaign, _, [rollout], [handle] = await started(programs, options={"silence_s": 6.0})
    async with outside(programs, campaign) as agent:
        session = await agent.take()
        await ask_one(session)
        for _ in range(16):
            await asyncio.sleep(0.5)
            assert (await agent.ask(session, "POST", "/heartbeat")).json()["state"] == "open"
        assert (await agent.finish(session, patch="")).status_code == 200
    await handle.result()
    ended = await sessions.of_rollout(programs.workers.db, rollout, 0)
    assert [each.ending for each in ended] == [SessionEnd.PATCH]


async def test_a_session_that_is_given_back_is_offered_to_the_next(
    programs: ProgramCluster,
) -> None:
    programs.engine.say = lambda prompt, turn: THREE[turn]
    campaign, _, [rollout], [handle] = await started(programs)
    async with outside(programs, campaign) as agent:
        first = await agent.take()
        assert (await agent.ask(first, "DELETE")).status_code == 200
        assert (await agent.ask(first, "DELETE")).status_code == 200
        second = await agent.take()
        assert (await agent.finish(second, patch=await work(second))).status_code == 200
        assert (await agent.ask(second, "DELETE")).status_code == 409
    assert (await handle.result()).reward == 1.0
    await check_answered_once(programs, rollout, num_calls=3, num_lives=2)


async def test_agents_that_leave_again_and_again_mask_the_rollout(
    programs: ProgramCluster,
) -> None:
    campaign, _, [rollout], [handle] = await started(programs, options={"lives": 2})
    async with outside(programs, campaign) as agent:
        for _ in range(2):
            await agent.ask(await agent.take(), "DELETE")
    result = await handle.result()
    assert (result.stop_reason, result.reward) == (StopReason.INFRA_FAULT, None)
    assert "SessionAbandoned" in (result.fault or "") and "2 sessions" in (result.fault or "")
    await replays(programs.workers, rollout)


async def test_a_cancelled_rollout_tells_its_agent(programs: ProgramCluster) -> None:
    campaign, _, [rollout], [handle] = await started(programs)
    async with outside(programs, campaign) as agent:
        session = await agent.take()
        await ask_one(session)
        await handle.cancel()
        with pytest.raises(WorkflowFailureError):
            await handle.result()
        for answer in (
            await agent.finish(session, patch=""),
            await agent.ask(session, "POST", "/heartbeat"),
            await agent.ask(session, "DELETE"),
        ):
            assert answer.status_code == 410, answer.text
        with pytest.raises(openai.AuthenticationError):
            await ask_one(session)
    assert (await programs.workers.row(rollout)).stop_reason is StopReason.CANCELLED
    await replays(programs.workers, rollout)


async def test_a_rollout_that_waits_for_an_agent_can_be_cancelled(
    programs: ProgramCluster,
) -> None:
    campaign, _, [rollout], [handle] = await started(programs)

    async def is_offered() -> bool:
        return (await sessions.waiting(programs.workers.db, campaign))[0] == 1

    await until(is_offered)
    await handle.cancel()
    with pytest.raises(WorkflowFailureError):
        await handle.result()
    async with outside(programs, campaign) as agent:
        assert (await agent.claim()).status_code == 429
    assert (await programs.workers.row(rollout)).stop_reason is StopReason.CANCELLED


async def test_a_terminated_rollout_is_passed_over(programs: ProgramCluster) -> None:
    """Its row still lives: only Temporal knows."""
    campaign, _, [gone, lives], handles = await started(programs, size=2)

    async def both_offered() -> bool:
        return (await sessions.waiting(programs.workers.db, campaign))[0] == 2

    await until(both_offered)
    await handles[0].terminate()
    async with outside(programs, campaign) as agent:
        session = await agent.take("a-claim")
        assert session["rollout"] == lives
        assert (await agent.take("a-claim"))["id"] == session["id"]
        assert (await agent.claim()).status_code == 429
        await agent.finish(session, error="enough")
    await handles[1].result()
    [ended] = await sessions.of_rollout(programs.workers.db, gone, 0)
    assert ended.ending is SessionEnd.RELEASED


async def test_a_result_that_no_signal_told_of_is_found(
    programs: ProgramCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    campaign, _, [rollout], [handle] = await started(programs, options={"silence_s": 3.0})

    async def tell_nothing(*about: object) -> bool:
        return True

    async with outside(programs, campaign) as agent:
        monkeypatch.setattr(SessionDesk, "_tell", tell_nothing)
        session = await agent.take()
        await ask_one(session)  # which tells that it was taken
        assert (await agent.finish(session, patch="")).status_code == 200
        assert (await handle.result()).stop_reason is StopReason.SUBMITTED
    await replays(programs.workers, rollout)


async def test_a_reset_rollout_is_offered_anew_and_its_former_session_is_over(
    programs: ProgramCluster,
) -> None:
    campaign, group, [rollout] = await programs.workers.make_rollouts(program=remote())
    handle = await programs.workers.start(rollout, campaign, group)
    async with outside(programs, campaign) as agent:
        first = await agent.take()
        await ask_one(first)
        await handle.terminate()
        handle = await programs.workers.start(rollout, campaign, group)
        second = await agent.take()
        assert second["id"] != first["id"]
        assert (await agent.finish(first, patch="")).status_code == 410
        await ask_one(second)
        assert (await agent.finish(second, patch="")).status_code == 200
    assert (await handle.result()).stop_reason is StopReason.SUBMITTED
    assert (await programs.workers.row(rollout)).epoch == 1
