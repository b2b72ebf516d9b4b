"""Gateways that die at a certain moment under programs and agents outside, and engines that do not
answer: a request that is sent again gets the stored reply."""

import asyncio
from collections.abc import Awaitable, Callable

import httpx
import pytest
from outside import Outside, client_of, started, work
from players import PROGRAM, Play
from program_checks import (
    Stuck,
    check_answered_once,
    check_fixed,
    interrupt,
    replays,
    sandboxes_of,
)
from program_cluster import AGENT, NoAnswer, ProgramCluster, gateway_of, own_program

from cli.operations.machine.embedded_stack import StackInfo
from gateway.channel import Channel
from gateway.durable import DurableAnswers
from gateway.exchange import Exchange
from gateway.sessions.session_desk import SessionDesk
from infra.db.programs import campaign_keys, session_ends, sessions
from mainspring.errors import EngineError
from mainspring.programs.session import SessionEnd
from mainspring.protocol.rollout import RolloutResult
from mainspring.status import FaultKind, StopReason
from workflows.program import MAX_CUT


@pytest.fixture(scope="module")
def program_workers(ungated: ProgramCluster) -> ProgramCluster:
    return ungated


@pytest.fixture(autouse=True)
def three(programs: ProgramCluster) -> None:
    programs.engine.say = PROGRAM.say


def changed(old: str, new: str) -> dict:
    """The example's program with this change."""
    source = AGENT.read_text()
    assert source.count(old) == 1
    return own_program(source.replace(old, new))


async def play_past(
    stack: StackInfo, programs: ProgramCluster, reached: asyncio.Event, program: dict | None = None
) -> tuple[Play, RolloutResult]:
    """Kill the gateway when `reached` is set; then there is another one."""
    async with gateway_of(stack, programs.workers):
        campaign, group, [rollout] = await programs.workers.make_rollouts(
            program=program or own_program()
        )
        handle = await programs.workers.start(rollout, campaign, group)
        await reached.wait()
    async with gateway_of(stack, programs.workers):
        return Play(campaign, group, rollout, handle), await handle.result()


@pytest.mark.parametrize(
    ("name", "after", "again"),
    [("_signal", False, 1), ("_told", True, 1), ("delivered", False, 0)],
    ids=["before-it-tells-the-workflow", "before-it-sends-the-reply", "when-the-reply-was-sent"],
)
async def test_a_gateway_that_dies_is_asked_again_by_a_client_without_its_answer(
    stack: StackInfo,
    programs: ProgramCluster,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    after: bool,
    again: int,
) -> None:
    """One that has its answer, also where that was not noted, does not ask again."""

    def is_second(answers: DurableAnswers, session: object, asked: object, *more: object) -> bool:
        return getattr(asked, "number", asked) == 1

    stuck = Stuck()
    passed = interrupt(monkeypatch, DurableAnswers, name, stuck, matches=is_second, after=after)
    play, result = await play_past(stack, programs, stuck.reached)
    await check_fixed(programs, play.rollout, result, num_lives=1)
    assert len(passed) == again


async def test_a_client_that_ends_at_a_cut_answer_is_run_again(
    stack: StackInfo, programs: ProgramCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As qwen-code and Gemini's do: what it left would be graded as if the policy had wanted it."""
    gives_up = changed("pass  # the connection was cut", 'sys.exit("the answer was cut")')
    stuck = Stuck()
    deliver: Callable[..., Awaitable[None]] = getattr(Exchange, "_deliver")  # noqa: B009

    async def cut(exchange, channel, session, answer, pieces) -> None:
        if answer.number == 1 and not stuck.reached.is_set():
            text = "".join(pieces)
            await channel.write(text[: len(text) // 2])
            await stuck()
        await deliver(exchange, channel, session, answer, pieces)

    monkeypatch.setattr(Exchange, "_deliver", cut)
    play, result = await play_past(stack, programs, stuck.reached, gives_up)
    program = await check_fixed(programs, play.rollout, result, num_lives=2)
    assert [life.returncode for life in program.lives] == [1, 0]
    assert program.num_replayed == 2
    await replays(programs.workers, play.rollout)


async def test_a_client_whose_answers_are_always_cut_is_graded_after_some_lives(
    stack: StackInfo, programs: ProgramCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may be the client's own doing, such as a limit of its own on the wait for a reply."""
    impatient = changed("    for _ in range(MAX_TRIES):\n", "    for _ in range(1):\n")

    async def never(*about: object) -> bool:
        return False  # the client was gone before it had the answer whole

    monkeypatch.setattr(Channel, "finish", never)
    async with gateway_of(stack, programs.workers):
        rollout, result = await programs.play(impatient)
    assert (result.stop_reason, result.reward, result.num_turns) == (StopReason.EXITED, 0.0, 1)
    lives = MAX_CUT + 1
    program = await check_answered_once(programs, rollout, num_calls=1, num_lives=lives)
    assert {life.returncode for life in program.lives} == {1}


async def test_a_client_that_fails_with_its_answer_is_graded(
    stack: StackInfo, programs: ProgramCluster
) -> None:
    fails = changed(
        "            return\n        for call", "            sys.exit(3)\n        for call"
    )
    async with gateway_of(stack, programs.workers):
        rollout, result = await programs.play(fails)
    program = await check_fixed(programs, rollout, result, num_lives=1)
    assert [life.returncode for life in program.lives] == [3]


async def test_two_gateways_answer_one_program(stack: StackInfo, programs: ProgramCluster) -> None:
    async with gateway_of(stack, programs.workers), gateway_of(stack, programs.workers):
        rollout, result = await programs.play()
    await check_fixed(programs, rollout, result, num_lives=1)


async def test_a_request_waits_for_engines_that_come_back(
    stack: StackInfo, programs: ProgramCluster
) -> None:
    programs.engine.faults = [NoAnswer("no engine is up"), NoAnswer("no engine is up")]
    async with gateway_of(stack, programs.workers):
        rollout, result = await programs.play()
    assert programs.engine.faults == []
    await check_fixed(programs, rollout, result, num_lives=1)


async def test_a_request_that_the_engine_refuses_masks_the_rollout(
    stack: StackInfo, programs: ProgramCluster
) -> None:
    programs.engine.faults = [EngineError("the engine refuses prompts of this kind")]
    async with gateway_of(stack, programs.workers):
        rollout, result = await programs.play()
    assert (result.stop_reason, result.reward) == (StopReason.INFRA_FAULT, None)
    fault = (await programs.workers.row(rollout)).fault or ""
    assert "the engine refuses prompts of this kind" in fault
    assert FaultKind.POLICY_REFUSED in fault and "policy.*" in fault
    assert await sandboxes_of(programs.workers, rollout) == []


@pytest.mark.parametrize("has_token", [True, False])
async def test_a_gateway_that_dies_between_a_claim_and_its_answer(
    stack: StackInfo, programs: ProgramCluster, monkeypatch: pytest.MonkeyPatch, has_token: bool
) -> None:
    token = "claim-1" if has_token else None
    stuck = Stuck()
    interrupt(monkeypatch, SessionDesk, "_tell", stuck)
    campaign, _, [rollout], [handle] = await started(programs, options={"silence_s": 3.0})
    key = await campaign_keys.make(programs.workers.db, campaign)
    assert key is not None

    async with gateway_of(stack, programs.workers) as url, httpx.AsyncClient(base_url=url) as http:
        asking = asyncio.create_task(Outside(http, key).take(token))
        await stuck.reached.wait()
    with pytest.raises((httpx.HTTPError, AssertionError)):  # cut, or told that the gateway ends
        await asking
    async with gateway_of(stack, programs.workers) as url, httpx.AsyncClient(base_url=url) as http:
        agent = Outside(http, key)
        if has_token:
            session = await agent.take(token)
            again = await agent.take(token)
            assert session["id"] == again["id"] and session["key"] == again["key"]
            assert (await agent.claim("another")).status_code == 429
        else:
            # It is lost, until its workflow finds that nothing comes from what took it.
            assert (await agent.claim()).status_code == 429
            [lost] = await sessions.of_rollout(programs.workers.db, rollout, 0)
            await session_ends.end(programs.workers.db, rollout, 0, 0, SessionEnd.SILENT)
            await programs.workers.client.get_workflow_handle(handle.id).signal("session")
            session = await agent.take()
            assert session["id"] != lost.id
        async with client_of(session) as client:
            await client.responses.create(model="m", input="hello")
        assert (await agent.finish(session, patch="")).status_code == 200
        assert (await handle.result()).stop_reason is StopReason.SUBMITTED
        if has_token:  # its session is over, and the claim with it
            assert (await agent.claim(token)).status_code == 409


async def test_a_gateway_that_dies_between_a_stored_result_and_the_signal(
    stack: StackInfo, programs: ProgramCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    stuck = Stuck()
    interrupt(monkeypatch, SessionDesk, "_tell", stuck, nth=2)
    campaign, _, [rollout], [handle] = await started(programs)
    key = await campaign_keys.make(programs.workers.db, campaign)
    assert key is not None
    async with gateway_of(stack, programs.workers) as url, httpx.AsyncClient(base_url=url) as http:
        agent = Outside(http, key)
        session = await agent.take()
        patch = await work(session)
        asking = asyncio.create_task(agent.finish(session, patch=patch))
        await stuck.reached.wait()
    await asyncio.gather(asking, return_exceptions=True)
    async with gateway_of(stack, programs.workers) as url, httpx.AsyncClient(base_url=url) as http:
        agent = Outside(http, key)
        assert (await agent.finish(session, patch="")).status_code == 409
        assert (await agent.finish(session, patch=patch)).status_code == 200
        assert (await handle.result()).reward == 1.0
    await check_answered_once(programs, rollout, num_calls=3, num_lives=1)
