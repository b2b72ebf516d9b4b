"""`mainspring tasks verify` with processes of its own: killed, interrupted, and taken up again."""

import asyncio
import json
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path

import psutil
import pytest

from bundled.gold import make_gold_tasks
from cli.operations.machine.embedded_stack import StackInfo
from infra.db.database import Database
from infra.db.rollouts import rollouts
from infra.db.runs import campaigns, runs
from infra.db.tasks import tasks
from infra.sandbox.bubblewrap.backend import BwrapBackend
from infra.sandbox.protocol import BackendUnavailable
from mainspring.ids import CampaignId
from mainspring.status import CampaignStatus
from tests.processes import words
from tests.waiting import until

SOURCE = "verify-command"
NAME = CampaignId("verify-command-run")
NUM_TASKS = 8
NO_SUCH_FILE = "diff --git a/no b/no\n--- a/no\n+++ b/no\n@@ -1 +1 @@\n-a\n+b\n"


def verify(
    home: Path, *more: str, of: tuple[str, ...] = ("--source", SOURCE)
) -> subprocess.Popen[str]:
    arguments = ["tasks", "verify", *of, "--name", NAME, "--home", str(home)]
    return subprocess.Popen(
        [sys.executable, "-m", "mainspring", *arguments, "--concurrency", "4", *more],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # Whoever runs the tests in the background has made them deaf to it.
        preexec_fn=partial(signal.signal, signal.SIGINT, signal.default_int_handler),
    )


async def test_a_verification_survives_its_worker_and_its_command(
    stack: StackInfo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    try:
        await BwrapBackend(tmp_path).probe()
    except BackendUnavailable as error:
        pytest.skip(error.message)
    monkeypatch.setenv("MAINSPRING_NODE_ID", "verify-command")
    async with Database.open(stack.database_url) as db:
        made = make_gold_tasks(1, SOURCE, NUM_TASKS)
        # Slow enough to be interrupted before the last.
        slow = [
            task.model_copy(update={"test_command": f"sleep 1; {task.test_command}"})
            for task in made
        ]
        broken = slow[0].model_copy(update={"id": "broken", "test_patch": NO_SUCH_FILE})
        await tasks.put_tasks(db, [*slow, broken])

        def worker(of: subprocess.Popen[str]) -> psutil.Process | None:
            children = psutil.Process(of.pid).children(recursive=True)
            return next((each for each in children if "rollout" in words(each)), None)

        async def done(number: int) -> bool:
            return (await runs.tally(db, NAME)).num_done >= number

        first = verify(stack.home)
        try:
            await until(lambda: done(2))
            killed = worker(first)
            assert killed is not None
            killed.kill()
            first.send_signal(signal.SIGINT)
            said = "".join(await asyncio.to_thread(first.communicate))
        finally:
            first.kill()
        assert first.returncode == 130, said
        assert "interrupted: stopping the processes" in said
        assert f"run `mainspring tasks verify --name {NAME} --home {stack.home}`" in said
        assert (await campaigns.get(db, NAME)).status is CampaignStatus.RUNNING
        assert not await done(2 * NUM_TASKS)

        # Its name alone resumes it.
        second = verify(stack.home, "--json", of=())
        printed, said = await asyncio.to_thread(second.communicate)
        assert second.returncode == 4, said
        assert f"1 of {NUM_TASKS + 1} tasks could not be graded" in said
        found = json.loads(printed)
        assert (found["counts"]["verified"], found["counts"]["unverified"]) == (NUM_TASKS, 1)
        assert "its test patch does not apply" in found["not_verified"]["broken"]["fault"]
        played = await rollouts.list_rollouts(db, campaign=NAME)
        # One life each: nobody's death made a patch be graded twice.
        assert [each.epoch for each in played] == [0] * 2 * (NUM_TASKS + 1)
