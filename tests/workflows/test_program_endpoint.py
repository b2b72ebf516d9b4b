"""Programs that an OpenAI-compatible endpoint answers: real HTTP on both sides of the store."""

import dataclasses
import json
import threading
from collections.abc import AsyncIterator, Iterator
from functools import partial
from pathlib import Path

import pytest
from cluster import Cluster, Host, bwrap_or_skip, cluster_of
from program_checks import EDIT, kill_sandbox, replays, sandbox_of, until_asked_in
from program_cluster import gateway_of, own_program
from pydantic import SecretStr

from cli.operations.machine.embedded_stack import StackInfo
from infra.db.programs import model_requests
from infra.db.rollouts import turns
from infra.policy.replies.endpoint_errors import EndpointRefusing
from infra.policy.serving import serve_over_http
from mainspring.config.policy import PolicyConfig
from mainspring.ids import NodeId
from mainspring.status import FaultKind, PolicyApi, StopReason, Verdict, fates
from mainspring.trajectories.samples import samples_of
from mainspring.trajectories.tree import check_tree
from mainspring.trajectories.turns import BrokenTrajectory
from reports import one_rollout
from reports.export.evaluation import write_evaluation
from tests.chat_endpoint import (
    CONTEXT_FULL,
    Endpoint,
    Messages,
    Said,
    calling,
    chat_endpoint,
    completion,
)
from tests.waiting import until

KEY = "sk-very-secret"


def shell(command: str, **beside: str) -> Said:
    return calling("bash", json.dumps({"command": command}), **beside)


THREE = (shell("cat calc.py"), shell(EDIT, content="I fix it.", reasoning_content="a + b"), "Done.")
"""Replies of a whole rollout."""


def by_turn(messages: Messages) -> Said:
    return THREE[sum(message["role"] == "assistant" for message in messages)]


@pytest.fixture(scope="module")
async def over_http(
    stack: StackInfo, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Cluster]:
    backends = await bwrap_or_skip(tmp_path_factory.mktemp("sandboxes"))
    hosts = {NodeId("endpoint-node"): Host(backends, capacity=8)}
    serve = partial(serve_over_http, api_key=SecretStr(KEY))
    async with (
        cluster_of(stack, hosts, serve_with=serve) as cluster,
        gateway_of(stack, cluster),
    ):
        yield cluster


@pytest.fixture
def endpoint() -> Iterator[Endpoint]:
    with chat_endpoint() as endpoint:
        endpoint.reply = by_turn
        yield endpoint


def policy(endpoint: Endpoint, **fields: int) -> PolicyConfig:
    return PolicyConfig(api=PolicyApi.OPENAI, model="m1", engines=(endpoint.url,), **fields)


async def test_a_program_fixes_the_issue_with_an_endpoints_tool_calls(
    over_http: Cluster, endpoint: Endpoint, tmp_path: Path
) -> None:
    endpoint.script.append((429, {"Retry-After": "0.1"}, "slow down"))
    program = own_program() | {"tool_parser": "none"}  # no parser stands between
    rollout, result = await over_http.play(program=program, policy=policy(endpoint))
    assert (result.stop_reason, result.reward, result.num_turns) == (StopReason.EXITED, 1.0, 3)
    assert set(endpoint.keys) == {f"Bearer {KEY}"} and len(endpoint.asked) == 4
    *_, last = endpoint.asked
    assert last["model"] == "m1" and last["tools"][0]["function"]["name"] == "bash"
    roles = [message["role"] for message in last["messages"]]
    assert roles == ["system", "user", *["assistant", "tool"] * 2]
    assert "return a - b" in last["messages"][3]["content"]
    # Each request repeats the one before and adds to it: an endpoint's cache of the prompt holds.
    for earlier, later in zip(endpoint.asked, endpoint.asked[1:], strict=False):
        assert later["messages"][: len(earlier["messages"])] == earlier["messages"]

    calls, executions = await turns.history(over_http.db, rollout, 0)
    check_tree(rollout, calls)
    assert executions == [] and [call.parent for call in calls] == [None, 0, 1]
    assert [call.parts.reasoning for call in calls if call.parts] == ["", "a + b", ""]
    with pytest.raises(BrokenTrajectory, match="cannot be trained on"):
        samples_of(rollout, calls)
    view = await one_rollout.read(over_http.db, rollout)
    assert view.program is not None
    assert (view.program.num_calls, view.program.num_sent_again) == (3, 0)
    assert view.turns[1].num_prompt_tokens == calls[1].num_prompt_tokens

    campaign = (await over_http.row(rollout)).campaign
    summary = await write_evaluation(over_http.db, campaign, tmp_path)
    assert (summary["resolved"], summary["avg_steps"]) == (1, 3)
    [folder] = [path for path in tmp_path.iterdir() if path.is_dir()]
    trajectory = json.loads((folder / "traj.json").read_text())
    parts = [call.parts.model_dump(mode="json") for call in calls if call.parts]
    assert [step["parts"] for step in trajectory["steps"]] == parts
    assert EDIT in trajectory["messages"][-3]["content"]
    written = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    assert KEY.encode() not in written


async def test_faults_of_an_endpoint_that_pass(over_http: Cluster, endpoint: Endpoint) -> None:
    endpoint.script.extend(
        [
            (500, {}, "oops"),
            (503, {"Retry-After": "0.1"}, "busy"),
            (200, {"Content-Length": "5000"}, "cut"),
            (200, {}, "<html>busy</html>"),
        ]
    )
    rollout, result = await over_http.play(program=own_program(), policy=policy(endpoint))
    assert (result.stop_reason, result.reward, result.num_turns) == (StopReason.EXITED, 1.0, 3)
    view = await one_rollout.read(over_http.db, rollout)
    # Not that which was told to come again.
    assert view.program is not None and view.program.num_sent_again == 3


TELLING = """
import json, os, subprocess, urllib.error, urllib.request
def ask(*messages):
    parameters = {"type": "object", "properties": {}}
    tools = [{"type": "function", "function": {"name": "bash", "parameters": parameters}}]
    body = json.dumps({"model": "m", "messages": messages, "tools": tools}).encode()
    url = os.environ["OPENAI_BASE_URL"] + "/chat/completions"
    request = urllib.request.Request(url, body, {"Content-Type": "application/json"})
    try:
        return json.load(urllib.request.urlopen(request))
    except urllib.error.HTTPError as error:
        return {"status": error.code, **json.loads(error.read())}
"""


def telling(*lines: str) -> dict:
    return own_program("\n".join([TELLING, *lines, f"subprocess.run(['bash', '-c', {EDIT!r}])"]))


async def test_broken_calls_and_empty_replies_reach_the_program_as_they_are(
    over_http: Cluster, endpoint: Endpoint
) -> None:
    broken = '{"command": "ls'
    endpoint.script.append((200, {}, completion(calling("bash", broken))))
    endpoint.script.append((200, {}, completion({"role": "assistant", "content": None})))
    program = telling(
        "user = {'role': 'user', 'content': 'hi'}",
        "first = ask(user)",
        "said = first['choices'][0]['message']",
        "[call] = said['tool_calls']",
        f"assert call['function']['arguments'] == {broken!r}",
        "assert first['usage']['prompt_tokens'] > 0  # the endpoint counts none",
        "told = {'role': 'tool', 'tool_call_id': call['id'], 'content': 'no JSON'}",
        "second = ask(user, said, told)",
        "assert second['choices'][0]['message']['content'] == '', second",
    )
    rollout, result = await over_http.play(program=program, policy=policy(endpoint))
    assert (result.stop_reason, result.reward, result.num_turns) == (StopReason.EXITED, 1.0, 2)
    calls, _ = await turns.history(over_http.db, rollout, 0)
    assert [call.parent for call in calls] == [None, 0]
    assert [call.num_prompt_tokens for call in calls] == [None, None]
    view = await one_rollout.read(over_http.db, rollout)
    assert view.program is not None and [life.returncode for life in view.program.lives] == [0]


async def test_what_an_endpoint_refuses_is_told_to_the_program(
    over_http: Cluster, endpoint: Endpoint
) -> None:
    endpoint.reply = lambda messages: "ok"
    endpoint.script.append((400, {}, CONTEXT_FULL))
    endpoint.script.append((422, {}, {"detail": f"tools are off, {KEY}"}))
    program = telling(
        "long = ask({'role': 'user', 'content': 'long'})",
        "assert long['error']['code'] == 'context_length_exceeded', long",
        "assert '8193 tokens > 8192 maximum' in long['error']['message'], long",
        "odd = ask({'role': 'user', 'content': 'odd'})",
        "assert odd['status'] == 400 and 'tools are off, ***' in odd['error']['message'], odd",
        "assert ask({'role': 'user', 'content': 'hi'})['choices']",
    )
    rollout, result = await over_http.play(program=program, policy=policy(endpoint))
    assert (result.stop_reason, result.reward) == (StopReason.EXITED, 1.0)
    view = await one_rollout.read(over_http.db, rollout)
    assert view.program is not None and [life.returncode for life in view.program.lives] == [0]
    assert (view.program.num_calls, view.program.num_refused) == (1, 2)


async def test_a_key_that_is_refused_is_waited_for_then_masks_and_says_why(
    over_http: Cluster, endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    rule = dataclasses.replace(fates.RULES[FaultKind.ENDPOINT_REFUSING], seconds=3.0, attempts=3)
    monkeypatch.setitem(fates.RULES, FaultKind.ENDPOINT_REFUSING, rule)  # pyright: ignore[reportArgumentType]
    monkeypatch.setattr(EndpointRefusing, "retry_after_s", 0.2)
    said = {"error": {"message": f"Incorrect API key: {KEY}"}}
    endpoint.script.append((401, {}, said))
    _, result = await over_http.play(program=own_program(), policy=policy(endpoint))
    assert (result.stop_reason, result.reward) == (StopReason.EXITED, 1.0)
    endpoint.script.extend([(401, {}, said)] * 200)
    rollout, result = await over_http.play(program=own_program(), policy=policy(endpoint))
    assert (result.stop_reason, result.reward) == (StopReason.INFRA_FAULT, None)
    fault = (await over_http.row(rollout)).fault or ""
    assert "MAINSPRING_POLICY_API_KEY" in fault and KEY not in fault


async def test_an_outage_that_lasts_masks_the_rollout(
    over_http: Cluster, endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    for kind in (FaultKind.ENGINE_BUSY, FaultKind.ENGINE_FAILING):
        rule = dataclasses.replace(fates.RULES[kind], seconds=3.0, attempts=2)
        monkeypatch.setitem(fates.RULES, kind, rule)  # pyright: ignore[reportArgumentType]
    for status, kind in ((503, FaultKind.ENGINE_BUSY), (500, FaultKind.ENGINE_FAILING)):
        endpoint.script.extend([(status, {}, "down")] * 50)
        rollout, result = await over_http.play(program=own_program(), policy=policy(endpoint))
        assert (result.stop_reason, result.reward) == (StopReason.INFRA_FAULT, None)
        fault = (await over_http.row(rollout)).fault or ""
        assert kind in fault and f"HTTP {status} down" in fault
        endpoint.script.clear()


class Held:
    """Holds the endpoint at its first reply of a turn until it is let go."""

    def __init__(self, turn: int) -> None:
        self.reached = threading.Event()
        self.let_go = threading.Event()
        self._turn = turn

    def __call__(self, messages: Messages) -> Said:
        if sum(message["role"] == "assistant" for message in messages) == self._turn:
            self.reached.set()
            assert self.let_go.wait(60)
        return by_turn(messages)


async def test_a_sandbox_that_is_killed_is_answered_from_the_store(
    over_http: Cluster, endpoint: Endpoint
) -> None:
    endpoint.reply = held = Held(1)
    campaign, group, [rollout] = await over_http.make_rollouts(
        program=own_program(), policy=policy(endpoint)
    )
    handle = await over_http.start(rollout, campaign, group)
    await until(held.reached.is_set)
    await kill_sandbox(over_http, sandbox_of(rollout, 0))
    await until_asked_in(over_http, rollout, 1, life=1)
    held.let_go.set()
    result = await handle.result()
    assert (result.stop_reason, result.reward, result.num_turns) == (StopReason.EXITED, 1.0, 3)
    assert len(endpoint.asked) == 3
    view = await one_rollout.read(over_http.db, rollout)
    assert view.program is not None and len(view.program.lives) == 2
    assert (view.program.num_replayed, view.program.num_sent_again) == (2, 0)
    await replays(over_http, rollout)


async def test_a_cancel_while_a_reply_is_made(over_http: Cluster, endpoint: Endpoint) -> None:
    endpoint.reply = held = Held(0)
    campaign, group, [rollout] = await over_http.make_rollouts(
        program=own_program(), policy=policy(endpoint)
    )
    handle = await over_http.start(rollout, campaign, group)
    await until(held.reached.is_set)
    await handle.cancel()
    row = None
    try:
        await until(lambda: _is_done(over_http, rollout))
        row = await over_http.row(rollout)
    finally:
        held.let_go.set()
    assert (row.stop_reason, row.reward) == (StopReason.CANCELLED, None)
    known = await model_requests.history(over_http.db, rollout, 0)
    assert [each.num_sent for each in known] == [1]


async def _is_done(over_http: Cluster, rollout: str) -> bool:
    return (await over_http.row(rollout)).stop_reason is not None  # pyright: ignore[reportArgumentType]


async def test_requests_at_once_are_asked_at_once(over_http: Cluster, endpoint: Endpoint) -> None:
    meeting = threading.Barrier(4)

    def meet(messages: Messages) -> Said:
        meeting.wait(60)
        return f"to {messages[-1]['content']}"

    endpoint.reply = meet
    program = telling(
        "import threading",
        "said = {}",
        "def one(n):",
        "    message = ask({'role': 'user', 'content': n})['choices'][0]['message']",
        "    said[n] = message['content']",
        "all = [threading.Thread(target=one, args=(n,)) for n in 'abcd']",
        "[each.start() for each in all]",
        "[each.join() for each in all]",
        "assert said == {n: f'to {n}' for n in 'abcd'}, said",
    )
    rollout, result = await over_http.play(program=program, policy=policy(endpoint))
    assert (result.stop_reason, result.verdict) == (StopReason.EXITED, Verdict.RESOLVED)
    view = await one_rollout.read(over_http.db, rollout)
    assert view.program is not None and [life.returncode for life in view.program.lives] == [0]
    assert view.program.num_calls == 4
