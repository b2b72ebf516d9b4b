"""Measure a fleet: `python -m tests.chaos.measure_fleet MODEL_DIR --home DIR [--churn-s 20]`.

An evaluation of the bundled tasks, 64 rollouts at once, on a stack of its own in DIR, with three
rollout workers, two nodes and four CPU engines that joined it (`mainspring serve --campaign`).
Prints one line of JSON: rollouts/s, masked rollouts, the share of requests that went to the engine
with their rollout's prefix, the engines' own share of prompt tokens that they had cached, and
requests by engine. With --churn-s N, one engine leaves and another one joins every N seconds.
"""

import argparse
import asyncio
import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

import httpx
from sqlalchemy import text

from infra.db import store
from infra.db.connect import open_database
from infra.db.database import Database
from infra.db.nodes import engines
from infra.db.runs import campaigns
from mainspring.config.settings import load_settings
from mainspring.ids import CampaignId
from mainspring.status import CampaignStatus, EngineStatus

NAME = CampaignId("fleet")
FILE = """
name = "fleet"
[tasks]
source = "bundled"
num_train = 2048
[agent]
kind = "bundled"
step_limit = 4
max_format_errors = 2
[policy]
model = "{model}"
engines = "registered"
max_context = 512
max_new_tokens = 40
[evaluation]
concurrency = 64
[run]
split = "train"
limit = {limit}
"""
_REQUESTS = text(
    "SELECT c.engine, p.engine FROM calls c JOIN rollouts r ON r.id = c.rollout_id "
    "LEFT JOIN calls p ON p.rollout_id = c.rollout_id AND p.epoch = c.epoch "
    "AND p.number = c.parent WHERE r.campaign_id = :campaign AND c.created_at > :since"
)
_MASKED = text(
    "SELECT count(*) FROM rollouts WHERE campaign_id = :campaign AND "
    "stop_reason IN ('infra_fault', 'terminated', 'cancelled')"
)


class Processes:
    def __init__(self, home: Path) -> None:
        self._home = home
        self._all: list[subprocess.Popen[bytes]] = []
        (home / "logs").mkdir(parents=True, exist_ok=True)

    def start(self, *command: str, **environment: str) -> subprocess.Popen[bytes]:
        arguments = [sys.executable, "-m", "mainspring", *command, "--home", str(self._home)]
        log = (self._home / "logs" / f"measured-{len(self._all)}.log").open("wb")
        env = os.environ | {"OMP_NUM_THREADS": "1"} | environment
        process = subprocess.Popen(arguments, stdout=log, stderr=log, env=env)
        log.close()
        self._all.append(process)
        return process

    def end(self) -> None:
        for process in self._all:
            process.terminate()
        for process in self._all:
            process.wait(60)


def engine(processes: Processes, model: Path, name: str) -> subprocess.Popen[bytes]:
    fast = ("--max-batch", "64", "--context-length", "512", "--step-interval-ms", "20")
    return processes.start(
        *("serve", "--model", str(model), "--campaign", NAME, "--name", name, "--port", "0"), *fast
    )


async def up(db: Database) -> Sequence[engines.EngineRecord]:
    fleet = await engines.members(db, NAME, ())
    return [each for each in fleet if each.status is EngineStatus.UP]


async def measure(model: Path, home: Path, limit: int, churn_s: float) -> dict[str, object]:
    processes = Processes(home)
    file = home / "fleet.toml"
    file.write_text(FILE.format(model=model, limit=limit))
    run = processes.start("eval", "run", str(file))
    try:
        async with open_database(load_settings(home)) as db:
            while await campaigns.find(db, NAME) is None:
                await asyncio.sleep(0.5)
                assert run.poll() is None, "see measured-0.log"
            members = {f"gpu{n}": engine(processes, model, f"gpu{n}") for n in range(4)}
            for _ in range(2):
                processes.start("worker", "rollout")
            processes.start("worker", "sandbox", MAINSPRING_NODE_ID="second")
            while len(await up(db)) < len(members):
                await asyncio.sleep(0.5)
            began, churned, number = time.monotonic(), time.monotonic(), len(members)
            since = await store.now(db)
            before = await _finished(db)
            while (await campaigns.get(db, NAME)).status not in (
                CampaignStatus.FINISHED,
                CampaignStatus.FAILED,
            ):
                if churn_s and time.monotonic() - churned > churn_s:
                    churned = time.monotonic()
                    members[f"gpu{number}"] = engine(processes, model, f"gpu{number}")
                    members.pop(f"gpu{number - 4}").terminate()
                    number += 1
                await asyncio.sleep(0.5)
            took_s = time.monotonic() - began
            return {
                "rollouts": limit,
                "rollouts_per_s": round((limit - before) / took_s, 3),
                "churn_s": churn_s,
                "engines": number,
                "load": os.getloadavg()[0],
                **await _requests(db, since),
            }
    finally:
        processes.end()


async def _finished(db: Database) -> int:
    counted = text("SELECT count(*) FROM rollouts WHERE campaign_id = :campaign AND phase = 'done'")
    async with db.transaction() as connection:
        return (await connection.scalar(counted, {"campaign": NAME})) or 0


async def _requests(db: Database, since: datetime) -> dict[str, object]:
    """Those that were answered after `since`, when all engines had joined."""
    async with db.transaction() as connection:
        pairs = list(await connection.execute(_REQUESTS, {"campaign": NAME, "since": since}))
        masked = await connection.scalar(_MASKED, {"campaign": NAME})
    by_engine = Counter(served for served, _ in pairs)
    continuing = [(served, parent) for served, parent in pairs if parent]
    warm = sum(served == parent for served, parent in continuing)
    prompt, cached = 0, 0
    async with httpx.AsyncClient() as http:
        for member in await up(db):
            info = (await http.get(f"{member.url}/server_info")).json()["internal_states"][0]
            prompt += info["num_prompt_tokens"]
            cached += info["num_cached_tokens"]
    return {
        "masked": masked,
        "requests": len(pairs),
        "warm": round(warm / max(1, len(continuing)), 4),
        "cached_tokens": round(cached / max(1, prompt), 4),
        "by_engine": dict(by_engine),
        "largest_to_smallest": round(max(by_engine.values()) / min(by_engine.values()), 2),
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("--home", type=Path, required=True)
    parser.add_argument("--limit", type=int, default=512)
    parser.add_argument("--churn-s", type=float, default=0.0)
    given = parser.parse_args()
    subprocess.run(
        [sys.executable, "-m", "mainspring", "up", "--home", str(given.home)],
        check=True,
        stdout=sys.stderr,
    )
    print(json.dumps(asyncio.run(measure(given.model, given.home, given.limit, given.churn_s))))
