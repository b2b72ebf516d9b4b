"""Verifications, evaluations and regrades on real workers: they end, go on, and tell the truth."""

import asyncio
import uuid
from collections import Counter

import pytest
from resetting import reset
from scripted import SUBMIT, bash
from scripted_trainer import Hold, hold_policy, until_reached
from temporalio.client import WorkflowFailureError
from temporalio.contrib.pydantic import pydantic_data_converter
from temporalio.worker import Replayer

from bundled.gold import git_patch
from cli.operations.runs import campaign_launch as launch
from infra.db.plans import run_plans
from infra.db.rollouts import groups, rollouts
from infra.db.runs import campaigns, runs
from infra.db.tasks import tasks
from infra.db.tasks.verifications import faults, verification_of
from mainspring.config.agents.agent import AgentConfig
from mainspring.config.any_run import AnyRun
from mainspring.config.campaign import CampaignConfig
from mainspring.config.evaluations.evaluation import EvalSchedule, EvaluationConfig
from mainspring.config.evaluations.regrade import RegradeConfig
from mainspring.config.evaluations.verification import VerificationConfig
from mainspring.config.policy import PolicyConfig
from mainspring.config.tasks import TasksConfig
from mainspring.errors import UsageError
from mainspring.ids import ROLLOUT_QUEUE, CampaignId, TaskId, campaign_workflow
from mainspring.protocol.names import Workflow
from mainspring.protocol.run import RunState
from mainspring.status import (
    CampaignStatus,
    GroupStatus,
    Player,
    StopReason,
    Unverified,
    Verdict,
    Verification,
)
from mainspring.tasks.swe_task import SweTask
from tests.sandboxed import SANDBOXED
from tests.waiting import until
from workflows.run import RunWorkflow

BUGGY = "def add(a, b):\n    return a - b\n"
FIXED = "def add(a, b):\n    return a + b\n"
FIX = git_patch("calc.py", BUGGY, FIXED)
NO_FIX = git_patch("calc.py", BUGGY, "def add(a, b):\n    return a * b\n")
CHECK = "python3 hidden_test.py"
GAMBLE = "exit $((RANDOM % 2))"


def task(source: str, name: str, gold: str | None = FIX, command: str = CHECK) -> SweTask:
    return SweTask(
        id=TaskId(f"{source}-{name}"),
        source=source,
        split="train",
        issue="add subtracts",
        files={"calc.py": BUGGY},
        tests={"hidden_test.py": "from calc import add\nassert add(2, 3) == 5\n"},
        test_command=command,
        gold_patch=gold,
    )


async def put(cluster, *named: tuple) -> str:
    source = f"s-{uuid.uuid4().hex[:8]}"
    await tasks.put_tasks(cluster.db, [task(source, *each) for each in named])
    return source


def config(
    source: str,
    *,
    unverified: Unverified = Unverified.SKIP,
    concurrency: int = 4,
    samples: int = 1,
    slice: str = "",
) -> EvaluationConfig:
    return EvaluationConfig(
        name=f"r-{uuid.uuid4().hex[:8]}",
        tasks=TasksConfig(source=source, unverified=unverified),
        agent=AgentConfig(step_limit=4, max_format_errors=2),
        policy=PolicyConfig(model="scripted", max_context=100_000, max_new_tokens=1000),
        split="train",
        samples=samples,
        slice=slice,
        concurrency=concurrency,
    )


def verification(source: str, *, samples: int, concurrency: int = 4) -> VerificationConfig:
    return VerificationConfig(
        name=f"v-{uuid.uuid4().hex[:8]}",
        tasks=TasksConfig(source=source),
        policy=PolicyConfig(model="none"),
        split="train",
        samples=samples,
        concurrency=concurrency,
    )


async def start(cluster, wanted: AnyRun):
    campaign = await launch.create(cluster.db, wanted)
    return campaign, await launch.start(cluster.client, cluster.db, campaign)


async def perform(cluster, wanted: AnyRun) -> CampaignId:
    campaign, handle = await start(cluster, wanted)
    await handle.result()
    assert (await campaigns.get(cluster.db, campaign)).status is CampaignStatus.FINISHED
    return campaign


async def total(cluster, campaign: CampaignId) -> int:
    stored = (await campaigns.get(cluster.db, campaign)).config
    assert not isinstance(stored, CampaignConfig)
    return await run_plans.total(cluster.db, stored)


async def test_a_verification_tells_good_tasks_from_others(cluster) -> None:
    source = await put(
        cluster, ("good",), ("wrong", NO_FIX), ("open", FIX, "true"), ("unknown", None)
    )
    campaign = await perform(cluster, verification(source, samples=2))

    found = await verification_of(cluster.db, source, "train")
    assert {id.removeprefix(f"{source}-"): word for id, word in found.items()} == {
        "good": Verification.VERIFIED,
        "wrong": Verification.GOLD_FAILS,
        "open": Verification.EMPTY_PASSES,
        "unknown": Verification.UNVERIFIED,
    }
    [(unknown, fault)] = (await faults(cluster.db, campaign)).items()
    assert unknown == f"{source}-unknown" and "no patch to give" in fault
    played = await rollouts.list_rollouts(cluster.db, campaign=campaign)
    assert Counter(each.player for each in played) == {Player.GOLD: 8, Player.EMPTY: 8}
    assert Counter(each.stop_reason for each in played) == {
        StopReason.GIVEN: 14,
        StopReason.INFRA_FAULT: 2,
    }
    assert all(each.reward is None for each in played if each.fault)
    seen = await runs.tally(cluster.db, campaign)
    assert (seen.num_done, seen.num_resolved, seen.num_masked) == (16, 6, 2)
    assert cluster.policy.asked == []

    # Only what had a fault is done again, and only when that is asked for.
    before = {each.id: each.epoch for each in played if each.fault}
    await (await launch.start(cluster.client, cluster.db, campaign)).result()
    await campaigns.reopen(cluster.db, campaign)
    await (await launch.start(cluster.client, cluster.db, campaign)).result()
    again = await rollouts.list_rollouts(cluster.db, campaign=campaign)
    changed = {each.id: each.epoch for each in again if each not in played}
    assert changed.keys() == before.keys() and set(changed.values()) == {1}

    # What a campaign uses is decided when it is created, whatever comes later.
    training = CampaignConfig(
        name=f"t-{uuid.uuid4().hex[:8]}",
        tasks=TasksConfig(source=source),
        policy=PolicyConfig(model="scripted"),
        evaluation=EvalSchedule(splits=("train",)),
    )
    stored = await launch.create(cluster.db, training)
    assert await launch.left_out(cluster.db, stored) == (
        "3 tasks are excluded: 1 empty passes, 1 gold fails, 1 unverified"
    )
    made = await start(cluster, config(source, samples=3))
    await made[1].cancel()
    assert await total(cluster, made[0]) == 3
    everything = await launch.create(cluster.db, config(source, unverified=Unverified.USE))
    assert await total(cluster, everything) == 4
    with pytest.raises(UsageError, match="verified: 1 gold fails"):
        await launch.create(cluster.db, config(source, slice="1:2"))


async def test_a_flaky_task_is_found_by_a_verification_that_was_cancelled(cluster) -> None:
    source = await put(cluster, ("flaky", FIX, GAMBLE))
    wanted = verification(source, samples=8, concurrency=2)
    campaign, handle = await start(cluster, wanted)

    async def some_are_done() -> bool:
        return (await runs.tally(cluster.db, campaign)).num_resolved >= 2

    await until(some_are_done)
    await handle.cancel()
    with pytest.raises(WorkflowFailureError):
        await handle.result()
    assert (await campaigns.get(cluster.db, campaign)).status is CampaignStatus.CANCELLED
    before = {
        each.id: each.finished_at
        for each in await rollouts.list_rollouts(cluster.db, campaign=campaign)
        if each.stop_reason is StopReason.GIVEN  # not those that were graded and then cancelled
    }
    assert 2 <= len(before) < 16

    assert await perform(cluster, wanted) == campaign
    after = await rollouts.list_rollouts(cluster.db, campaign=campaign)
    assert len(after) == 16 and all(each.verdict for each in after)
    assert {each.id: each.finished_at for each in after if each.id in before} == before
    [group] = await groups.list_groups(cluster.db, campaign)
    assert group.status is GroupStatus.READY
    assert list((await verification_of(cluster.db, source)).values()) == [Verification.FLAKY]


async def test_an_evaluation_goes_on_as_new_and_is_graded_again(
    cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_plans, "MAX_GROUP_SIZE", 2)
    source = await put(cluster, *((f"t{n}",) for n in range(5)))
    solve = bash("sed -i 's/a - b/a + b/' calc.py")

    def say(rollout: str, turn: int) -> str:
        return (solve if rollout.endswith("/000") else bash("true"), SUBMIT)[turn]

    cluster.policy.say = say
    wanted = config(source, samples=2, slice="1:5", unverified=Unverified.USE)
    campaign = await launch.create(cluster.db, wanted)
    handle = await cluster.client.start_workflow(
        Workflow.RUN,
        RunState(campaign=campaign, concurrency=2, summary="parts", rollouts_per_run=3),
        id=campaign_workflow(campaign),
        task_queue=ROLLOUT_QUEUE,
    )
    await handle.result()

    played = await rollouts.list_rollouts(cluster.db, campaign=campaign)
    assert Counter(each.task for each in played) == {f"{source}-t{n}": 2 for n in range(1, 5)}
    ends = Counter(each.verdict for each in played)
    assert ends == {Verdict.RESOLVED: 4, Verdict.NO_PATCH: 4}
    described = await cluster.client.get_workflow_handle(handle.id).describe()
    assert described.run_id != handle.first_execution_run_id
    replayer = Replayer(
        workflows=[RunWorkflow],
        data_converter=pydantic_data_converter,
        workflow_runner=SANDBOXED,
    )
    await replayer.replay_workflow(
        await cluster.client.get_workflow_handle(handle.id, run_id=described.run_id).fetch_history()
    )

    asked = len(cluster.policy.asked)
    again = RegradeConfig(
        name=f"{campaign}-again", policy=wanted.policy, of=campaign, split="train", concurrency=2
    )
    regrade = await perform(cluster, again)
    regraded = await rollouts.list_rollouts(cluster.db, campaign=regrade)
    assert {each.player for each in regraded} == {Player.STORED}
    assert {(each.source_rollout, each.verdict) for each in regraded} == {
        (each.id, each.verdict) for each in played
    }
    assert len(regraded) == len(played) and len(cluster.policy.asked) == asked
    with pytest.raises(UsageError, match="exists, and its kind is regrade"):
        await campaigns.create(cluster.db, wanted.model_copy(update={"name": again.name}))


async def test_a_paused_run_begins_nothing_and_a_terminated_one_is_taken_up(cluster) -> None:
    source = await put(cluster, *((f"t{n}",) for n in range(3)))
    cluster.policy.gate = asyncio.Event()
    wanted = config(source, concurrency=1, unverified=Unverified.USE)
    campaign, handle = await start(cluster, wanted)

    async def one_runs() -> bool:
        return (await runs.tally(cluster.db, campaign)).num_running == 1

    await until(one_runs)
    await handle.execute_update("pause")
    assert (await campaigns.get(cluster.db, campaign)).status is CampaignStatus.PAUSED
    cluster.policy.gate.set()

    async def one_is_done() -> bool:
        return (await runs.tally(cluster.db, campaign)).num_done == 1

    await until(one_is_done)
    await asyncio.sleep(0.5)
    assert (await runs.tally(cluster.db, campaign)).num_running == 0
    await handle.terminate()
    # How many run at once is no part of what a run is; everything else is.
    faster = wanted.model_copy(update={"concurrency": 3})
    assert await launch.create(cluster.db, faster) == campaign
    stored = (await campaigns.get(cluster.db, campaign)).config
    assert stored == faster
    with pytest.raises(UsageError, match=r"agent\.step_limit"):
        other = faster.model_copy(update={"agent": AgentConfig(step_limit=5)})
        await launch.create(cluster.db, other)
    resumed = await launch.start(cluster.client, cluster.db, campaign)
    assert (await resumed.query("progress"))["paused"] is True
    await resumed.execute_update("resume")
    await resumed.result()
    seen = await runs.tally(cluster.db, campaign)
    assert (seen.num_done, seen.num_masked) == (3, 0)


async def test_a_run_that_is_reset_plays_each_rollout_once(cluster) -> None:
    """To its first workflow task and to the newest one, while two of its rollouts are held."""
    cluster.policy.say = lambda rollout, turn: SUBMIT
    for share in (0.0, 1.0):
        source = await put(cluster, *((f"t{n}",) for n in range(3)))
        wanted = config(source, concurrency=2, unverified=Unverified.USE)
        hold = Hold("/r000000")
        hold_policy(cluster, {wanted.name: hold})
        campaign, handle = await start(cluster, wanted)
        await until_reached(hold)
        await reset(cluster, handle, share=share)
        hold.released.set()
        await cluster.client.get_workflow_handle(handle.id).result()
        record = await campaigns.get(cluster.db, campaign)
        assert record.status is CampaignStatus.FINISHED
        played = await rollouts.list_rollouts(cluster.db, campaign=campaign)
        assert [(each.epoch, each.verdict) for each in played] == [(0, Verdict.NO_PATCH)] * 3
