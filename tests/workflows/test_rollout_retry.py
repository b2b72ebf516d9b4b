"""Resets and retries: the group follows the new run, final ones are refused, phases are true."""

import asyncio

import pytest
from cluster import Cluster
from scripted import SUBMIT, bash
from scripted_trainer import Hold, until_reached
from test_group_reset import start_group
from test_runs import config, put, start

from cli.operations.runs.retrying import reset, retry
from infra.db.rollouts import rollouts
from infra.db.runs import campaigns
from mainspring.errors import EngineError, UsageError
from mainspring.ids import GroupId, rollout_workflow
from mainspring.status import (
    CampaignStatus,
    GroupStatus,
    RolloutPhase,
    StopReason,
    Unverified,
    Verdict,
)
from tests.waiting import until
from workflows import search

SLOW_FIX = bash("printf 'import time\\ntime.sleep(3)\\ndef add(a, b): return a + b\\n' > calc.py")


async def test_phases_are_stored_as_they_happen(cluster: Cluster) -> None:
    said = [SLOW_FIX, SUBMIT]
    cluster.policy.say = lambda rollout, turn: said[turn]
    cluster.policy.gate = asyncio.Event()
    campaign, group, [rollout] = await cluster.make_rollouts()
    assert (await cluster.row(rollout)).phase is RolloutPhase.STARTING
    handle = await cluster.start(rollout, campaign, group)

    async def phase(wanted: RolloutPhase) -> None:
        async def is_so() -> bool:
            return (await cluster.row(rollout)).phase is wanted

        await until(is_so)

    await phase(RolloutPhase.RUNNING)
    cluster.policy.gate.set()
    await phase(RolloutPhase.GRADING)
    assert (await handle.result()).reward == 1.0
    assert (await cluster.row(rollout)).phase is RolloutPhase.DONE
    described = await handle.describe()
    assert await described.memo_value("verdict") == "resolved"
    assert await described.memo_value("reward") == 1.0


async def test_a_fault_can_be_found_in_temporal(cluster: Cluster) -> None:
    def refused(rollout: str, turn: int) -> str:
        raise EngineError("too long")

    cluster.policy.say = refused
    rollout, result = await cluster.play()
    assert result.fault is not None and "PolicyRefused" in result.fault
    described = await cluster.client.get_workflow_handle(rollout_workflow(rollout)).describe()
    found = described.typed_search_attributes
    assert (found.get(search.FAULT), found.get(search.NUM_TURNS)) == ("PolicyRefused", 0)


async def test_a_rollout_that_is_reset_twice_stays_in_its_group(cluster: Cluster) -> None:
    hold = Hold("/001")
    handle, name = await start_group(cluster, hold)
    group = GroupId(name)
    await until_reached(hold)
    [_, held] = await rollouts.list_rollouts(cluster.db, group=group)
    for attempts in (2, 3):
        hold.reached.clear()
        assert (await retry(cluster.client, cluster.db, [held.id])).reset == [held.id]

        async def begun(wanted: int = attempts) -> bool:
            return (await rollouts.get(cluster.db, held.id)).attempts == wanted

        await until(begun)
        # It begins in its first workflow task; before the end of that it cannot be reset.
        await until_reached(hold)
    hold.released.set()
    assert (await handle.result()).status is GroupStatus.READY
    played = await rollouts.list_rollouts(cluster.db, group=group)
    assert [(each.attempts, each.reward) for each in played] == [(1, 1.0), (3, 0.0)]


async def test_a_rollout_of_a_closed_group_is_final(cluster: Cluster) -> None:
    handle, name = await start_group(cluster, Hold("nowhere"))
    group = GroupId(name)
    assert (await handle.result()).status is GroupStatus.READY
    before = await rollouts.list_rollouts(cluster.db, group=group)
    described = await cluster.client.get_workflow_handle(rollout_workflow(before[0].id)).describe()
    assert await described.static_summary() == "000"
    about = await described.static_details()
    assert about and str(group) in about and f"`mainspring rollout retry {before[0].id}`" in about
    assert described.typed_search_attributes.get(search.VERDICT) == before[0].verdict
    with pytest.raises(UsageError, match=f"final.*{before[0].id}"):
        await retry(cluster.client, cluster.db, [before[0].id])
    # The same by hand in Temporal's UI.
    assert await reset(cluster.client, before[0].id)
    again = cluster.client.get_workflow_handle(rollout_workflow(before[0].id))
    assert (await again.result())["stop_reason"] == StopReason.SUBMITTED
    outcome = await (await again.describe()).memo_value("outcome")
    assert outcome.startswith("nothing done: ") and "is ready" in outcome
    assert await rollouts.list_rollouts(cluster.db, group=group) == before


async def test_rollouts_of_a_finished_run_are_played_again(cluster: Cluster) -> None:
    source = await put(cluster, ("one",), ("two",))
    cluster.policy.say = lambda rollout, turn: SUBMIT
    campaign, handle = await start(cluster, config(source, unverified=Unverified.USE))
    await handle.result()
    first, second = await rollouts.list_rollouts(cluster.db, campaign=campaign)
    assert first.verdict is Verdict.NO_PATCH
    fix = bash("echo 'def add(a, b): return a + b' > calc.py")
    cluster.policy.say = lambda rollout, turn: (fix, SUBMIT)[turn]
    done = await retry(cluster.client, cluster.db, [first.id])
    assert (done.returned, done.restarted) == ([first.id], [campaign])

    async def finished() -> bool:
        return (await campaigns.get(cluster.db, campaign)).status is CampaignStatus.FINISHED

    await until(finished)
    now = await rollouts.get(cluster.db, first.id)
    assert (now.verdict, now.attempts) == (Verdict.RESOLVED, 2)
    assert await rollouts.get(cluster.db, second.id) == second
