"""One rollout from claim to reward, and what happens when something dies under it."""

import asyncio
import json

import pytest
from scripted import LOGPROB, SUBMIT, bash
from temporalio.client import WorkflowFailureError, WorkflowHistory
from temporalio.contrib.pydantic import pydantic_data_converter
from temporalio.testing import ActivityEnvironment
from temporalio.worker import Replayer

from infra.db.nodes import sandboxes
from infra.db.rollouts import rollouts, turns
from infra.sandbox.protocol import BackendUnavailable
from mainspring.ids import SandboxId, rollout_workflow
from mainspring.protocol.rollout import BeginInput, GenerateInput
from mainspring.status import RolloutPhase, SandboxStatus, StopReason, Verdict
from mainspring.tasks.sandbox_choice import BWRAP
from mainspring.trajectories.samples import samples_of
from mainspring.trajectories.tree import check_tree
from tests.sandboxed import SANDBOXED
from tests.waiting import until
from workflows.rollout import RolloutWorkflow

FIX = bash("sed -i 's/a - b/a + b/' calc.py")
MAX_PAYLOAD_BYTES = 4096


def replies(*texts: str):
    return lambda rollout, turn: texts[min(turn, len(texts) - 1)]


async def test_a_fix_is_rewarded_and_stored_token_by_token(cluster) -> None:
    cluster.policy.say = replies(bash("cat calc.py"), FIX, SUBMIT)
    rollout, result = await cluster.play()
    row = await cluster.row(rollout)
    assert (result.stop_reason, result.reward, result.num_turns) == (StopReason.SUBMITTED, 1.0, 3)
    assert (row.verdict, row.reward, row.phase) == (Verdict.RESOLVED, 1.0, RolloutPhase.DONE)
    calls, executions = await turns.history(cluster.db, rollout, row.epoch)
    check_tree(rollout, calls)
    [sample] = samples_of(rollout, calls)
    # The sequence is exactly what the policy was asked with, plus its last reply.
    asked = cluster.policy.prompts[f"{rollout}.t2"]
    assert sample.token_ids.tolist() == [*asked, *calls[-1].completion_ids]
    assert set(sample.logprobs[sample.action_mask].tolist()) == {LOGPROB}
    assert b"return a - b" in executions[0].output
    leases = await sandboxes.rollout_leases(cluster.db, rollout)
    assert {lease.status for lease in leases} == {SandboxStatus.CLOSED}
    assert set(row.phase_s) >= {"open", "generate", "execute", "grade"}


async def test_a_wrong_edit_and_no_edit_get_zero(cluster) -> None:
    cluster.policy.say = replies(bash("sed -i 's/a - b/a * b/' calc.py"), SUBMIT)
    rollout, wrong = await cluster.play()
    assert (wrong.reward, (await cluster.row(rollout)).verdict) == (0.0, Verdict.NOT_RESOLVED)
    cluster.policy.say = replies(SUBMIT)
    rollout, nothing = await cluster.play()
    assert (nothing.reward, (await cluster.row(rollout)).verdict) == (0.0, Verdict.NO_PATCH)


async def test_the_step_limit_grades_what_the_tree_holds(cluster) -> None:
    cluster.policy.say = replies(FIX, bash("true"))
    _, result = await cluster.play(step_limit=3)
    assert (result.stop_reason, result.reward, result.num_turns) == (StopReason.STEP_LIMIT, 1.0, 3)


async def test_format_errors_are_told_and_end_the_rollout(cluster) -> None:
    cluster.policy.say = replies("no block at all")
    rollout, result = await cluster.play()
    assert (result.stop_reason, result.num_turns) == (StopReason.FORMAT_ERRORS, 2)
    told = bytes(i for i in cluster.policy.prompts[f"{rollout}.t1"] if i < 256).decode()
    assert "bash" in told.split("no block at all")[1]


async def test_a_full_context_ends_the_rollout(cluster) -> None:
    cluster.policy.say = replies(bash("seq 1 400"))
    _, result = await cluster.play(max_context=4000)
    assert (result.stop_reason, result.num_turns) == (StopReason.CONTEXT_FULL, 2)


async def test_a_context_that_takes_no_first_prompt_masks_and_tells_so(cluster) -> None:
    """It is no failure of the agent, which was never asked."""
    rollout, result = await cluster.play(max_context=1600)
    assert (result.stop_reason, result.reward) == (StopReason.INFRA_FAULT, None)
    row = await cluster.row(rollout)
    assert "PolicyRefused: rollout" in row.fault and "its first prompt" in row.fault
    assert "of 1600 tokens are left" in row.fault and "raise policy.max_context" in row.fault


async def test_the_submit_command_must_succeed_to_count(cluster) -> None:
    cluster.policy.say = replies(bash("echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT; exit 1"), SUBMIT)
    _, result = await cluster.play()
    assert (result.stop_reason, result.num_turns) == (StopReason.SUBMITTED, 2)


async def test_a_node_that_dies_before_it_reports_a_result_loses_no_command(
    cluster, monkeypatch
) -> None:
    cluster.policy.say = replies(bash("echo one >> calc.txt"), FIX, bash("cat calc.txt"), SUBMIT)
    campaign, group, [rollout] = await cluster.make_rollouts()
    store = turns.put_execution
    died: list[int] = []

    async def store_and_die(db, ident, epoch, execution):
        done = await store(db, ident, epoch, execution)
        if ident == rollout and execution.call not in died and execution.call in (0, 3):
            died.append(execution.call)
            life = len(died) - 1
            sandbox = SandboxId(f"{rollout.replace('/', '.')}.e{epoch}.s{life}")
            await cluster.held.release(sandbox)
            raise OSError("the node died")
        return done

    monkeypatch.setattr(turns, "put_execution", store_and_die)
    result = await (await cluster.start(rollout, campaign, group)).result()
    assert died == [0, 3]
    assert (result.stop_reason, result.reward, result.num_turns) == (StopReason.SUBMITTED, 1.0, 4)
    _, done = await turns.history(cluster.db, rollout, 0)
    assert done[2].output == b"one\n"
    assert not [s for s in await cluster.open_sandboxes() if rollout.replace("/", ".") in s]


async def test_a_replay_that_diverges_starts_a_new_epoch(cluster) -> None:
    cluster.policy.say = replies(bash("date +%N"), FIX, SUBMIT)
    campaign, group, [rollout] = await cluster.make_rollouts()
    cluster.policy.gate = asyncio.Event()
    cluster.policy.gate.set()
    handle = await cluster.start(rollout, campaign, group)

    async def first_turn_done() -> bool:
        _, done = await turns.history(cluster.db, rollout, 0)
        if done:
            cluster.policy.gate.clear()
        return bool(done)

    await until(first_turn_done)
    backend = cluster.backends[BWRAP]
    assert not isinstance(backend, BackendUnavailable)
    await backend.remove(SandboxId(f"{rollout.replace('/', '.')}.e0.s0"))
    cluster.policy.gate.set()
    result = await handle.result()
    row = await cluster.row(rollout)
    assert (result.reward, row.epoch) == (1.0, 1)
    calls, _ = await turns.history(cluster.db, rollout, 1)
    check_tree(rollout, calls)


async def test_cancel_closes_the_sandbox_and_masks(cluster) -> None:
    cluster.policy.say = replies(bash("sleep 60"))
    campaign, group, [rollout] = await cluster.make_rollouts()
    handle = await cluster.start(rollout, campaign, group)

    async def sandbox_is_open() -> bool:
        return any(rollout.replace("/", ".") in s for s in await cluster.open_sandboxes())

    await until(sandbox_is_open)
    await handle.cancel()
    with pytest.raises(WorkflowFailureError):
        await handle.result()
    row = await cluster.row(rollout)
    assert (row.stop_reason, row.reward) == (StopReason.CANCELLED, None)
    assert not await sandbox_is_open()


async def test_the_reaper_removes_what_terminate_leaves(cluster) -> None:
    cluster.policy.say = replies(bash("true"), bash("sleep 60"))
    campaign, group, [rollout] = await cluster.make_rollouts()
    handle = await cluster.start(rollout, campaign, group)

    async def sandbox_is_open() -> bool:
        return any(rollout.replace("/", ".") in s for s in await cluster.open_sandboxes())

    await until(sandbox_is_open)
    await handle.terminate()
    # Terminated workflows run no clean-up: the rollout is ended with its group, then reaped.
    await rollouts.finish(
        cluster.db,
        rollout,
        0,
        stop_reason=StopReason.CANCELLED,
        verdict=None,
        reward=None,
        fault=None,
        num_turns=0,
        phase_s={},
    )
    await cluster.reaper.reap()
    assert not await sandbox_is_open()
    [lease] = await sandboxes.rollout_leases(cluster.db, rollout)
    assert lease.status is SandboxStatus.REAPED


async def test_two_attempts_at_a_reply_store_one(cluster) -> None:
    said = iter([bash("echo first"), bash("echo second")])
    cluster.policy.say = lambda rollout, turn: next(said)
    _, _, [rollout] = await cluster.make_rollouts()
    await rollouts.claim(cluster.db, rollout, BeginInput(rollout=rollout, run_id="r").run_id)
    ask = GenerateInput(rollout=rollout, epoch=0, turn=0, min_policy_version=0)
    answers = await asyncio.gather(
        *(ActivityEnvironment().run(cluster.replies.generate, ask) for _ in range(2))
    )
    assert answers[0] == answers[1]
    calls, _ = await turns.history(cluster.db, rollout, 0)
    assert len(calls) == 1


async def test_history_is_small_and_replays(cluster) -> None:
    cluster.policy.say = replies(bash("seq 1 3000"), bash("cat calc.py"), FIX, SUBMIT)
    rollout, _ = await cluster.play()
    handle = cluster.client.get_workflow_handle(rollout_workflow(rollout))
    history = await handle.fetch_history()
    payloads = [
        len(part["data"])
        for event in json.loads(history.to_json())["events"]
        for part in _payloads(event)
    ]
    assert payloads and max(payloads) < MAX_PAYLOAD_BYTES
    replayer = Replayer(
        workflows=[RolloutWorkflow],
        data_converter=pydantic_data_converter,
        workflow_runner=SANDBOXED,
    )
    recorded = WorkflowHistory.from_json(rollout_workflow(rollout), history.to_json())
    replayed = await replayer.replay_workflow(recorded)
    assert replayed.replay_failure is None


def _payloads(node: object):
    if isinstance(node, dict):
        if "data" in node and "metadata" in node:
            yield node
        for value in node.values():
            yield from _payloads(value)
    elif isinstance(node, list):
        for value in node:
            yield from _payloads(value)
