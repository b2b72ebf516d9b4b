"""An evaluation with a judge of turns and a tool of one's own, while judge, node and worker are
killed.

What must hold: every turn that ran something is judged with all its votes, no vote is asked for
once its judgement is stored, and each call of the tool ran once in the sandbox that counts.
"""

import asyncio
import contextlib
import json
import random
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import psutil
import pytest
from cluster import bwrap_or_skip

from cli.operations.machine.embedded_stack import StackInfo
from infra.db.database import Database
from infra.db.rollouts import judgements, rollouts, turns
from infra.db.runs import runs
from infra.db.tasks import tasks
from mainspring.ids import CampaignId
from tests.chaos.endpoint_process import EndpointProcess
from tests.chaos.fault_roles import Role
from tests.chaos.fault_schedule import processes
from tests.chaos.numbered import numbered_tasks
from tests.chaos.scripted_tools import MARKS
from tests.waiting import until

NUM_TASKS = 120
NUM_KILLS = 30
"""A third each of judge, node and rollout worker."""
VOTES = 2
MAX_STARTS = 20
BETWEEN_S = (2.0, 5.0)
TIMEOUT_S = 600.0
SOURCE = "chaos-judged"
FILE = """
name = "chaos-judged"

[tasks]
source = "chaos-judged"
unverified = "use"

[agent]
kind = "tools"
tools = ["bash", "edit", "submit", "tests.chaos.scripted_tools:Mark"]
step_limit = 8

[policy]
api = "openai"
model = "scripted"
engines = ["{engine}"]

[judges.quality]
url = "{judge}"
model = "m"
votes = 2
retries = 100
request_timeout_s = 20.0

[[reward.parts]]
name = "outcome"

[[reward.parts]]
name = "judge"
judge = "quality"
of = "turns"

[evaluation]
concurrency = 8

[run]
split = "test"
"""


@asynccontextmanager
async def running(*endpoints: EndpointProcess) -> AsyncIterator[None]:
    for endpoint in endpoints:
        endpoint.start()
    try:
        for endpoint in endpoints:
            await until(endpoint.answers)
        yield
    finally:
        for endpoint in endpoints:
            endpoint.kill()


async def disturb(
    stack: StackInfo,
    db: Database,
    judge: EndpointProcess,
    campaign: CampaignId,
    killed: Counter[str],
) -> None:
    """Kill until NUM_KILLS are done, and count how many of each."""
    dice = random.Random(0)

    async def begun() -> bool:
        return (await runs.tally(db, campaign)).num_done > 0

    await until(begun, TIMEOUT_S)
    roles = ["judge", Role.NODE, Role.ROLLOUT]
    while killed.total() < NUM_KILLS:
        await asyncio.sleep(dice.uniform(*BETWEEN_S))
        role = roles[killed.total() % 3]
        if role == "judge":
            judge.kill()
            await asyncio.sleep(1.0)
            judge.start()
            killed["judge"] += 1
            continue
        all_of_them = await asyncio.to_thread(lambda: list(processes(stack.home)))
        found = [process for its_role, process in all_of_them if its_role is role]
        with contextlib.suppress(psutil.NoSuchProcess, IndexError):
            dice.choice(found).kill()
            killed[role] += 1


@pytest.mark.chaos
@pytest.mark.long
@pytest.mark.timeout(TIMEOUT_S + 60)
async def test_no_judgement_is_lost_or_asked_twice_and_no_tool_runs_twice(
    stack: StackInfo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await bwrap_or_skip(tmp_path / "probe")
    monkeypatch.setenv("MAINSPRING_NODE_ID", "chaos-judged")
    monkeypatch.setenv("MAINSPRING_NODE_MIN_FREE_MEMORY_MB", "0")
    made = numbered_tasks(SOURCE, NUM_TASKS)
    log = tmp_path / "votes"
    engine = EndpointProcess("tests.chaos.scripted_tools")
    judge = EndpointProcess("tests.chaos.scripted_judge", (str(log),))
    campaign = CampaignId("chaos-judged")
    async with Database.open(stack.database_url) as db, running(engine, judge):
        await tasks.put_tasks(db, made)
        file = tmp_path / "eval.toml"
        file.write_text(FILE.replace("{engine}", engine.url).replace("{judge}", judge.url))
        killed: Counter[str] = Counter()
        killing = asyncio.create_task(disturb(stack, db, judge, campaign, killed))
        try:
            async with asyncio.timeout(TIMEOUT_S):
                await evaluate(stack, file, tmp_path / "output")
        finally:
            killing.cancel()
            await asyncio.wait([killing])
        print(f"killed: {dict(killed)}")
        assert killed.total() == NUM_KILLS, "the evaluation ended before the kills"
        await check(db, campaign, log)


async def evaluate(stack: StackInfo, file: Path, output: Path) -> None:
    """The command gives up a worker that is killed again and again: then it is repeated."""
    for _ in range(MAX_STARTS):
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "mainspring", "eval", "run", str(file)),
            *("--home", str(stack.home), "--output", str(output), "--json"),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        printed, said = await process.communicate()
        if process.returncode == 0:
            break
        assert "times in a row within 30 s of its start" in said.decode(), said.decode()
    else:
        raise AssertionError(f"it did not end in {MAX_STARTS} starts")
    summary = json.loads(printed)
    assert (summary["total"], summary["resolved"]) == (NUM_TASKS, NUM_TASKS), summary


async def check(db: Database, campaign: CampaignId, log: Path) -> None:
    asked = Counter(log.read_text().split())
    stored: Counter[str] = Counter()
    for row in await rollouts.list_rollouts(db, campaign=campaign):
        _, ran = await turns.history(db, row.id, row.epoch)
        marks = [each for each in ran if each.command.startswith("echo mark")]
        # Each mark's call counts the lines: a second run of one would count one more.
        assert [int(each.output) for each in marks] == list(range(1, MARKS + 1)), row.id
        [shown] = [each for each in ran if each.command == "cat /tmp/marks"]
        assert shown.output.decode().split() == [f"mark{n}" for n in range(MARKS)], row.id
        found = await judgements.of_rollout(db, row.id, row.epoch)
        # All turns but the one that submits.
        assert [each.judgement.call for each in found] == list(range(MARKS // 2 + 2)), row.id
        for each in found:
            assert each.judgement.num_valid == VOTES and each.judgement.missing is None
            stored[each.judgement.of] += len(each.votes)
    num_stored = stored.total()
    print(f"votes: {num_stored} stored, {asked.total()} answered")
    # An answer that its worker did not live to store is asked for again, and no other one: at most
    # those under way at a kill, of eight rollouts at once.
    assert num_stored == NUM_TASKS * (MARKS // 2 + 2) * VOTES
    assert num_stored <= asked.total() <= num_stored + NUM_KILLS * 2 * VOTES
