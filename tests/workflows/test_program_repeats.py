"""Programs that ask the same without end, and parallel replies that are cut: each has a bound, and
each is resumed."""

import asyncio
import time

import pytest
from program_checks import EDIT, replays
from program_cluster import ProgramCluster, own_program

from infra.db.programs import model_requests
from infra.db.rollouts import turns
from infra.policy.protocol import NoEngineAnswered
from mainspring.status import StopReason
from mainspring.trajectories.turns import PartialCall, ReplyPart, VersionSpan

INSISTING = """
import json, os, threading, time, urllib.error, urllib.request
def ask(text, **headers):
    body = json.dumps({"model": "m", "messages": [{"role": "user", "content": text}]}).encode()
    url = os.environ["OPENAI_BASE_URL"] + "/chat/completions"
    headers["Content-Type"] = "application/json"
    try:
        with urllib.request.urlopen(urllib.request.Request(url, body, headers)) as answer:
            return json.load(answer)
    except urllib.error.HTTPError as error:
        return error.code
"""


def insisting(*lines: str, **fields: int) -> dict:
    return own_program("\n".join([INSISTING, *lines])) | fields


@pytest.mark.parametrize(
    ("step_limit", "per_minute", "reason"),
    [(500, 20, StopReason.REQUEST_RATE), (8, 120, StopReason.STEP_LIMIT)],
)
async def test_a_prompt_that_is_too_long_cannot_be_asked_without_end(
    programs: ProgramCluster, step_limit: int, per_minute: int, reason: StopReason
) -> None:
    programs.engine.say = lambda prompt, turn: "hello"
    program = insisting(
        "assert ask('hi')['choices']",
        "while True: assert ask('long ' * 4000) == 400",
        requests_per_minute=per_minute,
    )
    began = time.monotonic()
    rollout, result = await programs.play(program, max_context=2000, step_limit=step_limit)
    assert result.stop_reason is reason
    assert time.monotonic() - began < 60.0
    known = await model_requests.history(programs.workers.db, rollout, 0)
    assert len(known) == 2
    await replays(programs.workers, rollout)


@pytest.mark.parametrize(
    ("after", "reason"),
    [
        ("sys.exit(1)", StopReason.CONTEXT_FULL),
        ("sys.exit(0)", StopReason.EXITED),
        ("assert ask('shorter')['choices']; sys.exit(1)", StopReason.EXITED),
    ],
)
async def test_one_that_fails_at_a_prompt_that_is_too_long_has_filled_its_context(
    programs: ProgramCluster, after: str, reason: StopReason
) -> None:
    programs.engine.say = lambda prompt, turn: "hello"
    program = insisting(
        "import sys",
        "assert ask('hi')['choices']",
        "assert ask('long ' * 4000) == 400",
        after,
    )
    _, result = await programs.play(program, max_context=2000)
    assert result.stop_reason is reason


async def test_an_answer_that_is_asked_for_again_without_end_ends_the_program(
    programs: ProgramCluster,
) -> None:
    """Marked as retries, they are told from the store, and no call is made of them."""
    programs.engine.say = lambda prompt, turn: "hello"
    program = insisting(
        "while True: ask('hi', **{'x-stainless-retry-count': '1'})", requests_per_minute=20
    )
    _, result = await programs.play(program)
    assert (result.stop_reason, result.num_turns) == (StopReason.REQUEST_RATE, 1)
    assert len(programs.engine.asked) == 1


async def test_a_retry_of_the_last_call_that_the_limit_allows_is_answered(
    programs: ProgramCluster,
) -> None:
    programs.engine.say = lambda prompt, turn: "hello"
    program = insisting(
        "first = ask('hi')",
        "for _ in range(3):",
        "    again = ask('hi', **{'x-stainless-retry-count': '1'})",
        "    assert again == first",
        f"os.system({EDIT!r})",
    )
    _, result = await programs.play(program, step_limit=1)
    assert (result.stop_reason, result.reward, result.num_turns) == (StopReason.EXITED, 1.0, 1)


async def test_calls_at_once_are_each_resumed_from_their_tokens(programs: ProgramCluster) -> None:
    """The engine dies under both."""
    begun: dict[str, PartialCall | None] = {}
    both = asyncio.Barrier(2)
    generate = programs.engine.generate

    async def dying(input_ids, params, *, request_id, keep=None, **about):
        name = request_id.rpartition(".")[0]
        if name not in begun:
            begun[name] = None
            length = 3 + len(begun)
            span = VersionSpan(0, 0, length)
            assert keep is not None
            keep(ReplyPart(0, tuple(input_ids[:length]), (-0.5,) * length, (span,), 1.0))
            await both.wait()
            await asyncio.sleep(0.5)  # longer than between two writes of parts
            raise NoEngineAnswered("the engine died", 1)
        begun[name] = about["begun"]
        return await generate(input_ids, params, request_id=request_id, **about)

    programs.engine.generate = dying  # pyright: ignore[reportAttributeAccessIssue]
    programs.engine.say = lambda prompt, turn: "hello"
    program = insisting(
        "both = [threading.Thread(target=ask, args=(text,)) for text in ('left', 'right')]",
        "[each.start() for each in both]",
        "[each.join() for each in both]",
        f"os.system({EDIT!r})",
    )
    try:
        rollout, result = await programs.play(program)
    finally:
        del programs.engine.generate
    assert (result.stop_reason, result.reward, result.num_turns) == (StopReason.EXITED, 1.0, 2)
    lengths = sorted(len(each.completion_ids) for each in begun.values() if each is not None)
    assert lengths == [4, 5]
    calls, _ = await turns.history(programs.workers.db, rollout, 0)
    assert [call.parent for call in calls] == [None, None]
