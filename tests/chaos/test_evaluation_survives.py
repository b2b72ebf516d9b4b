"""`mainspring eval run` under kills, of tasks whose verdicts are known: each is fixed or it is not.

A tenth of the sandboxes are killed while they work, and the engine dies twice. What must hold: its
own verdict for every task, every rollout scored, and each command started once in each sandbox.
"""

import asyncio
import contextlib
import json
import random
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest
from cluster import bwrap_or_skip

from cli.operations.machine.embedded_stack import StackInfo
from infra.db.database import Database
from infra.db.runs import runs
from infra.db.tasks import tasks
from mainspring.ids import CampaignId
from tests.chaos.endpoint_process import EndpointProcess
from tests.chaos.numbered import numbered_tasks
from tests.waiting import until

NUM_TASKS = 40
NUM_SANDBOX_KILLS = NUM_TASKS // 10
ENGINE_DEATHS_AT = (NUM_TASKS // 4, NUM_TASKS // 2)
"""Finished rollouts at which the engine is killed."""
ENGINE_DOWN_S = 3.0
TIMEOUT_S = 400.0
SOURCE = "chaos-evaluation"


@asynccontextmanager
async def engine_running() -> AsyncIterator[EndpointProcess]:
    engine = EndpointProcess("tests.chaos.scripted_engine")
    engine.start()
    try:
        await until(engine.answers)
        yield engine
    finally:
        engine.kill()


async def evaluate(
    stack: StackInfo, engine: EndpointProcess, name: str, output: Path
) -> dict[str, Any]:
    """The command to its end; results by task."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "mainspring", "eval", "run", "--source", SOURCE),
        *("--split", "test", "--unverified", "use", "--api", "openai", "--model", "scripted"),
        *("--base-url", engine.url, "--concurrency", "8", "--name", name),
        *("--home", str(stack.home), "--output", str(output), "--json"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    printed, said = await process.communicate()
    assert process.returncode == 0, said.decode()
    summary = json.loads(printed)
    assert (summary["total"], summary["scored"]) == (NUM_TASKS, NUM_TASKS), summary
    lines = (output / "results.jsonl").read_text().splitlines()
    return {line["instance_id"]: line for line in map(json.loads, lines)}


async def disturb(
    stack: StackInfo, db: Database, engine: EndpointProcess, campaign: CampaignId
) -> int:
    """Kill while the evaluation runs; the number of sandboxes that were killed."""
    dice = random.Random(0)
    num_killed = 0
    deaths = list(ENGINE_DEATHS_AT)
    kill_at = [round((n + 0.5) * NUM_TASKS * 0.8 / NUM_SANDBOX_KILLS) for n in range(4)]
    while deaths or num_killed < NUM_SANDBOX_KILLS:
        await asyncio.sleep(0.1)
        num_done = (await runs.tally(db, campaign)).num_done
        if deaths and num_done >= deaths[0]:
            deaths.pop(0)
            engine.kill()
            await asyncio.sleep(ENGINE_DOWN_S)
            engine.start()
        if num_killed < NUM_SANDBOX_KILLS and num_done >= kill_at[num_killed]:
            num_killed += kill_a_sandbox(stack.home, dice)
    return num_killed


def kill_a_sandbox(home: Path, dice: random.Random) -> bool:
    """Process 1 of a sandbox below `home`, with all that runs in it."""
    boxes = [
        process
        for process in psutil.process_iter(["cmdline"])
        if any(part.startswith(f"{home}/sandboxes") for part in process.info["cmdline"] or ())
    ]
    with contextlib.suppress(psutil.NoSuchProcess, IndexError):
        dice.choice(boxes).children()[0].kill()
        return True
    return False


@pytest.mark.chaos
@pytest.mark.timeout(TIMEOUT_S + 60)
async def test_kills_change_no_verdict(
    stack: StackInfo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await bwrap_or_skip(tmp_path / "probe")
    monkeypatch.setenv("MAINSPRING_NODE_ID", "chaos-evaluation")
    monkeypatch.setenv("MAINSPRING_NODE_MIN_FREE_MEMORY_MB", "0")
    made = numbered_tasks(SOURCE, NUM_TASKS)
    async with Database.open(stack.database_url) as db, engine_running() as engine:
        await tasks.put_tasks(db, made)
        campaign = CampaignId("chaos-eval-killed")
        killing = asyncio.create_task(disturb(stack, db, engine, campaign))
        try:
            async with asyncio.timeout(TIMEOUT_S):
                killed = await evaluate(stack, engine, campaign, tmp_path / "killed")
        finally:
            killing.cancel()
            await asyncio.wait([killing])
        assert killing.result() == NUM_SANDBOX_KILLS, "the evaluation ended before the kills"
    # The engine's reply depends on the task alone (scripted_engine.py).
    assert {task: result["verdict"] for task, result in killed.items()} == {
        task.id: "not_resolved" if number % 2 else "resolved" for number, task in enumerate(made)
    }
