"""Several turns in one activity: the same rows and ends as turn by turn."""

import asyncio
import json
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
from cluster import NODE, Cluster
from scripted import SUBMIT, bash
from test_rollout_workflow import FIX, MAX_PAYLOAD_BYTES, _payloads, replies

from activities import playing
from infra.db.nodes import sandboxes
from infra.db.rollouts import turns
from infra.db.training import policies
from infra.policy.serving import serve_over_http
from infra.temporal.seen_waits import _pending
from mainspring.errors import EngineUnreachable
from mainspring.ids import RolloutId, rollout_workflow
from mainspring.status import FaultKind, SandboxStatus, StopReason
from mainspring.trajectories.turns import Call, Execution
from tests.waiting import until

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
    assert row.verdict is not None
    assert not [s for s in await cluster.open_sandboxes() if rollout.replace("/", ".") in s]
    collected = (await activities_of(cluster, rollout)).count("collect_patch")
    assert collected == (together == 1 and stop is not StopReason.SUBMITTED)


async def test_payloads_stay_small(cluster: Cluster) -> None:
    cluster.policy.say = replies(bash("seq 1 3000"), bash("cat calc.py"), FIX, SUBMIT)
    rollout, _ = await cluster.play(turns_per_activity=2)
    handle = cluster.client.get_workflow_handle(rollout_workflow(rollout))
    history = json.loads((await handle.fetch_history()).to_json())
    sizes = [len(part["data"]) for event in history["events"] for part in _payloads(event)]
    assert sizes and max(sizes) < MAX_PAYLOAD_BYTES


async def test_an_engine_that_is_away_in_the_middle(cluster: Cluster) -> None:
    """A turn that fails is the first of the next activity, so its attempts are its own; the waits
    between them are nothing that the agent spent."""
    left = [3]

    def say(rollout: str, turn: int) -> str:
        if turn == 2 and left[0]:
            left[0] -= 1
            raise EngineUnreachable("no policy engine answered")
        return (bash("true"), bash("true"), FIX, SUBMIT)[turn]

    cluster.policy.say = say
    rollout, result = await cluster.play(turns_per_activity=TOGETHER, rollout_timeout_s=2.0)
    assert (result.stop_reason, result.reward, result.num_turns) == (StopReason.SUBMITTED, 1.0, 4)
    asked = [each for each in cluster.policy.asked if each.startswith(rollout)]
    assert sorted(set(asked)) == [f"{rollout}.t{n}" for n in range(4)]
    assert len(asked) == 7
    assert (await activities_of(cluster, rollout)).count("play_turns") == 2


async def test_an_engine_that_answers_nothing_is_given_up_and_asked_again(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its client's own timeout would come first; this holds where that does not."""
    cluster.policy.say = replies(bash("true"), FIX, SUBMIT)
    held = []

    async def hold(rollout: str) -> None:
        if len(held) < 2 and f"{rollout}.t0" in cluster.policy.asked:
            held.append(rollout)
            await asyncio.Event().wait()

    cluster.policy.hold = hold
    monkeypatch.setattr(playing, "reply_s", lambda request_timeout_s: 0.5)
    _, result = await cluster.play(turns_per_activity=TOGETHER)
    assert (len(held), result.stop_reason, result.reward) == (2, StopReason.SUBMITTED, 1.0)
    assert result.num_turns == 3


async def test_what_it_waits_for_is_seen_while_it_plays(cluster: Cluster) -> None:
    cluster.policy.say = replies(bash("true"), SUBMIT)
    let_go = asyncio.Event()

    async def hold(rollout: str) -> None:
        if f"{rollout}.t0" in cluster.policy.asked:
            await let_go.wait()

    cluster.policy.hold = hold
    campaign, group, [rollout] = await cluster.make_rollouts(turns_per_activity=TOGETHER)
    began = datetime.now(UTC)
    handle = await cluster.start(rollout, campaign, group)

    async def seen() -> bool:
        found = (await handle.describe()).raw_description.pending_activities
        looks = [_pending(handle.id, each, datetime.now(UTC)) for each in found]
        return any(
            look.note == "turn 2: reply" and look.asked_at is not None and look.asked_at > began
            for look in looks
        )

    await until(seen)
    let_go.set()
    assert (await handle.result()).stop_reason is StopReason.SUBMITTED


async def test_a_node_without_the_model_names_itself_and_the_remedy(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    node = cluster.nodes[NODE]
    monkeypatch.setattr(node.served, "_serve", serve_over_http)
    campaign, group, [rollout] = await cluster.make_rollouts(turns_per_activity=TOGETHER)
    await policies.put_first_policy(cluster.db, campaign, str(tmp_path / "model"))
    result = await (await cluster.start(rollout, campaign, group)).result()
    assert (result.stop_reason, result.reward, result.num_turns) == (
        StopReason.INFRA_FAULT,
        None,
        0,
    )
    assert result.broken is not None and result.broken.startswith(FaultKind.MODEL_UNUSABLE)
    for told in (f"node {NODE}", str(tmp_path / "model"), "rollout.turns_per_activity = 1"):
        assert told in result.broken
