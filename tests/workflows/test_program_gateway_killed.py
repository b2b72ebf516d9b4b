"""Gateways and engines that die under a program: it asks again, and gets the reply that stands."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from program_checks import THREE, Held, check_answered_once, replays, sandboxes_of
from program_cluster import (
    AGENT,
    NoAnswer,
    ProgramCluster,
    gateway_of,
    own_program,
)

from cli.operations.machine.embedded_stack import StackInfo
from gateway.channel import Channel
from gateway.durable import DurableAnswers
from gateway.exchange import Exchange
from gateway.protocol import Session
from infra.db.programs.model_requests import RequestStanding
from mainspring.errors import EngineError
from mainspring.programs.reply import Answer
from mainspring.status import FaultKind, StopReason
from tests.waiting import until
from workflows.program import MAX_CUT

ASKS_AGAIN = "pass  # the connection was cut"
ASKS = "    for _ in range(MAX_TRIES):\n"
IMPATIENT = "    for _ in range(1):\n"
DONE = "            return\n        for call"
FAILS = DONE.replace("return", "sys.exit(3)")


@pytest.fixture(scope="module")
def program_workers(ungated: ProgramCluster) -> ProgramCluster:
    return ungated


class Stuck:
    """Stops a gateway where it calls `name` for request 1, until that gateway is killed."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, name: str, number_at: int) -> None:
        self.reached = asyncio.Event()
        self.passed = 0
        """Calls for request 1 that were let through."""
        work: Callable[..., Awaitable[object]] = getattr(DurableAnswers, name)

        async def stop(*about: object) -> object:
            if about[number_at] == 1:
                if not self.reached.is_set():
                    self.reached.set()
                    await asyncio.Event().wait()
                self.passed += 1
            return await work(*about)

        monkeypatch.setattr(DurableAnswers, name, stop)


async def play_past(
    stack: StackInfo, programs: ProgramCluster, reached: asyncio.Event, then: Callable[[], object]
) -> None:
    """Play; kill the gateway when `reached` is set, and call `then` when there is another one."""
    programs.engine.say = lambda prompt, turn: THREE[turn]
    async with gateway_of(stack, programs.workers):
        campaign, group, [rollout] = await programs.workers.make_rollouts(program=own_program())
        handle = await programs.workers.start(rollout, campaign, group)
        await reached.wait()
    async with gateway_of(stack, programs.workers):
        waited = then()
        if asyncio.iscoroutine(waited):
            await waited
        result = await handle.result()
    assert (result.stop_reason, result.reward, result.num_turns) == (StopReason.EXITED, 1.0, 3)
    await check_answered_once(programs, rollout, num_calls=3, num_lives=1)


async def test_a_gateway_that_dies_before_it_tells_the_workflow(
    stack: StackInfo, programs: ProgramCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    stuck = Stuck(monkeypatch, "_signal", number_at=2)
    await play_past(stack, programs, stuck.reached, lambda: None)
    assert stuck.passed == 1


async def test_a_gateway_that_dies_while_a_reply_is_made(
    stack: StackInfo, programs: ProgramCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    programs.engine.hold = held = Held(1)
    told: list[int] = []
    signal = DurableAnswers._signal  # pyright: ignore[reportPrivateUsage]

    async def note(*about) -> None:
        await signal(*about)
        told.append(about[2])

    monkeypatch.setattr(DurableAnswers, "_signal", note)

    async def let_go() -> None:
        await until(lambda: told.count(1) == 2)  # the client asked again
        held.let_go.set()

    await play_past(stack, programs, held.reached, let_go)


async def test_a_gateway_that_dies_before_it_sends_the_reply(
    stack: StackInfo, programs: ProgramCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored = DurableAnswers._told  # pyright: ignore[reportPrivateUsage]
    reached = asyncio.Event()
    numbers: list[int] = []

    async def stop(
        gateway: DurableAnswers, session: Session, asked: RequestStanding
    ) -> RequestStanding:
        found = await stored(gateway, session, asked)
        numbers.append(asked.number)
        if asked.number == 1 and not reached.is_set():
            reached.set()
            await asyncio.Event().wait()
        return found

    monkeypatch.setattr(DurableAnswers, "_told", stop)
    await play_past(stack, programs, reached, lambda: None)
    assert numbers == [0, 1, 1, 2]


async def test_a_gateway_that_dies_when_the_reply_was_sent(
    stack: StackInfo, programs: ProgramCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And before it is noted: the client, which has it, does not ask again."""
    stuck = Stuck(monkeypatch, "delivered", number_at=2)
    await play_past(stack, programs, stuck.reached, lambda: None)
    assert stuck.passed == 0


async def test_a_client_that_ends_at_a_cut_answer_is_run_again(
    stack: StackInfo, programs: ProgramCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As qwen-code and Gemini's do: what it left would be graded as if the policy had wanted it."""
    source = AGENT.read_text()
    assert source.count(ASKS_AGAIN) == 1
    gives_up = source.replace(ASKS_AGAIN, 'sys.exit("the answer was cut")')
    programs.engine.say = lambda prompt, turn: THREE[turn]
    reached = asyncio.Event()
    deliver = Exchange._deliver  # pyright: ignore[reportPrivateUsage]

    async def stop(
        exchange: Exchange, channel: Channel, session: Session, answer: Answer, pieces: list[str]
    ) -> None:
        if answer.number == 1 and not reached.is_set():
            text = "".join(pieces)
            await channel.write(text[: len(text) // 2])
            reached.set()
            await asyncio.Event().wait()
        await deliver(exchange, channel, session, answer, pieces)

    monkeypatch.setattr(Exchange, "_deliver", stop)
    async with gateway_of(stack, programs.workers):
        campaign, group, [rollout] = await programs.workers.make_rollouts(
            program=own_program(gives_up)
        )
        handle = await programs.workers.start(rollout, campaign, group)
        await reached.wait()
    async with gateway_of(stack, programs.workers):
        result = await handle.result()
    assert (result.stop_reason, result.reward, result.num_turns) == (StopReason.EXITED, 1.0, 3)
    program = await check_answered_once(programs, rollout, num_calls=3, num_lives=2)
    assert [life.returncode for life in program.lives] == [1, 0]
    assert program.num_replayed == 2
    await replays(programs.workers, rollout)


async def test_a_client_whose_answers_are_always_cut_is_graded_after_some_lives(
    stack: StackInfo, programs: ProgramCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may be the client's own doing, such as a limit of its own on the wait for a reply."""
    source = AGENT.read_text()
    assert source.count(ASKS) == 1
    source = source.replace(ASKS, IMPATIENT)
    programs.engine.say = lambda prompt, turn: THREE[turn]

    async def never(*about: object) -> bool:
        return False  # the client was gone before it had the answer whole

    monkeypatch.setattr(Channel, "finish", never)
    async with gateway_of(stack, programs.workers):
        rollout, result = await programs.play(own_program(source))
    assert (result.stop_reason, result.reward, result.num_turns) == (StopReason.EXITED, 0.0, 1)
    lives = MAX_CUT + 1
    program = await check_answered_once(programs, rollout, num_calls=1, num_lives=lives)
    assert {life.returncode for life in program.lives} == {1}


async def test_a_client_that_fails_with_its_answer_is_graded(
    stack: StackInfo, programs: ProgramCluster
) -> None:
    programs.engine.say = lambda prompt, turn: THREE[turn]
    source = AGENT.read_text()
    assert source.count(DONE) == 1
    async with gateway_of(stack, programs.workers):
        rollout, result = await programs.play(own_program(source.replace(DONE, FAILS)))
    assert (result.stop_reason, result.reward, result.num_turns) == (StopReason.EXITED, 1.0, 3)
    program = await check_answered_once(programs, rollout, num_calls=3, num_lives=1)
    assert [life.returncode for life in program.lives] == [3]


async def test_two_gateways_answer_one_program(stack: StackInfo, programs: ProgramCluster) -> None:
    programs.engine.say = lambda prompt, turn: THREE[turn]
    async with gateway_of(stack, programs.workers), gateway_of(stack, programs.workers):
        rollout, result = await programs.play()
    assert result.reward == 1.0
    await check_answered_once(programs, rollout, num_calls=3, num_lives=1)


async def test_a_request_waits_for_engines_that_come_back(
    stack: StackInfo, programs: ProgramCluster
) -> None:
    programs.engine.say = lambda prompt, turn: THREE[turn]
    programs.engine.faults = [NoAnswer("no engine is up"), NoAnswer("no engine is up")]
    async with gateway_of(stack, programs.workers):
        rollout, result = await programs.play()
    assert programs.engine.faults == []
    assert (result.stop_reason, result.reward, result.num_turns) == (StopReason.EXITED, 1.0, 3)
    await check_answered_once(programs, rollout, num_calls=3, num_lives=1)


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
