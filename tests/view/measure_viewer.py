"""Measures the viewer on a store of 50,000 rollouts: first bytes of its pages, its memory, and the
queries that take long.

    python -m tests.view.measure_viewer --home DIR

fills the store of DIR, whose services run, unless it is filled. Prints one JSON object:
milliseconds until the first byte (median, 95th percentile and largest of `--requests`), megabytes
of the server, and Postgres' own durations of queries above SLOW_MS.
"""

import argparse
import asyncio
import json
import re
import statistics
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import psutil
from sqlalchemy import text

from infra.db.connect import open_database
from infra.db.database import Database
from infra.db.runs import campaigns
from infra.stack import ports
from mainspring.config.settings import load_settings
from tests.infra.db import large_store

SLOW_MS = 50
LAST_PAGE = 50
SEARCHES = {
    "search, rare word": large_store.RARE_WORD,
    "search, frequent word": large_store.FREQUENT_WORD,
    "search, frequent phrase": '"in check" exit:0 verdict:not_resolved',
    "search, absent word": "absent",
}
DURATION = re.compile(r"duration: ([\d.]+) ms  \w+ [^:]*: (.*)")


async def prepare(home: Path) -> None:
    """Fills the store, and has Postgres log what takes long."""
    async with open_database(load_settings(home)) as db:
        if await campaigns.find(db, large_store.CAMPAIGN) is None:
            await large_store.fill(db)
        await _log_slow(db, SLOW_MS)


async def _log_slow(db: Database, at_least_ms: int) -> None:
    async with db.statement() as connection:
        await connection.execute(
            text(f"ALTER ROLE CURRENT_USER SET log_min_duration_statement = {at_least_ms}")
        )


@contextmanager
def viewer(home: Path) -> Iterator[tuple[str, psutil.Process]]:
    port = ports.pick()
    command = [sys.executable, "-m", "mainspring", "view", "--port", str(port), "--home", str(home)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as process:
        try:
            assert process.stdout is not None
            process.stdout.readline()
            yield f"http://127.0.0.1:{port}", psutil.Process(process.pid)
        finally:
            process.terminate()


def first_byte_ms(http: httpx.Client, path: str) -> float:
    begun = time.perf_counter()
    with http.stream("GET", path) as answer:
        pieces = answer.iter_raw()
        next(pieces)
        took_ms = 1000.0 * (time.perf_counter() - begun)
        for _ in pieces:
            pass
    assert answer.status_code == 200, (path, answer.status_code)
    return took_ms


def page_of_rollouts(http: httpx.Client, number: int) -> str:
    """Address of that page, which only the one before it knows."""
    path = f"/c/{large_store.CAMPAIGN}/rollouts"
    after = None
    for _ in range(number - 1):
        asked = {"after": after} if after else {}
        after = http.get(f"{path}.json", params=asked).raise_for_status().json()["next_after"]
    return f"{path}?after={after}"


def measure(home: Path, num_requests: int) -> dict[str, object]:
    log = home / "logs" / "postgres.log"
    begins_at = log.stat().st_size
    campaign, rollout = large_store.CAMPAIGN, f"{large_store.CAMPAIGN}/g003000/003"
    took: dict[str, list[float]] = defaultdict(list)
    with viewer(home) as (url, process), httpx.Client(base_url=url, timeout=60.0) as http:
        paths = {
            "home": "/",
            "campaign": f"/c/{campaign}",
            "rollouts, page 1": f"/c/{campaign}/rollouts",
            f"rollouts, page {LAST_PAGE}": page_of_rollouts(http, LAST_PAGE),
            "rollouts, not resolved": f"/c/{campaign}/rollouts?verdict=not_resolved",
            "rollout": f"/r/{rollout}",
            "rollout, tokens": f"/r/{rollout}?tab=tokens",
            "group": f"/c/{campaign}/groups/{campaign}/g003000",
            "step": f"/c/{campaign}/steps/300",
            "events": f"/events?c={campaign}",
            "nodes": "/nodes",
            **{name: f"/search?q={query}" for name, query in SEARCHES.items()},
        }
        for _ in range(num_requests):
            for name, path in paths.items():
                took[name].append(first_byte_ms(http, path))
        memory_mb = process.memory_info().rss / 1e6
    with log.open() as lines:
        lines.seek(begins_at)
        slow = [(float(found[1]), found[2][:200]) for found in map(DURATION.search, lines) if found]
    return {
        "first_byte_ms": {
            name: {
                "median": round(statistics.median(values), 1),
                "p95": round(statistics.quantiles(values, n=20)[-1], 1),
                "max": round(max(values), 1),
            }
            for name, values in took.items()
        },
        "memory_mb": round(memory_mb),
        "num_slow_queries": len(slow),
        "slow_queries_ms": sorted(slow, reverse=True)[:10],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--home", type=Path, required=True)
    parser.add_argument("--requests", type=int, default=40)
    given = parser.parse_args()
    home = given.home.absolute()
    asyncio.run(prepare(home))
    print(json.dumps(measure(home, given.requests), indent=1))


if __name__ == "__main__":
    main()
