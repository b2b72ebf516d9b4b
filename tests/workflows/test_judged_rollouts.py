"""Judges over real HTTP, Temporal, Postgres and bubblewrap; policy and endpoint are scripted."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cluster import Cluster
from judged_rollouts import (
    BAD,
    BOTH,
    FIX,
    GOOD,
    begin,
    config_of,
    failures_told,
    judge_endpoint,
    judged,
    prompt,
    says,
)
from scripted import SUBMIT, bash
from temporalio.client import WorkflowFailureError
from temporalio.contrib.pydantic import pydantic_data_converter
from temporalio.exceptions import CancelledError
from temporalio.worker import Replayer

from cli.eval.eval_screen import print_summary
from cli.operations.checks.named_parts import check_named
from infra.db.rollouts import judgements, rollouts, turns
from infra.db.training import batches
from infra.sandbox.protocol import BackendUnavailable
from mainspring.config.agents.judges import JudgeConfig
from mainspring.ids import RolloutId, SandboxId
from mainspring.rewards.votes import NUM_RECENT
from mainspring.status import StopReason, Verdict
from mainspring.tasks.sandbox_choice import BWRAP
from mainspring.trajectories.turn_rewards import TurnRewards
from reports import one_rollout
from reports.collect import collect
from reports.export.evaluation import write_evaluation
from tests.chat_endpoint import Endpoint, Messages
from tests.sandboxed import SANDBOXED
from tests.waiting import until
from workflows.rollout import RolloutWorkflow


@pytest.fixture
def endpoint() -> Iterator[Endpoint]:
    with judge_endpoint() as endpoint:
        yield endpoint


@pytest.mark.parametrize("together", [1, 5])
async def test_each_turn_but_the_last_is_judged_and_counts(
    cluster: Cluster, endpoint: Endpoint, together: int
) -> None:
    cluster.policy.say = says(bash("cat calc.py"), "no block", FIX, SUBMIT)
    endpoint.reply = lambda messages: BAD if "FIRST" in prompt(messages) else GOOD
    prompt_text = "{% if not steps %}FIRST{% endif %} {{ issue }} {{ turn.commands[0].output }}"
    config = config_of(endpoint, together=together, prompt=prompt_text, votes=2)
    rollout, handle = await begin(cluster, config)
    result = await handle.result()
    assert (result.stop_reason, result.verdict) == (StopReason.SUBMITTED, Verdict.RESOLVED)
    found = await judged(cluster, rollout)
    # Neither the reply without a command nor the one that submits.
    assert [(each.judgement.call, each.judgement.score) for each in found] == [(0, -1), (2, 1)]
    assert [[vote.value for vote in each.votes] for each in found] == [[-1, -1], [1, 1]]
    assert all(each.judgement.missing is None for each in found)
    row = await cluster.row(rollout)
    assert row.reward_parts == {"outcome": 1.0, "judge.quality.turns": 0.0}
    assert result.reward == row.reward == 1.0
    [of_group] = await batches.load_groups(cluster.db, [row.group])
    given = of_group.rollouts[0].turn_rewards
    assert given == TurnRewards(1.0, {0: -0.5, 2: 0.5})
    asked = [prompt(body["messages"]) for body in endpoint.asked]
    assert len(asked) == 4 and all("add subtracts" in each for each in asked)
    assert sum("return a - b" in each for each in asked) == 2
    body = endpoint.asked[0]
    assert (body["model"], body["temperature"], body["max_tokens"]) == ("m1", 1.0, 4096)
    assert "top_p" not in body and endpoint.keys[0] is None


async def test_a_turn_does_not_wait_for_its_judgement(
    cluster: Cluster, endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.policy.say = says(FIX, bash("cat calc.py"), SUBMIT)
    monkeypatch.setenv("JUDGES_KEY", "sk-judge")
    has_graded = asyncio.Event()
    loop = asyncio.get_running_loop()

    def reply(messages: Messages) -> str:
        # In a thread of the server.
        asyncio.run_coroutine_threadsafe(has_graded.wait(), loop).result(60)
        return GOOD

    endpoint.reply = reply
    config = config_of(endpoint, votes=1, api_key_env="JUDGES_KEY", top_p=0.9)
    rollout, handle = await begin(cluster, config)

    async def graded() -> bool:
        return (await cluster.row(rollout)).verdict is not None or len(
            [each for each in cluster.policy.asked if each.startswith(rollout)]
        ) == 3

    await until(graded)
    await until(lambda: len(endpoint.asked) == 2)
    assert (await cluster.row(rollout)).stop_reason is None
    has_graded.set()
    result = await handle.result()
    assert result.reward == 1.5
    assert endpoint.keys == ["Bearer sk-judge"] * 2 and endpoint.asked[0]["top_p"] == 0.9


async def test_a_whole_rollout_is_judged_without_its_verdict(
    cluster: Cluster, endpoint: Endpoint
) -> None:
    cluster.policy.say = says(bash("cat calc.py"), FIX, SUBMIT)
    parts = ({"name": "judge", "judge": "quality", "of": "rollout"},)
    endpoint.reply = lambda messages: 'So {"grade": {"score": 9}, "score": 3.5}'
    rollout, handle = await begin(
        cluster, config_of(endpoint, parts, votes=2, vote="json", field="score", low=0, high=5)
    )
    result = await handle.result()
    assert (result.verdict, result.reward) == (Verdict.RESOLVED, 3.5)
    [found] = await judged(cluster, rollout)
    assert (found.judgement.num_votes, found.judgement.num_valid) == (2, 2)
    shown = prompt(endpoint.asked[0]["messages"])
    for part in ("add subtracts", "Turn 1", "cat calc.py", "return a - b", "+    return a + b"):
        assert part in shown
    assert "hidden_test" not in shown and "resolved" not in shown.lower()


async def test_a_policy_that_submits_at_once_has_no_turn_to_judge(
    cluster: Cluster, endpoint: Endpoint
) -> None:
    cluster.policy.say = says(SUBMIT)
    rollout, handle = await begin(cluster, config_of(endpoint))
    result = await handle.result()
    assert (result.stop_reason, result.reward) == (StopReason.SUBMITTED, 0.0)
    assert (await cluster.row(rollout)).reward_parts == {"outcome": 0.0, "judge.quality.turns": 0.0}
    assert endpoint.asked == []


async def test_votes_that_cannot_be_read_count_as_none(
    cluster: Cluster, endpoint: Endpoint
) -> None:
    cluster.policy.say = says(FIX, bash("true"), SUBMIT)
    said = iter([GOOD, "no box", "", "nonsense", r"\boxed{2}", "I cannot tell"])
    endpoint.reply = lambda messages: next(said)  # one at a time
    rollout, handle = await begin(cluster, config_of(endpoint, concurrency=1))
    result = await handle.result()
    found = await judged(cluster, rollout)
    assert sum(each.judgement.num_votes for each in found) == 6
    assert sum(each.judgement.num_valid for each in found) == 1
    assert [each.judgement.score for each in found if not each.judgement.num_valid] == [0.0] * sum(
        not each.judgement.num_valid for each in found
    )
    assert result.reward == 1.0 + 0.5 * 0.5


async def test_only_votes_that_are_lacking_are_asked_again(
    cluster: Cluster, endpoint: Endpoint
) -> None:
    cluster.policy.say = says(FIX, SUBMIT)
    endpoint.script.extend([(429, {"Retry-After": "0.1"}, "slow down"), (500, {}, "oh")])
    rollout, handle = await begin(cluster, config_of(endpoint, votes=3))
    result = await handle.result()
    [found] = await judged(cluster, rollout)
    assert (found.judgement.score, found.judgement.num_votes) == (1.0, 3)
    # Two of the first three failed.
    assert len(endpoint.asked) == 5 and result.reward == 1.5


async def test_an_endpoint_that_fails_each_time_is_missing_and_no_number(
    cluster: Cluster, endpoint: Endpoint
) -> None:
    cluster.policy.say = says(FIX, bash("true"), SUBMIT)
    endpoint.script.extend([(503, {"Retry-After": "0.05"}, "overloaded")] * 99)
    rollout, handle = await begin(cluster, config_of(endpoint, votes=1))
    result = await handle.result()
    assert (result.stop_reason, result.reward) == (StopReason.SUBMITTED, 1.0)
    assert (await cluster.row(rollout)).reward_parts == {
        "outcome": 1.0,
        "judge.quality.turns": None,
    }
    found = await judged(cluster, rollout)
    assert [each.judgement.score for each in found] == [None, None]
    for each in found:
        assert "after 3 tries: " in (each.judgement.missing or "") and "503" in str(each.judgement)
    assert len(endpoint.asked) == 6 and await failures_told(cluster, rollout) == {"quality": 2}


async def test_a_refusal_is_missing_at_once_with_its_sentence(
    cluster: Cluster, endpoint: Endpoint
) -> None:
    cluster.policy.say = says(FIX, bash("true"), SUBMIT)
    endpoint.script.append((404, {}, {"error": {"message": "no model m1"}}))
    rollout, handle = await begin(cluster, config_of(endpoint, votes=1))
    result = await handle.result()
    found = await judged(cluster, rollout)
    missing = [each.judgement.missing for each in found if each.judgement.score is None]
    assert len(missing) == 1 and "no model m1" in str(missing[0])
    # The other turn's judgement counts alone.
    assert result.reward == 1.5 and len(endpoint.asked) == 2


@pytest.mark.parametrize("is_all", [True, False])
async def test_a_required_judgement_masks_its_rollout(
    cluster: Cluster, endpoint: Endpoint, is_all: bool
) -> None:
    cluster.policy.say = says(FIX, SUBMIT)
    endpoint.script.extend([(401, {}, {"error": {"message": "bad key"}})] * 9)
    # A judge that is all of the reward is required by itself.
    config = config_of(endpoint, BOTH[1:] if is_all else BOTH, votes=1, required=not is_all)
    rollout, handle = await begin(cluster, config)
    result = await handle.result()
    assert (result.stop_reason, result.reward) == (StopReason.INFRA_FAULT, None)
    assert result.broken is None and result.fault is not None
    assert result.fault.startswith("JudgeMissing: judge quality") and "bad key" in result.fault
    assert (await cluster.row(rollout)).fault == result.fault


@pytest.mark.parametrize("after", [True, False])
async def test_a_judgement_is_asked_again_only_if_it_was_not_stored(
    cluster: Cluster, endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch, after: bool
) -> None:
    cluster.policy.say = says(FIX, SUBMIT)
    put, died = judgements.put, []

    async def put_and_die(db: Any, question: Any, **values: Any) -> Any:
        if died:
            return await put(db, question, **values)
        died.append(question)
        if after:
            await put(db, question, **values)
        raise RuntimeError("the worker died")

    monkeypatch.setattr(judgements, "put", put_and_die)
    rollout, handle = await begin(cluster, config_of(endpoint, votes=3))
    result = await handle.result()
    # Each vote was stored before: none is asked for a second time.
    assert died and result.reward == 1.5 and len(endpoint.asked) == 3
    [found] = await judged(cluster, rollout)
    assert [vote.value for vote in found.votes] == [1.0] * 3


async def test_a_vote_that_was_lost_is_the_only_one_asked_again(
    cluster: Cluster, endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.policy.say = says(FIX, SUBMIT)
    put, died = judgements.put_vote, []

    async def put_or_die(db: Any, question: Any, number: int, vote: Any) -> None:
        if number == 1 and not died:
            died.append(number)
            raise RuntimeError("the worker died")
        await put(db, question, number, vote)

    monkeypatch.setattr(judgements, "put_vote", put_or_die)
    _, handle = await begin(cluster, config_of(endpoint, votes=3))
    result = await handle.result()
    assert died and result.reward == 1.5 and len(endpoint.asked) == 4


@pytest.mark.parametrize("at_its_end", [False, True])
async def test_a_cancelled_rollout_cancels_its_judgements(
    cluster: Cluster, endpoint: Endpoint, at_its_end: bool
) -> None:
    cluster.policy.say = says(FIX, SUBMIT)
    endpoint.script.extend([(503, {"Retry-After": "3600"}, "later")] * 9)
    rollout, handle = await begin(cluster, config_of(endpoint, votes=1, retries=30))

    async def waits() -> bool:
        pending = (await handle.describe()).raw_description.pending_activities
        return any(
            each.activity_type.name == "judge" and "503" in each.last_failure.message
            for each in pending
        )

    async def graded() -> bool:
        return (await cluster.row(rollout)).verdict is not None

    await until(waits)
    if at_its_end:
        await until(graded)
    await handle.cancel()
    with pytest.raises(WorkflowFailureError) as ended:
        await handle.result()
    assert isinstance(ended.value.cause, CancelledError)
    row = await rollouts.get(cluster.db, rollout)
    assert (row.stop_reason, row.reward) == (StopReason.CANCELLED, None)
    assert await judged(cluster, rollout) == []


async def test_a_judged_rollout_replays(cluster: Cluster, endpoint: Endpoint) -> None:
    cluster.policy.say = says(FIX, "no block", bash("true"), SUBMIT)
    parts = (*BOTH, {"name": "judge", "judge": "quality", "of": "rollout"})
    _, handle = await begin(cluster, config_of(endpoint, parts, votes=1))
    assert (await handle.result()).reward == 2.5
    replayer = Replayer(
        workflows=[RolloutWorkflow],
        data_converter=pydantic_data_converter,
        workflow_runner=SANDBOXED,
    )
    await replayer.replay_workflow(await handle.fetch_history())


async def test_a_form_that_is_never_met_is_named_with_an_example(
    cluster: Cluster, endpoint: Endpoint
) -> None:
    cluster.policy.say = lambda rollout, turn: FIX if turn < NUM_RECENT else SUBMIT
    endpoint.reply = lambda messages: "I would say: \x1b[31mseven\x1b[0m of ten"
    config = config_of(endpoint, votes=1)
    config = config.model_copy(
        update={"agent": config.agent.model_copy(update={"step_limit": 2 * NUM_RECENT})}
    )
    rollout, handle = await begin(cluster, config)
    assert (await handle.result()).reward == 1.0
    campaign = (await cluster.row(rollout)).campaign
    data = await collect(cluster.db, campaign)
    [warning] = data.judge_warnings
    assert f"no vote of its newest {NUM_RECENT} judgements" in warning
    assert "judges.quality.vote" in warning and warning.endswith("I would say: seven of ten")
    seen = await one_rollout.read(cluster.db, rollout)
    [judgement] = seen.as_dict()["turns"][0]["judgements"]
    assert (judgement["score"], judgement["votes"]) == (0.0, [None])


async def test_a_run_that_is_over_names_it_also_after_few_judgements(
    cluster: Cluster, endpoint: Endpoint, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster.policy.say = says(FIX, SUBMIT)
    endpoint.reply = lambda messages: "Seven of ten"
    rollout, handle = await begin(cluster, config_of(endpoint, votes=1))
    await handle.result()
    campaign = (await cluster.row(rollout)).campaign
    assert (await collect(cluster.db, campaign)).judge_warnings == ()
    summary = await write_evaluation(cluster.db, campaign, tmp_path)
    assert "no vote of its newest 1 judgements" in summary["judge_warnings"][0]
    print_summary(summary, tmp_path)
    assert "it wrote: Seven of ten" in capsys.readouterr().out


class LengthJudge:
    """A judge of one's own, which fails at first."""

    def __init__(self, config: JudgeConfig) -> None:
        self.num_asked = 0

    async def vote(self, prompt: str, rollout: RolloutId, number: int) -> str:
        self.num_asked += 1
        if self.num_asked == 1:
            raise KeyError("not yet")
        return r"\boxed{1}" if "add subtracts" in prompt else r"\boxed{-1}"

    async def aclose(self) -> None:
        return None


async def test_a_judge_of_ones_own(
    cluster: Cluster, endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    cluster.policy.say = says(FIX, SUBMIT)
    config = config_of(endpoint, kind="test_judged_rollouts:LengthJudge", votes=2)
    check_named(config)
    _, handle = await begin(cluster, config)
    assert (await handle.result()).reward == 1.5
    assert endpoint.asked == []


async def test_a_new_epoch_is_judged_anew(cluster: Cluster, endpoint: Endpoint) -> None:
    """Votes of the epoch that diverged are given up while they are under way."""
    cluster.policy.say = says(bash("date +%N"), FIX, SUBMIT)
    gate, first = asyncio.Event(), asyncio.Event()

    async def hold(rollout: str) -> None:
        if first.is_set():
            await gate.wait()
        first.set()

    cluster.policy.hold = hold
    endpoint.script.append((503, {"Retry-After": "3600"}, "later"))
    rollout, handle = await begin(cluster, config_of(endpoint, votes=1))

    async def first_turn_done() -> bool:
        _, done = await turns.history(cluster.db, rollout, 0)
        return bool(done and endpoint.asked)

    await until(first_turn_done)
    backend = cluster.backends[BWRAP]
    assert not isinstance(backend, BackendUnavailable)
    await backend.remove(SandboxId(f"{rollout.replace('/', '.')}.e0.s0"))
    gate.set()
    result = await handle.result()
    assert ((await cluster.row(rollout)).epoch, result.reward) == (1, 1.5)
    assert [each.judgement.call for each in await judged(cluster, rollout, 1)] == [0, 1]
    assert await judged(cluster, rollout, 0) == [] and len(endpoint.asked) == 3
