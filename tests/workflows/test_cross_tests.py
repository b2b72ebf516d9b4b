"""Best of n by tests of all candidates, on real workers and in real sandboxes."""

from pathlib import Path

import pytest
from cross_tested import (
    STRICT,
    evaluation,
    is_of_cross_test,
    put_task,
    right,
    saying,
    writes,
    wrong,
)
from scripted import SUBMIT, bash

from activities import cross_testing
from cli.eval.eval_screen import print_summary
from cli.operations.runs import campaign_launch as launch
from infra.db.fence import Fenced
from infra.db.nodes import sandboxes
from infra.db.rollouts import cross_tests, rollouts
from infra.db.runs import campaigns
from infra.db.tasks import tasks
from infra.environments import swe
from infra.environments.written_test import NOT_APPLIED
from infra.sandbox.protocol import Sandbox
from mainspring.config.agents.agent import AgentConfig
from mainspring.errors import UsageError
from mainspring.ids import SandboxId, TaskId, campaign_id
from mainspring.rewards.written_tests import WrittenTest
from mainspring.status import CampaignStatus
from mainspring.tasks.own_task import OwnTask
from mainspring.tasks.sandbox_choice import BWRAP
from reports.export.evaluation import write_evaluation


async def test_the_right_candidate_is_chosen_by_the_test_of_another(
    cluster, tmp_path: Path
) -> None:
    cluster.policy.say = saying()
    campaign = await launch.create(cluster.db, evaluation(await put_task(cluster.db)))
    handle = await launch.start(cluster.client, cluster.db, campaign)
    await handle.result()
    assert (await campaigns.get(cluster.db, campaign)).status is CampaignStatus.FINISHED

    summary = await write_evaluation(cluster.db, campaign, tmp_path)
    assert summary["chosen_by"] == "cross_tests"
    # Of the first sample alone its wrong patch; of two, the weak test tells nothing; of all, the
    # right one, though two of three are wrong alike.
    assert [each["value"] for each in summary["chosen_at_n"]] == [0.0, 0.0, 1.0]
    assert all(each["low"] < each["high"] for each in summary["chosen_at_n"])
    assert summary["cross_tests"] == {
        "tasks": 1,
        "tasks_without_tests": 0,
        "tasks_by_majority": 0,
        "reproducing": 2,
        "regression": 0,
        "failing": 0,
        "not_compared": 0,
        "without_command": 0,
    }
    played = await rollouts.list_rollouts(cluster.db, campaign=campaign)
    found = [await cross_tests.results(cluster.db, each.id, each.epoch) for each in played]
    exits = [[(each.without_patch, each.exit_code) for each in of_one] for of_one in found]
    assert [sorted(of_one) for of_one in exits] == [
        [(False, 0), (False, 1), (True, 1)],
        [(False, 0), (False, 0)],
        [(False, 0), (False, 1), (True, 1)],
    ]
    leases = [
        lease
        for each in played
        for lease in await sandboxes.rollout_leases(cluster.db, each.id)
        if is_of_cross_test(lease)
    ]
    assert len(leases) == 8 and all(lease.closed_at for lease in leases)
    assert await cluster.open_sandboxes() == []

    # What is stored is not run again.
    await campaigns.reopen(cluster.db, campaign)
    await (await launch.start(cluster.client, cluster.db, campaign)).result()
    again = [await sandboxes.rollout_leases(cluster.db, each.id) for each in played]
    assert [lease for of_one in again for lease in of_one if lease in leases] == leases
    assert sum(map(len, again)) == 8 + 3 + 3


async def test_without_a_test_the_majority_chooses_and_that_is_told(
    cluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster.policy.say = lambda rollout, turn: (
        SUBMIT if turn else right() if rollout.endswith("/001") else wrong()
    )
    campaign = await launch.create(cluster.db, evaluation(await put_task(cluster.db)))
    await (await launch.start(cluster.client, cluster.db, campaign)).result()
    summary = await write_evaluation(cluster.db, campaign, tmp_path)
    assert [each["value"] for each in summary["chosen_at_n"]] == [0.0, 0.0, 0.0]
    told = summary["cross_tests"]
    assert (told["tasks_by_majority"], told["tasks_without_tests"]) == (1, 1)
    print_summary(summary, tmp_path)
    assert "majority   chose for 1 of 1 tasks" in capsys.readouterr().out


@pytest.mark.parametrize("is_lasting", [False, True])
async def test_a_lost_sandbox_is_no_failed_test(
    cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_lasting: bool
) -> None:
    """Only that of the strict test with the right patch is lost: once, or each time."""
    run, lost = swe.run_written, []

    async def losing(sandbox: Sandbox, program: bytes, test: WrittenTest, timeout_s: float):
        if b"a + b" in program and b"2, 3" in test.patch and (is_lasting or not lost):
            lost.append(test)
            await sandbox.close()
        return await run(sandbox, program, test, timeout_s)

    monkeypatch.setattr(swe, "run_written", losing)
    monkeypatch.setattr(cross_testing, "MAX_ATTEMPTS", 3)
    cluster.policy.say = saying()
    campaign = await launch.create(cluster.db, evaluation(await put_task(cluster.db)))
    await (await launch.start(cluster.client, cluster.db, campaign)).result()
    summary = await write_evaluation(cluster.db, campaign, tmp_path)
    assert len(lost) == (3 if is_lasting else 1)
    told = summary["cross_tests"]
    assert (told["reproducing"], told["not_compared"]) == ((1, 1) if is_lasting else (2, 0))
    # Without the strict test all pass as many, and the majority is wrong.
    assert summary["chosen_at_n"][-1]["value"] == (0.0 if is_lasting else 1.0)
    assert await cluster.open_sandboxes() == []


async def test_tests_are_bounded_and_sealed_and_a_patch_does_not_get_rid_of_them(
    cluster, tmp_path: Path
) -> None:
    """Sample 0 has a folder where the strict test of sample 2 goes; sample 1 looks for the hidden
    test; sample 2 has a test that does not end, and one more than is taken of a rollout."""
    sealed = "import os\nassert not os.path.exists('hidden_test.py'), os.listdir()\n"
    by_sample = {
        "000": (wrong(), bash("mkdir test_strict.py; echo a >test_strict.py/a"), SUBMIT),
        "001": (right(), writes("test_sealed.py", sealed), SUBMIT),
        "002": (
            bash("echo 'more = 1' >>calc.py"),
            writes("test_strict.py", STRICT),
            bash("echo 'import time; time.sleep(60)' >test_a.py; cp test_a.py test_z.py"),
            bash("timeout 0.1 python3 test_a.py; timeout 0.1 python3 test_z.py"),
            SUBMIT,
        ),
    }
    cluster.policy.say = lambda rollout, turn: by_sample[rollout.rpartition("/")[2]][turn]
    wanted = evaluation(await put_task(cluster.db))
    assert wanted.choose is not None
    choose = wanted.choose.model_copy(update={"test_timeout_s": 1.0})
    agent = wanted.agent.model_copy(update={"step_limit": 6})
    wanted = wanted.model_copy(update={"choose": choose, "agent": agent})
    campaign = await launch.create(cluster.db, wanted)
    await (await launch.start(cluster.client, cluster.db, campaign)).result()
    summary = await write_evaluation(cluster.db, campaign, tmp_path)
    told = summary["cross_tests"]
    kinds = ("reproducing", "regression", "failing", "not_compared", "without_command")
    assert [told[kind] for kind in kinds] == [1, 1, 1, 0, 0]
    assert summary["chosen_at_n"][-1]["value"] == 1.0
    blocking, _, own = await rollouts.list_rollouts(cluster.db, campaign=campaign)
    found = await cross_tests.results(cluster.db, blocking.id, blocking.epoch)
    # The folder keeps out all that its author changed among tests.
    assert sorted(each.exit_code or 0 for each in found) == [0, NOT_APPLIED, NOT_APPLIED]
    mine = await cross_tests.results(cluster.db, own.id, own.epoch)
    assert "did not end within 1 s" in {each.note for each in mine}


async def test_the_reaper_leaves_such_a_sandbox_until_its_run_has_ended(cluster) -> None:
    cluster.policy.say = lambda rollout, turn: SUBMIT
    campaign = await launch.create(cluster.db, evaluation(await put_task(cluster.db)))
    await (await launch.start(cluster.client, cluster.db, campaign)).result()
    [rollout, *_] = await rollouts.list_rollouts(cluster.db, campaign=campaign)
    sandbox = SandboxId(f"{campaign}.left")
    node = next(iter(cluster.nodes))

    async def is_left() -> bool:
        found = await sandboxes.leases_without_live_rollout(cluster.db, node)
        return sandbox in {lease.sandbox for lease in found}

    await campaigns.reopen(cluster.db, campaign)
    await campaigns.resume(cluster.db, campaign)
    await sandboxes.open_cross_lease(
        cluster.db, sandbox, rollout.id, rollout.epoch, node=node, backend=BWRAP
    )
    assert not await is_left()
    await campaigns.set_status(cluster.db, campaign, CampaignStatus.CANCELLED)
    assert await is_left()
    await cluster.reaper.reap()
    assert not await is_left()
    with pytest.raises(Fenced):
        await sandboxes.open_cross_lease(
            cluster.db, sandbox, rollout.id, rollout.epoch + 1, node=node, backend=BWRAP
        )
    late = cross_tests.StoredCrossTest("d", False, 0)
    with pytest.raises(Fenced):
        await cross_tests.put(cluster.db, rollout.id, rollout.epoch + 1, late)


async def test_tasks_without_a_repository_are_refused(cluster) -> None:
    source = f"{await put_task(cluster.db)}-sums"
    asked = OwnTask(
        id=TaskId(f"{source}-1"),
        source=source,
        split="train",
        kind="answer",
        issue="2 + 3?",
        data={"answers": ["5"]},
    )
    await tasks.put_tasks(cluster.db, [asked])
    wanted = evaluation(source)
    agent = AgentConfig(kind="single", single="text")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match=r"kind 'answer'.*'cross_tests'"):
        await launch.create(cluster.db, wanted.model_copy(update={"agent": agent}))
    assert await campaigns.find(cluster.db, campaign_id(wanted.name)) is None
