"""Rollouts whose history is too long for a request: each rewrite is a branch, and every sampled
token is trained once, on the prompt that the engine had before it."""

from typing import Any

import pytest
from cluster import Cluster
from scripted import SUBMIT, bash

from cli.rollout.rollout_screen import print_one
from infra.db.rollouts import groups, rollouts, turns
from infra.db.runs import campaigns
from infra.db.tasks import tasks
from mainspring.agents.asking import next_request
from mainspring.agents.choice import agent_for
from mainspring.agents.record import Record
from mainspring.ids import RolloutId
from mainspring.status import StopReason
from mainspring.trajectories.samples import samples_of
from mainspring.trajectories.tree import path_to
from reports import one_rollout
from reports.export.trajectory import Attempt, Trajectory

CONTEXT = 16_000
"""Tokens, which are characters here; a reply may have a quarter of them."""
NUM_TURNS = 9
ASKS_FOR_ONE = "Please sum up."
PRINT = "seq 1000 1400 | head -c 2000"


def watch(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> list[list[int]]:
    """Prompts as the engine has them, in the order of the calls."""
    prompts: list[list[int]] = []
    generate = cluster.policy.generate

    async def watched(input_ids: list[int], *args: Any, **options: Any) -> Any:
        prompts.append(list(input_ids))
        return await generate(input_ids, *args, **options)

    monkeypatch.setattr(cluster.policy, "generate", watched)
    replies = iter([*(bash(f"{PRINT} # {turn}") for turn in range(NUM_TURNS)), SUBMIT])
    cluster.policy.say = lambda rollout, turn: next(replies)
    return prompts


async def play(cluster: Cluster, turns_per_activity: int, **context: Any) -> tuple[Any, Any]:
    program = {"kind": "bash", "context": context}
    return await cluster.play(
        program=program,
        step_limit=20,
        max_context=CONTEXT,
        turns_per_activity=turns_per_activity,
    )


async def check_tokens(cluster: Cluster, rollout: RolloutId, prompts: list[list[int]]) -> None:
    calls, _ = await turns.history(cluster.db, rollout, 0)
    for call, prompt in zip(calls, prompts, strict=True):
        path = path_to(calls, call.number)
        held = [token for each in path for token in (*each.prompt_ids, *each.completion_ids)]
        assert held == [*prompt, *call.completion_ids]
    samples = samples_of(rollout, calls)
    trained = [token for each in samples for token in each.token_ids[each.action_mask].tolist()]
    sampled = [token for call in calls for token in call.completion_ids]
    assert sorted(trained) == sorted(sampled)
    assert len(samples) == sum(call.rewritten is not None for call in calls) + 1


async def check_asked_again(cluster: Cluster, rollout: RolloutId) -> None:
    """From the store alone each request is the same, without a count of tokens."""
    record = await rollouts.get(cluster.db, rollout)
    config = (await campaigns.get(cluster.db, record.campaign)).config
    task = await tasks.get_task(cluster.db, record.task)
    agent = agent_for(config, task)
    calls, executions = await turns.history(cluster.db, rollout, 0)
    known = None
    for number in range(len(calls)):
        done = Record(calls, executions).before(number)
        known = next_request(agent, task, done, known)
        assert known == next_request(agent, task, done)
        if (rewritten := calls[number].rewritten) is not None and not calls[number].is_summary:
            known = known.rewritten(rewritten)
    trajectory = Trajectory(
        attempt=Attempt(record, await groups.get(cluster.db, record.group), 0, 0, 0),
        config=config,
        task=task,
        patch=b"",
        report=None,
        grade_output=None,
        replies=calls,
        executions=executions,
    )
    for branch in trajectory.branches:
        *messages, reply = trajectory.messages_of(branch)
        assert reply["content"] == branch[-1].text
        if (rewritten := branch[-1].rewritten) is not None:
            assert [m["content"] for m in messages] == [m.text for m in rewritten.messages]


@pytest.mark.parametrize("turns_per_activity", [1, 3])
@pytest.mark.parametrize(
    ("context", "told"),
    [
        ({"kind": "head_tail"}, "turns were left out here to save room]"),
        ({"kind": "head_tail", "fill": 0.5, "head_ratio": 0.0}, "left out here to save room]"),
        ({"kind": "forget_outputs", "fill": 0.7}, "lines of this output were left out]"),
    ],
)
async def test_a_history_that_is_too_long_is_rewritten(
    cluster: Cluster,
    monkeypatch: pytest.MonkeyPatch,
    turns_per_activity: int,
    context: dict[str, Any],
    told: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    prompts = watch(cluster, monkeypatch)
    rollout, result = await play(cluster, turns_per_activity, **context)
    assert (result.stop_reason, result.num_turns) == (StopReason.SUBMITTED, NUM_TURNS + 1)
    assert all(len(prompt) <= CONTEXT * 3 // 4 for prompt in prompts)
    rewritten = [prompt for prompt in prompts if told in bytes(i % 256 for i in prompt).decode()]
    assert rewritten
    await check_tokens(cluster, rollout, prompts)
    view = await one_rollout.read(cluster.db, rollout)
    shown = [turn for turn in view.turns if turn.rewritten]
    assert shown and told in shown[-1].rewritten
    print_one(view, only_turn=shown[-1].number)
    printed = capsys.readouterr().out
    assert told in " ".join(printed.split())
    assert "; rewritten)" in printed and "[assistant]" in printed
    await check_asked_again(cluster, rollout)


@pytest.mark.parametrize("turns_per_activity", [1, 3])
async def test_a_summary_is_a_call_that_opens_the_next_branch(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, turns_per_activity: int
) -> None:
    prompts = watch(cluster, monkeypatch)
    replies = iter([*(bash(f"{PRINT} # {turn}") for turn in range(NUM_TURNS)), SUBMIT])
    num_summaries = 0

    def say(rollout: str, turn: int) -> str:
        nonlocal num_summaries
        if ASKS_FOR_ONE in bytes(i % 256 for i in prompts[-1][-60:]).decode():
            num_summaries += 1
            return f"I printed numbers, as {bash('echo not to be run')} would: {num_summaries}."
        return next(replies)

    cluster.policy.say = say
    rollout, result = await play(
        cluster, turns_per_activity, kind="summarise", summary_prompt=ASKS_FOR_ONE
    )
    assert num_summaries > 1
    assert result.stop_reason is StopReason.SUBMITTED
    assert result.num_turns == NUM_TURNS + 1 + num_summaries
    assert all(len(prompt) <= CONTEXT * 3 // 4 for prompt in prompts)
    calls, executions = await turns.history(cluster.db, rollout, 0)
    summaries = [call for call in calls if call.is_summary]
    assert len(summaries) == num_summaries
    assert len(executions) == NUM_TURNS + 1  # no summary ran anything
    for number, call in enumerate(summaries, 1):
        assert call.parent is not None  # it continues the branch that it sums up
        opening = calls[call.number + 1]
        assert opening.parent is None and opening.rewritten is not None
        texts = [message.text for message in opening.rewritten.messages]
        assert sum("Summary of the work so far:" in text for text in texts) == 1
        assert f"would: {number}." in texts[2] and ASKS_FOR_ONE not in texts
    # each turn's output is in exactly one branch, or in the one that follows its summary as well
    row = await rollouts.get(cluster.db, rollout)
    assert row.num_turns == len(calls)
    await check_tokens(cluster, rollout, prompts)
    await check_asked_again(cluster, rollout)


async def test_with_room_left_several_turns_share_a_branch(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    watch(cluster, monkeypatch)
    rollout, _ = await play(cluster, 1, kind="head_tail", fill=0.4)
    calls, _ = await turns.history(cluster.db, rollout, 0)
    few = sum(call.rewritten is not None for call in calls)
    watch(cluster, monkeypatch)
    rollout, _ = await play(cluster, 1, kind="head_tail", fill=1.0)
    calls, _ = await turns.history(cluster.db, rollout, 0)
    many = sum(call.rewritten is not None for call in calls)
    assert 1 <= few < many


async def test_without_a_strategy_it_ends(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    watch(cluster, monkeypatch)
    _, result = await play(cluster, 1)
    assert result.stop_reason is StopReason.CONTEXT_FULL


async def test_where_nothing_can_be_left_out_it_ends(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompts = watch(cluster, monkeypatch)
    replies = iter([bash(f"head -c {CONTEXT} /dev/zero | tr '\\0' x"), SUBMIT])
    cluster.policy.say = lambda rollout, turn: next(replies)
    program = {
        "kind": "bash",
        "observation_chars": 2 * CONTEXT,
        "context": {"kind": "head_tail"},
    }
    _, result = await cluster.play(program=program, max_context=CONTEXT)
    assert result.stop_reason is StopReason.CONTEXT_FULL and len(prompts) == 1
