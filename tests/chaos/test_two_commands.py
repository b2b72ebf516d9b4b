"""Two commands with one home share one node, which outlives the one that started it."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from bundled.gold import make_gold_tasks
from cli.operations.machine.embedded_stack import temporary
from infra.db.database import Database
from infra.db.nodes import nodes
from infra.db.rollouts import rollouts
from infra.db.runs import runs
from infra.db.tasks import tasks
from infra.sandbox.bubblewrap.backend import BwrapBackend
from infra.sandbox.protocol import BackendUnavailable
from mainspring.ids import CampaignId, NodeId
from mainspring.status import NodeStatus
from node.lock import NodeLock
from tests.waiting import until

NUM_TASKS = 4
NODE = NodeId("shared")
ENVIRONMENT = {
    **{k: v for k, v in os.environ.items() if not k.startswith("MAINSPRING_")},
    "MAINSPRING_NODE_ID": NODE,
    "MAINSPRING_NODE_MIN_FREE_MEMORY_MB": "0",
}


def start(home: Path, *words: str, log: Path | None = None) -> subprocess.Popen[str]:
    with log.open("a") if log else open(os.devnull, "a") as file:
        return subprocess.Popen(
            [sys.executable, "-m", "mainspring", "--home", str(home), *words],
            stdout=subprocess.PIPE if log is None else file,
            stderr=subprocess.PIPE if log is None else file,
            text=True,
            env=ENVIRONMENT,
        )


def events(log: Path) -> list[str]:
    return [json.loads(line)["event"] for line in log.read_text().splitlines() if line[:1] == "{"]


@pytest.fixture(autouse=True)
async def needs_bubblewrap(tmp_path: Path) -> None:
    try:
        await BwrapBackend(tmp_path).probe()
    except BackendUnavailable as error:
        pytest.skip(error.message)


@pytest.mark.chaos
@pytest.mark.timeout(900)
async def test_two_verifications_at_once_and_the_first_is_killed() -> None:
    async with temporary("mainspring-both-") as info, Database.open(info.database_url) as db:
        names = [CampaignId("both-one"), CampaignId("both-two")]
        for number, name in enumerate(names):
            made = make_gold_tasks(number, name, NUM_TASKS)
            slow = [
                task.model_copy(
                    update={"id": f"{name}-{n}", "test_command": f"sleep 2; {task.test_command}"}
                )
                for n, task in enumerate(made)
            ]
            await tasks.put_tasks(db, slow)

        def verify(name: CampaignId) -> subprocess.Popen[str]:
            words = ("tasks", "verify", "--source", name, "--name", name)
            return start(info.home, *words, "--concurrency", "2", "--json")

        async def done(name: CampaignId, number: int) -> bool:
            return (await runs.tally(db, name)).num_done >= number

        # Neither has a node yet when it looks for one.
        first, second = map(verify, names)
        try:
            await until(lambda: done(names[0], 2))
            await until(lambda: done(names[1], 2))
            first.send_signal(signal.SIGKILL)
            printed, said = await asyncio.to_thread(second.communicate)
        finally:
            for command in (first, second):
                command.kill()
                command.wait()
        assert second.returncode == 0, said
        assert json.loads(printed)["counts"]["verified"] == NUM_TASKS
        played = await rollouts.list_rollouts(db, campaign=names[1])
        assert {(each.epoch, each.fault) for each in played} == {(0, None)}
        assert "reaped" not in events(info.home / "logs" / "sandbox.log")
        await until(lambda: not NodeLock(info.home, NODE).is_held())


@pytest.mark.chaos
@pytest.mark.timeout(600)
async def test_a_second_node_of_one_name_waits_and_takes_over(tmp_path: Path) -> None:
    async with temporary("mainspring-both-") as info:
        logs = [tmp_path / "one.log", tmp_path / "two.log"]
        first = start(info.home, "worker", "sandbox", log=logs[0])
        second: subprocess.Popen[str] | None = None
        try:
            await until(lambda: "node is up" in events(logs[0]))
            second = start(info.home, "worker", "sandbox", log=logs[1])
            lock = NodeLock(info.home, NODE)
            await until(lock.is_awaited)
            assert lock.holder() == first.pid
            assert events(logs[1]) == ["another process is this node: waiting until it ends"]
            first.kill()
            await until(lambda: "node is up" in events(logs[1]))
            assert lock.holder() == second.pid and lock.is_held() and not lock.is_awaited()
            async with Database.open(info.database_url) as db:
                second.terminate()
                assert await asyncio.to_thread(second.wait, 120) == 0
                [record] = await nodes.list_nodes(db)
                assert (record.status, record.num_open) == (NodeStatus.STOPPED, 0)
        finally:
            for process in (first, second):
                if process is not None:
                    process.kill()
                    process.wait()
        await until(lambda: not lock.is_held())
