"""Several turns in one activity: the same rows and ends as turn by turn."""

import json
from dataclasses import replace

import pytest
from cluster import Cluster
from scripted import SUBMIT, bash
from test_rollout_workflow import FIX, MAX_PAYLOAD_BYTES, _payloads, replies

from infra.db import sandboxes, turns
from mainspring.ids import RolloutId, rollout_workflow
from mainspring.status import SandboxStatus, StopReason
from mainspring.trajectories.turns import Call, Execution

SAID = (bash("cat calc.py"), "no block", bash("echo one >> calc.txt"), FIX, bash("true"), SUBMIT)
TOGETHER = 5


async def activities_of(cluster: Cluster, rollout: RolloutId) -> list[str]:
    handle = cluster.client.get_workflow_handle(rollout_workflow(rollout))
    return [
        event.activity_task_scheduled_event_attributes.activity_type.name
        for event in (await handle.fetch_history()).events
        if event.HasField("activity_task_scheduled_event_attributes")
    ]


async def recorded(
    cluster: Cluster, rollout: RolloutId, epoch: int = 0
) -> tuple[list[Call], list[Execution]]:
    """Without what differs each time: how long it took."""
    calls, ran = await turns.history(cluster.db, rollout, epoch)
    return calls, [replace(each, wall_s=0.0) for each in ran]


async def test_the_same_rows_as_turn_by_turn(cluster: Cluster) -> None:
    cluster.policy.say = replies(*SAID)
    single, one = await cluster.play()
    several, five = await cluster.play(turns_per_activity=TOGETHER)
    assert five.model_copy(update={"rollout": single}) == one
    assert (five.stop_reason, five.reward, five.num_turns) == (StopReason.SUBMITTED, 1.0, 6)
    assert await recorded(cluster, several) == await recorded(cluster, single)
    row = await cluster.row(several)
    assert set(row.phase_s) >= {"open", "generate", "execute", "grade"}
    leases = await sandboxes.rollout_leases(cluster.db, several)
    assert {lease.status for lease in leases} == {SandboxStatus.CLOSED}
    assert (await activities_of(cluster, several)).count("play_turns") == 2
    assert "generate" not in await activities_of(cluster, several)


@pytest.mark.parametrize("together", [1, 2, TOGETHER])
@pytest.mark.parametrize(
    ("said", "options", "stop", "num_turns"),
    [
        ((bash("true"), SUBMIT), {}, StopReason.SUBMITTED, 2),
        ((bash("true"), "no block", "no block"), {}, StopReason.FORMAT_ERRORS, 3),
        ((bash("true"),), {"step_limit": 3}, StopReason.STEP_LIMIT, 3),
        ((bash("sleep 0.7"),), {"rollout_timeout_s": 1.0}, StopReason.WALL_TIME, 2),
        ((bash("seq 1 400"),), {"max_context": 4000}, StopReason.CONTEXT_FULL, 2),
    ],
    ids=["submitted", "format", "steps", "time", "context"],
)
async def test_what_ends_a_rollout_ends_it_within_an_activity(
    cluster: Cluster, together, said, options, stop, num_turns
) -> None:
    cluster.policy.say = replies(*said)
    rollout, result = await cluster.play(turns_per_activity=together, **options)
    assert (result.stop_reason, result.num_turns) == (stop, num_turns)
    row = await cluster.row(rollout)
    assert (row.num_turns, row.stop_reason) == (num_turns, stop)
    calls, ran = await turns.history(cluster.db, rollout, 0)
    assert len(calls) == num_turns
    assert len([a for a in cluster.policy.asked if a.startswith(rollout)]) == num_turns
    assert len(ran) == sum("```bash" in call.text for call in calls)


async def test_payloads_stay_small(cluster: Cluster) -> None:
    cluster.policy.say = replies(bash("seq 1 3000"), bash("cat calc.py"), FIX, SUBMIT)
    rollout, _ = await cluster.play(turns_per_activity=2)
    handle = cluster.client.get_workflow_handle(rollout_workflow(rollout))
    history = json.loads((await handle.fetch_history()).to_json())
    sizes = [len(part["data"]) for event in history["events"] for part in _payloads(event)]
    assert sizes and max(sizes) < MAX_PAYLOAD_BYTES
