"""`mainspring rollout retry` as it is typed: by id, by a filter, and what it says to bad input."""

import asyncio
import json
import subprocess
import sys

from cluster import Cluster
from scripted import SUBMIT, bash
from scripted_trainer import Hold, until_reached
from test_group_reset import start_group
from test_runs import config, put, start
from typer.testing import CliRunner, Result

from cli.main import app
from cli.operations.machine.embedded_stack import StackInfo
from infra.db.rollouts import rollouts
from infra.db.rollouts.rollouts import RolloutRecord
from infra.db.runs import campaigns
from mainspring.errors import MainspringError
from mainspring.ids import CampaignId, GroupId
from mainspring.status import CampaignStatus, GroupStatus, Unverified, Verdict
from tests.waiting import until

FIX = bash("echo 'def add(a, b): return a + b' > calc.py")


async def retry(stack: StackInfo, *words: str) -> Result:
    """In a thread, as on the command line: no event loop of ours around it."""
    typed = ["rollout", "retry", *words, "--home", str(stack.home)]
    return await asyncio.to_thread(CliRunner().invoke, app, typed)


def refusal(result: Result) -> MainspringError:
    assert isinstance(result.exception, MainspringError), (result.output, result.exception)
    assert result.exception.exit_code == 2 and result.exception.remedy
    return result.exception


async def stored(cluster: Cluster, campaign: CampaignId) -> dict[str, RolloutRecord]:
    """By the last word of the task's id."""
    listed = await rollouts.list_rollouts(cluster.db, campaign=campaign)
    return {each.task.rpartition("-")[2]: each for each in listed}


async def finished_run(cluster: Cluster, *names: str) -> CampaignId:
    """An evaluation in which every rollout gave up."""
    source = await put(cluster, *((name,) for name in names))
    cluster.policy.say = lambda rollout, turn: SUBMIT
    wanted = config(source, unverified=Unverified.USE)
    campaign, handle = await start(cluster, wanted)
    await handle.result()
    return campaign


async def test_a_rollout_under_way_begins_again(cluster: Cluster, stack: StackInfo) -> None:
    hold = Hold("/001")
    handle, name = await start_group(cluster, hold)
    group = GroupId(name)
    await until_reached(hold)
    [_, held] = await rollouts.list_rollouts(cluster.db, group=group)
    # Also by its name in Temporal; named twice, it is retried once.
    done = await retry(stack, held.id, f"rollout/{held.id}")
    assert done.exit_code == 0, done.exception
    assert done.stdout == f"{held.id} is retried\n"

    async def begun() -> bool:
        return (await rollouts.get(cluster.db, held.id)).attempts == 2

    await until(begun)
    hold.released.set()
    assert (await handle.result()).status is GroupStatus.READY
    played = await rollouts.list_rollouts(cluster.db, group=group)
    assert [(each.attempts, each.reward) for each in played] == [(1, 1.0), (2, 0.0)]
    # Now it is final.
    error = refusal(await retry(stack, held.id))
    assert "1 of 1 rollouts are final" in error.message and held.id in error.message
    error = refusal(await retry(stack, "--campaign", held.campaign, "--where", "task is not null"))
    assert "2 of 2 rollouts are final" in error.message
    assert await rollouts.list_rollouts(cluster.db, group=group) == played


async def test_what_a_filter_finds_is_played_again_and_nothing_else(
    cluster: Cluster, stack: StackInfo
) -> None:
    campaign = await finished_run(cluster, "one", "two", "three")
    before = await stored(cluster, campaign)
    assert {each.verdict for each in before.values()} == {Verdict.NO_PATCH}
    cluster.policy.say = lambda rollout, turn: (FIX, SUBMIT)[turn]
    where = "verdict = no_patch and task contains 't' and task != '{}'"
    where = where.format(before["three"].task)
    done = await retry(stack, "--campaign", campaign, "--where", where, "--json")
    assert done.exit_code == 0, done.exception
    again = sorted(each.id for name, each in before.items() if "t" in each.task and name != "three")
    assert json.loads(done.stdout) == {
        "reset": [],
        "returned": again,
        "waiting": [],
        "final": [],
        "restarted": [campaign],
        "kinds": {campaign: "eval"},
    }

    async def finished() -> bool:
        return (await campaigns.get(cluster.db, campaign)).status is CampaignStatus.FINISHED

    await until(finished)
    after = await stored(cluster, campaign)
    for name, each in after.items():
        if each.id in again:
            assert (each.verdict, each.attempts) == (Verdict.RESOLVED, 2)
        else:
            assert each == before[name]
    # What the filter asked for is there no more.
    nothing = await retry(stack, "--campaign", campaign, "--where", where)
    assert (nothing.exit_code, nothing.stdout) == (0, "no rollout matches\n")
    nothing = await retry(stack, "--campaign", campaign, "--where", "fault is not null", "--json")
    assert json.loads(nothing.stdout)["returned"] == []
    assert await stored(cluster, campaign) == after


async def test_bad_input_is_named_and_nothing_is_retried(
    cluster: Cluster, stack: StackInfo
) -> None:
    campaign = await finished_run(cluster, "one")
    before = await stored(cluster, campaign)
    good = before["one"].id
    nowhere = f"{campaign}/run000000/999"
    choose = ("--campaign", campaign, "--where")
    for words, message, remedy in (
        ((good, nowhere), f"no rollout {nowhere} is stored", f"rollout list {campaign}"),
        (("nobody/g000000/000",), "no rollout nobody/g000000/000", "rollout list CAMPAIGN"),
        (("--campaign", "nobody", "--failed"), "no campaign nobody", "campaign list"),
        (("--campaign", campaign), "would retry all its rollouts", "--where"),
        ((good, *choose, "split = 'train'"), "ids of rollouts, or --campaign", "one of the two"),
        ((), "ids of rollouts, or --campaign", "one of the two"),
        ((*choose, ""), "no condition", "fault is not null"),
        ((*choose, "verdict = solved"), "'solved' is not a verdict", "not_resolved"),
        ((*choose, "reward = 1"), "'reward' is not a field", "verdict, stop, fault"),
        ((*choose, "stop = given or split = 'a'"), 'expected `and` at "or split', "write for"),
    ):
        error = refusal(await retry(stack, *words))
        assert message in error.message and remedy in error.remedy, words
    assert await stored(cluster, campaign) == before


def test_a_malformed_filter_needs_no_services(tmp_path) -> None:
    """And ends the process with the code for bad input, without a traceback."""
    typed = ["rollout", "retry", "--campaign", "c", "--where", "fault", "--home", str(tmp_path)]
    ended = subprocess.run(
        [sys.executable, "-m", "mainspring", *typed], capture_output=True, text=True
    )
    assert ended.returncode == 2 and ended.stdout == ""
    assert ended.stderr.startswith("error: --where 'fault': no condition at 'fault'\n")
