"""`mainspring view` as a process of its own."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

REPO = Path(__file__).parents[2]


@contextmanager
def viewing(home: Path, *options: str) -> Iterator[tuple[subprocess.Popen[str], list[str]]]:
    """The process, and what it printed up to its address."""
    command = [sys.executable, "-m", "mainspring", "--home", str(home), "view", *options]
    environment = {**os.environ, "PYTHONPATH": str(REPO)}
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment
    )
    try:
        printed: list[str] = []
        assert process.stdout is not None
        for line in process.stdout:
            printed.append(line.strip())
            if line.startswith("viewer "):
                break
        yield process, printed
    finally:
        process.kill()
        process.wait()
