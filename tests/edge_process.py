"""Processes as users start them, with their log: an edge, a gateway, any other."""

import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.waiting import until

SECRET = "s" * 40


@dataclass(slots=True)
class Process:
    """One that tells its log in lines of JSON."""

    popen: subprocess.Popen[bytes]
    log: Path

    @property
    def events(self) -> list[dict[str, Any]]:
        # The last line may not be whole yet.
        lines = self.log.read_text().rpartition("\n")[0].splitlines()
        return [json.loads(line) for line in lines if line.startswith("{")]

    def told(self, event: str) -> list[dict[str, Any]]:
        return [each for each in self.events if each["event"] == event]

    async def until_told(self, event: str, number: int = 1) -> dict[str, Any]:
        def is_told() -> bool:
            assert self.popen.poll() is None, self.log.read_text()
            return len(self.told(event)) >= number

        await until(is_told)
        return self.told(event)[number - 1]

    def kill(self) -> None:
        self.popen.kill()
        self.popen.wait()


@contextmanager
def process(folder: Path, *words: str, **environment: str) -> Iterator[Process]:
    log = folder / f"{len(list(folder.iterdir()))}.log"
    own = {
        "MAINSPRING_LOG_FORMAT": "json",
        "MAINSPRING_EDGE_SECRET": SECRET,
        "PYTHONPATH": os.pathsep.join(sys.path),
    }
    with log.open("wb") as out:
        popen = subprocess.Popen(
            [sys.executable, *words],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            env={**os.environ, **own, **environment},
        )
    try:
        yield Process(popen, log)
    finally:
        popen.kill()
        popen.wait()


@asynccontextmanager
async def edge_process(
    folder: Path, port: int = 0, *words: str
) -> AsyncIterator[tuple[str, Process]]:
    """Its URL and itself."""
    with process(folder, *_worker("edge"), "--port", str(port), *words) as edge:
        yield (await edge.until_told("edge is up"))["url"], edge


@asynccontextmanager
async def gateway_process(folder: Path, home: Path, url: str = "") -> AsyncIterator[Process]:
    """Of the services of this home; connected to the edge at `url`, where there is one."""
    edge = ("--edge", url) if url else ()
    with process(folder, *_worker("gateway"), "--home", str(home), *edge) as gateway:
        await gateway.until_told("an edge is connected" if url else "gateway is up")
        yield gateway


def _worker(name: str) -> tuple[str, ...]:
    return ("-m", "mainspring", "worker", name)
