"""Test logs judged by the official SWE-bench library: its parsers, its rules, its verdict.

Invariant: what counts as resolved is what the library's own `get_eval_report` reports of the same
log; nothing of it is decided here. The library comes with an extra, takes seconds to import and
reads logs that an agent's program wrote with patterns that may never end: it lives in a process of
its own (`swebench_process`), started once, which ends with this one or at its own timeout, and
cannot hold up a node. Logs are judged one after the other. Imported by grading.
"""

import asyncio
import json
import signal
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict

from mainspring.errors import ServiceError, UsageError
from mainspring.status import FaultKind
from mainspring.tasks.criterion import GradeReport, TestLog
from mainspring.tasks.swe_task import SweTask

EXTRA = "swe"
PARSE_TIMEOUT_S = 30
"""Megabytes of results take seconds."""


def is_installed() -> bool:
    return find_spec("swebench") is not None


class LibraryMissing(ServiceError):
    """This node cannot judge test logs."""

    fault = FaultKind.NODE_FAILED


class UnknownParser(UsageError):
    """The task names a log parser that the library does not have."""

    fault = FaultKind.TASK_INVALID


class LogVerdict(BaseModel):
    model_config = ConfigDict(frozen=True)

    resolved: bool = False
    report: GradeReport
    broken: str = ""
    """Why the machine and not the patch is at fault, in the library's word; or empty. Only of a log
    without results."""


class _ProcessEnded(Exception):
    def __init__(self, returncode: int) -> None:
        super().__init__(f"the library's process ended with {returncode}")
        self.returncode = returncode


class _Process:
    """Asked in one thread of its own: the loop's would all wait here."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="swebench")
        self._running: subprocess.Popen[str] | None = None

    async def ask(self, question: dict[str, Any]) -> dict[str, Any]:
        """Raises _ProcessEnded; the next question gets another process."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._thread, self._ask, question)

    def _ask(self, question: dict[str, Any]) -> dict[str, Any]:
        if self._running is None or self._running.poll() is not None:
            self._running = subprocess.Popen(
                [sys.executable, "-m", "infra.verdicts.swebench_process", str(PARSE_TIMEOUT_S)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
        assert self._running.stdin is not None and self._running.stdout is not None
        try:
            self._running.stdin.write(json.dumps(question) + "\n")
            self._running.stdin.flush()
            answer = self._running.stdout.readline()
        except BrokenPipeError:
            answer = ""
        if not answer:
            raise _ProcessEnded(self._running.wait())
        return json.loads(answer)


_process = _Process()


async def require(task: SweTask, judge: TestLog) -> None:
    """Before tests run for nothing. Raises LibraryMissing or UnknownParser."""
    remedy = f"run `pip install 'mainspring[{EXTRA}]'` on every sandbox node"
    if not is_installed():
        raise LibraryMissing(
            f"task {task.id} is judged by its test log, which needs the swebench library",
            remedy=remedy,
        )
    try:
        library = await _process.ask({})
    except _ProcessEnded as ended:
        raise LibraryMissing(
            f"the swebench library does not start: {ended}", remedy=remedy
        ) from None
    if judge.parser not in library["parsers"]:
        raise UnknownParser(
            f"task {task.id}: swebench {library['version']} has no log parser {judge.parser!r}",
            remedy="import the task again, or install the version of swebench it was made for",
        )


async def judge_log(task: SweTask, judge: TestLog, log: bytes) -> LogVerdict:
    """The library's verdict on all that the test command printed."""
    with tempfile.TemporaryDirectory(prefix="mainspring-log-") as folder:
        file = Path(folder, "test_output.txt")
        await asyncio.to_thread(file.write_bytes, log.decode(errors="replace").encode())
        question = {"task": task.id, "judge": judge.model_dump_json(), "file": str(file)}
        try:
            answer = await _process.ask(question)
        except _ProcessEnded as ended:
            if ended.returncode == -signal.SIGALRM:
                return LogVerdict(report=GradeReport(note="the log parser did not end in time"))
            return LogVerdict(report=GradeReport(), broken=str(ended))
        return LogVerdict.model_validate(answer)
