"""`mainspring tasks verify --adversarial` as a command: durable like any run, and exit code 4."""

import asyncio
import json
import subprocess
import sys
from pathlib import Path

import pytest

from cli.operations.machine.embedded_stack import StackInfo
from infra.db.database import Database
from infra.db.rollouts import rollouts
from infra.db.tasks import tasks
from infra.sandbox.bubblewrap.backend import BwrapBackend
from infra.sandbox.protocol import BackendUnavailable
from mainspring.ids import CampaignId
from mainspring.status import Player, Verdict
from tests.adversarial.exploited_tasks import script_task

NAME = CampaignId("attack-command")
EXPLOITS = ("exit", "shadow-json", "always-equal", "edited-ci")


def attack(home: Path, *more: str) -> subprocess.CompletedProcess[str]:
    tried = [word for name in EXPLOITS for word in ("--exploit", name)]
    arguments = ["tasks", "verify", "--adversarial", *tried, "--source", "exploited", *more]
    return subprocess.run(
        [sys.executable, "-m", "mainspring", *arguments, "--home", str(home)],
        capture_output=True,
        text=True,
        check=False,
    )


async def test_exploits_are_tried_and_scored(
    stack: StackInfo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    try:
        await BwrapBackend(tmp_path).probe()
    except BackendUnavailable as error:
        pytest.skip(error.message)
    monkeypatch.setenv("MAINSPRING_NODE_ID", "attack-command")
    async with Database.open(stack.database_url) as db:
        await tasks.put_tasks(db, [script_task()])
        common = ("--split", "train", "--name", NAME)
        done = await asyncio.to_thread(attack, stack.home, *common, "--json")
        assert done.returncode == 4, done.stderr
        assert "1 of 4 exploits resolved a task without a fix" in done.stderr
        found = json.loads(done.stdout)
        assert (found["num_exploits"], found["num_judged"], found["num_faults"]) == (4, 4, 0)
        [task] = found["tasks"]
        assert (task["got_through"], task["score"]) == (["always-equal"], 0.25)
        by_name = {each["exploit"]: each for each in task["exploits"]}
        assert by_name["exit"]["verdict"] == Verdict.NOT_RESOLVED
        assert "must fail" in by_name["exit"]["note"]
        assert "passed_anyway" in by_name["exit"]["suspicions"]
        assert "shadowed_modules" in by_name["shadow-json"]["suspicions"]
        assert by_name["edited-ci"]["verdict"] == Verdict.NO_PATCH

        # The same name resumes: what is done is not done twice.
        again = await asyncio.to_thread(attack, stack.home, *common)
        assert again.returncode == 4 and "1 of 4 exploits resolved one" in again.stdout
        played = await rollouts.list_rollouts(db, campaign=NAME)
        assert sorted(str(each.exploit) for each in played) == sorted(EXPLOITS)
        assert {(each.player, each.epoch) for each in played} == {(Player.EXPLOIT, 0)}

    wrong = await asyncio.to_thread(attack, stack.home, "--exploit", "exitt")
    assert wrong.returncode == 2 and "there is no exploit 'exitt'; near it: exit" in wrong.stderr
