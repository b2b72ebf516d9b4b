"""A rollout over an OpenAI-compatible endpoint: real HTTP, Temporal, Postgres and bubblewrap."""

import dataclasses
import json
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
from pydantic import SecretStr
from scripted import SUBMIT, bash

from infra.db.rollouts import turns
from infra.policy.replies.endpoint_errors import EndpointRefusing
from infra.policy.serving import serve_over_http
from mainspring.config.policy import PolicyConfig
from mainspring.status import FaultKind, PolicyApi, StopReason, Verdict, fates
from mainspring.trajectories.samples import samples_of
from mainspring.trajectories.tree import check_tree
from mainspring.trajectories.turns import BrokenTrajectory
from reports.export.evaluation import write_evaluation
from tests.chat_endpoint import CONTEXT_FULL, Endpoint, Messages, chat_endpoint
from tests.waiting import until

FIX = bash("sed -i 's/a - b/a + b/' calc.py")
KEY = "sk-very-secret"


@pytest.fixture
def endpoint(cluster, monkeypatch: pytest.MonkeyPatch) -> Iterator[Endpoint]:
    serve = partial(serve_over_http, api_key=SecretStr(KEY))
    monkeypatch.setattr(cluster.served, "_serve", serve)
    with chat_endpoint() as endpoint:
        yield endpoint


def policy(endpoint: Endpoint, **fields: int) -> PolicyConfig:
    return PolicyConfig(api=PolicyApi.OPENAI, model="m1", engines=(endpoint.url,), **fields)


def replies(*texts: str) -> Callable[[Messages], str]:
    return lambda messages: texts[sum(m["role"] == "assistant" for m in messages)]


async def test_a_fix_in_text_is_graded_and_written_out(
    cluster, endpoint: Endpoint, tmp_path: Path
) -> None:
    endpoint.reply = replies(bash("cat calc.py"), "no block", FIX, SUBMIT)
    endpoint.script.append((429, {"Retry-After": "0.1"}, "slow down"))
    rollout, result = await cluster.play(policy=policy(endpoint))
    assert (result.stop_reason, result.reward, result.num_turns) == (StopReason.SUBMITTED, 1.0, 4)
    assert set(endpoint.keys) == {f"Bearer {KEY}"}

    *_, last = endpoint.asked
    assert (last["model"], last["temperature"]) == ("m1", 1.0)
    roles = [message["role"] for message in last["messages"]]
    assert roles == ["system", "user", *["assistant", "user"] * 3]
    told = [message["content"] for message in last["messages"]]
    assert "return a - b" in told[3] and "exactly one" in told[5]
    # Every request says the same again and goes on: an endpoint's cache of the prompt holds.
    for earlier, later in zip(endpoint.asked, endpoint.asked[1:], strict=False):
        assert later["messages"][: len(earlier["messages"])] == earlier["messages"]

    calls, _ = await turns.history(cluster.db, rollout, 0)
    check_tree(rollout, calls)
    assert [g.text for g in calls] == [bash("cat calc.py"), "no block", FIX, SUBMIT]
    assert calls[-1].num_prompt_tokens == sum(len(text.split()) for text in told)
    with pytest.raises(BrokenTrajectory, match="cannot be trained on"):
        samples_of(rollout, calls)

    row = await cluster.row(rollout)
    summary = await write_evaluation(cluster.db, row.campaign, tmp_path)
    assert (summary["resolved"], summary["avg_steps"]) == (1, 4)
    [folder] = [path for path in tmp_path.iterdir() if path.is_dir()]
    assert "+    return a + b" in (folder / "patch.diff").read_text()
    said = json.loads((folder / "traj.json").read_text())["messages"]
    assert said == [*last["messages"], {"role": "assistant", "content": SUBMIT}]
    written = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    assert KEY.encode() not in written


async def test_a_full_context_is_graded_as_it_stands(cluster, endpoint: Endpoint) -> None:
    def reply(messages: Messages) -> str:
        endpoint.script.append((400, {}, CONTEXT_FULL))
        return FIX

    endpoint.reply = reply
    rollout, result = await cluster.play(policy=policy(endpoint))
    assert (result.stop_reason, result.num_turns) == (StopReason.CONTEXT_FULL, 1)
    assert (await cluster.row(rollout)).verdict is Verdict.RESOLVED


async def test_the_configured_context_bounds_what_the_endpoint_counts(
    cluster, endpoint: Endpoint
) -> None:
    endpoint.reply = lambda messages: bash("seq 1 300")
    _, result = await cluster.play(policy=policy(endpoint, max_context=800, max_new_tokens=100))
    assert result.stop_reason is StopReason.CONTEXT_FULL
    assert [body["max_tokens"] for body in endpoint.asked][:1] == [100]
    assert 8 <= endpoint.asked[-1]["max_tokens"] <= 100


@pytest.mark.parametrize(
    ("status", "said"),
    [
        (
            400,
            "This model's maximum prompt length is 131072 but the request contains 537812 tokens.",
        ),
        (400, "Range of input length should be [1, 98304]"),
        (422, "`inputs` tokens + `max_new_tokens` must be <= 4096"),
        (413, "Request Entity Too Large"),
    ],
)
async def test_a_full_context_in_other_words_is_graded_as_it_stands(
    cluster, endpoint: Endpoint, status: int, said: str
) -> None:
    def reply(messages: Messages) -> str:
        endpoint.script.append((status, {}, {"error": {"message": said}}))
        return FIX

    endpoint.reply = reply
    rollout, result = await cluster.play(policy=policy(endpoint))
    assert (result.stop_reason, result.num_turns) == (StopReason.CONTEXT_FULL, 1)
    assert (await cluster.row(rollout)).verdict is Verdict.RESOLVED


async def test_a_first_prompt_that_does_not_fit_is_no_score(cluster, endpoint: Endpoint) -> None:
    endpoint.script.append((400, {}, CONTEXT_FULL))
    rollout, result = await cluster.play(policy=policy(endpoint))
    assert (result.stop_reason, result.reward) == (StopReason.INFRA_FAULT, None)
    fault = (await cluster.row(rollout)).fault
    assert "its first prompt" in fault and rollout in fault and "8192" in fault


async def test_a_reply_that_the_endpoint_cut_off_is_no_turn(cluster, endpoint: Endpoint) -> None:
    error = {"message": "upstream idle timeout", "code": 504}
    message = {"role": "assistant", "content": "THOUGHT: I"}
    broken = {"index": 0, "error": error, "finish_reason": "error", "message": message}
    endpoint.script.extend(
        [(200, {}, saying("THOUGHT: I", "abort")), (200, {}, {"choices": [broken]})]
    )
    endpoint.script.append((200, {}, saying(None, "abort")))
    endpoint.reply = replies(FIX, SUBMIT)
    rollout, result = await cluster.play(policy=policy(endpoint))
    assert (result.stop_reason, result.reward, result.num_turns) == (StopReason.SUBMITTED, 1.0, 2)
    calls, _ = await turns.history(cluster.db, rollout, 0)
    assert [call.text for call in calls] == [FIX, SUBMIT]


@pytest.mark.parametrize("status", [400, 401, 402, 403, 404, 424, 425, 451, 499, 307])
async def test_a_refusal_that_passes_masks_nothing(
    cluster, endpoint: Endpoint, status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(EndpointRefusing, "retry_after_s", 0.1)
    said = {"error": {"message": "Provider returned error"}}

    def reply(messages: Messages) -> str:
        if len(messages) > 2:
            return SUBMIT
        endpoint.script.extend([(status, {}, said)] * 2)
        return FIX

    endpoint.reply = reply
    _, result = await cluster.play(policy=policy(endpoint))
    assert (result.stop_reason, result.reward, result.num_turns) == (StopReason.SUBMITTED, 1.0, 2)


async def test_a_key_that_is_refused_is_shown_and_waited_for_with_a_bound(
    cluster, endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    rule = dataclasses.replace(fates.RULES[FaultKind.ENDPOINT_REFUSING], seconds=3.0, attempts=3)
    monkeypatch.setitem(fates.RULES, FaultKind.ENDPOINT_REFUSING, rule)  # pyright: ignore[reportArgumentType]
    monkeypatch.setattr(EndpointRefusing, "retry_after_s", 0.5)
    said = {"error": {"message": f"Incorrect API key: {KEY}"}}
    endpoint.script.extend([(401, {}, said)] * 50)
    campaign, group, [rollout] = await cluster.make_rollouts(policy=policy(endpoint))
    handle = await cluster.start(rollout, campaign, group)

    async def shown() -> bool:
        pending = (await handle.describe()).raw_description.pending_activities
        return any("MAINSPRING_POLICY_API_KEY" in each.last_failure.message for each in pending)

    await until(shown)
    result = await handle.result()
    assert (result.stop_reason, result.reward) == (StopReason.INFRA_FAULT, None)
    fault = (await cluster.row(rollout)).fault
    assert "MAINSPRING_POLICY_API_KEY" in fault and endpoint.url in fault and KEY not in fault


async def test_a_reply_that_a_filter_held_back_masks_and_says_so(
    cluster, endpoint: Endpoint
) -> None:
    endpoint.script.append((200, {}, saying(None, "content_filter")))
    rollout, result = await cluster.play(policy=policy(endpoint))
    assert (result.stop_reason, result.reward) == (StopReason.INFRA_FAULT, None)
    assert "content filter" in (await cluster.row(rollout)).fault


def saying(content: object, finish_reason: str = "stop") -> dict[str, object]:
    message = {"role": "assistant", "content": content}
    return {"choices": [{"message": message, "finish_reason": finish_reason}]}


async def test_replies_in_parts_and_cut_off_are_read_as_what_they_are(
    cluster, endpoint: Endpoint, tmp_path: Path
) -> None:
    parts = [{"type": "reasoning", "text": "x"}, {"type": "text", "text": FIX}]
    endpoint.script.append((200, {}, saying("THOUGHT: it is long\n```bash\ncat > a", "length")))
    endpoint.script.append((200, {}, saying(parts)))
    endpoint.reply = lambda messages: SUBMIT
    rollout, result = await cluster.play(policy=policy(endpoint))
    assert (result.stop_reason, result.reward, result.num_turns) == (StopReason.SUBMITTED, 1.0, 3)
    *_, last = endpoint.asked
    assert "cut off" in last["messages"][3]["content"]
    assert last["messages"][4]["content"] == FIX
    # What was not counted is not known.
    calls, _ = await turns.history(cluster.db, rollout, 0)
    assert [g.num_prompt_tokens for g in calls[:2]] == [None, None]
    campaign = (await cluster.row(rollout)).campaign
    await write_evaluation(cluster.db, campaign, tmp_path)
    [line] = (tmp_path / "results.jsonl").read_text().splitlines()
    assert json.loads(line)["n_prompt_tokens"] is None
    assert json.loads((tmp_path / "summary.json").read_text())["avg_prompt_tokens"] is None


async def test_malformed_replies_are_asked_for_again_a_few_times_then_masked(
    cluster, endpoint: Endpoint
) -> None:
    endpoint.script.extend([(200, {}, '{"choices": [{"mess'), (200, {}, "<html>busy</html>")])
    endpoint.reply = replies(FIX, SUBMIT)
    _, result = await cluster.play(policy=policy(endpoint))
    assert (result.stop_reason, result.reward) == (StopReason.SUBMITTED, 1.0)

    asked = len(endpoint.asked)
    endpoint.script.extend([(200, {}, saying({"text": "an object"}))] * 50)
    rollout, result = await cluster.play(policy=policy(endpoint))
    assert (result.stop_reason, result.reward) == (StopReason.INFRA_FAULT, None)
    # Each may have been paid for.
    assert 3 <= len(endpoint.asked) - asked <= 6
    fault = (await cluster.row(rollout)).fault
    assert "ReplyMalformed" in fault and endpoint.url in fault and "type dict" in fault


async def test_an_error_that_stays_is_shown_while_it_is_retried_then_masks(
    cluster, endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    rule = dataclasses.replace(fates.RULES[FaultKind.ENGINE_FAILING], seconds=5.0, attempts=4)
    monkeypatch.setitem(fates.RULES, FaultKind.ENGINE_FAILING, rule)  # pyright: ignore[reportArgumentType]
    endpoint.script.extend([(500, {}, f"no weights for {KEY}")] * 50)
    campaign, group, [rollout] = await cluster.make_rollouts(policy=policy(endpoint))
    handle = await cluster.start(rollout, campaign, group)

    async def shown() -> bool:
        pending = (await handle.describe()).raw_description.pending_activities
        return any("HTTP 500 no weights" in each.last_failure.message for each in pending)

    await until(shown)
    result = await handle.result()
    assert (result.stop_reason, result.reward) == (StopReason.INFRA_FAULT, None)
    fault = (await cluster.row(rollout)).fault
    assert "EngineFailing" in fault and "HTTP 500 no weights" in fault and KEY not in fault
    assert len(endpoint.asked) < 10
