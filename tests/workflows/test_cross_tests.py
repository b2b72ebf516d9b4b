"""Best of n by tests of all candidates, on real workers and in real sandboxes."""

from pathlib import Path

import pytest
from cross_tested import evaluation, put_task, right, saying, wrong
from scripted import SUBMIT

from cli.operations.runs import campaign_launch as launch
from infra.db.nodes import sandboxes
from infra.db.rollouts import cross_tests, rollouts
from infra.db.runs import campaigns
from infra.db.tasks import tasks
from mainspring.errors import UsageError
from mainspring.ids import TaskId
from mainspring.status import CampaignStatus, SandboxPurpose
from mainspring.tasks.own_task import OwnTask
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
        if lease.purpose is SandboxPurpose.CROSS_TEST
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
    cluster, tmp_path: Path
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


async def test_tasks_without_a_repository_are_refused(cluster) -> None:
    source = await put_task(cluster.db)
    asked = OwnTask(
        id=TaskId(f"{source}-sum"),
        source=source,
        split="train",
        kind="answer",
        issue="2 + 3?",
        data={"answers": ["5"]},
    )
    await tasks.put_tasks(cluster.db, [asked])
    wanted = evaluation(source)
    with pytest.raises(UsageError, match=r"kind 'answer'.*'cross_tests'"):
        await launch.create(
            cluster.db,
            wanted.model_copy(update={"agent": wanted.agent.model_copy(update={"kind": "single"})}),
        )
    assert await campaigns.find(cluster.db, wanted.name) is None
