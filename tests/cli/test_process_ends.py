"""How processes that a command keeps have ended: real ones that raise, tell an error of ours, are
killed, or fail in the machine's code; and the ends of logs that no process here writes."""

import asyncio
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from cli.operations.machine import process_ends
from cli.operations.machine.process_ends import CAUSE_CHARS, LifeBegun, ProcessEnd, cause_in

CALLS = "def inner():\n    {raises}\ndef outer():\n    inner()\n"
GROUP = (
    "import asyncio\n"
    + CALLS.format(raises="raise LookupError('no such thing')")
    + "async def fails():\n    outer()\n"
    "async def main():\n    async with asyncio.TaskGroup() as g:\n        g.create_task(fails())\n"
    "asyncio.run(main())\n"
)
LOGGED = "import traceback\ntry:\n    1 / 0\nexcept ZeroDivisionError:\n    traceback.print_exc()\n"
"""An error that was dealt with."""


def ended(tmp_path: Path, program: str) -> ProcessEnd:
    log = tmp_path / "one.log"
    log.write_text("error: of a life before\nTraceback (most recent call last):\nOldError: x\n")
    life = LifeBegun.now(log)
    with log.open("ab") as file:
        process = subprocess.run(
            [sys.executable, "-c", program], stdout=file, stderr=file, cwd=Path(__file__).parents[2]
        )
    return life.ended("one", process.returncode)


@pytest.mark.parametrize(
    ("program", "cause", "how"),
    [
        (
            CALLS.format(raises="raise ValueError('no \\x1b[31mlayer 7')") + "outer()",
            "ValueError: no layer 7",
            "exit code 1",
        ),
        ("raise KeyboardInterrupt", "it was killed from outside", "SIGINT"),
        ("import nothing.of_that_name", "ModuleNotFoundError: No module named", "exit code 1"),
        ("x = (", "SyntaxError: '(' was never closed", "exit code 1"),
        (GROUP, "LookupError: no such thing", "exit code 1"),
        ("raise RuntimeError('first\\nsecond')", "RuntimeError: first second", "exit code 1"),
        (
            "try:\n    1 / 0\nexcept ZeroDivisionError as e:\n    raise KeyError('k') from e",
            "KeyError: 'k'",
            "exit code 1",
        ),
        (
            f"{LOGGED}print('error: model /m is no folder\\n  name another', flush=True)\n"
            "raise SystemExit(2)",
            "model /m is no folder",
            "exit code 2",
        ),
        (
            "import sys\nprint('the trainer ends: its lease is another one\\'s')\nsys.exit(3)",
            "its lease is another one's",
            "exit code 3",
        ),
        (
            f"{LOGGED}print('up\\n' * 50, 'no room on the disk', flush=True)\nraise SystemExit(7)",
            "no room on the disk",
            "exit code 7",
        ),
        ("raise SystemExit(5)", "it told no error", "exit code 5"),
        ("", "it came to its end", "exit code 0"),
        (
            f"{LOGGED}import os, signal\nos.kill(os.getpid(), signal.SIGKILL)",
            "it was killed from outside",
            "SIGKILL",
        ),
        (
            "import faulthandler, os, signal\nfaulthandler.enable()\n"
            "os.kill(os.getpid(), signal.SIGSEGV)",
            "Fatal Python error: Segmentation fault",
            "SIGSEGV",
        ),
        (
            "import sys\nfrom cli.main import main\n"
            "sys.argv = ['m', 'train', '--nonsense']\nmain()",
            "No such option: --nonsense",
            "exit code 2",
        ),
        (
            "import sys\nfrom cli.main import main\n"
            "sys.argv = ['m', 'train', '/no/such/file.toml']\nmain()",
            "/no/such/file.toml",
            "exit code 2",
        ),
    ],
)
def test_the_cause_of_an_end(tmp_path: Path, program: str, cause: str, how: str) -> None:
    end = ended(tmp_path, program)
    assert cause in end.cause and end.how == how, end
    for word in ("Traceback", "\x1b", "File ", "\n", "OldError", "ZeroDivision"):
        assert word not in end.cause
    assert not end.cause.startswith("error: ")
    assert str(end) == f"one ended: {end.cause} ({how}; log {tmp_path / 'one.log'})"


def test_a_long_message_is_cut_in_its_middle(tmp_path: Path) -> None:
    end = ended(tmp_path, "raise ValueError('begins ' + 'x' * 9000 + ' ends')")
    assert end.cause.startswith("ValueError: begins ") and end.cause.endswith(" ends")
    assert len(end.cause) <= CAUSE_CHARS


async def test_one_that_the_kernel_ended_is_told_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel's count is scripted: no test fills the machine."""
    kills = [3]
    monkeypatch.setattr(process_ends, "memory_kills", lambda: kills[0])
    causes = []
    for grown in (0, 1):
        life = LifeBegun.now(tmp_path / "log")
        process = await asyncio.create_subprocess_exec("sleep", "60")
        process.kill()
        kills[0] += grown
        causes.append(life.ended("one", await process.wait()).cause)
    assert causes == ["it was killed from outside", "the kernel ended it: out of memory"]
    stopped = LifeBegun.now(tmp_path / "log")
    kills[0] += 1
    assert stopped.ended("one", -signal.SIGTERM).cause == "it was killed from outside"


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        ("", ""),
        ("\n \n", ""),
        ("Traceback (most recent call last):\n", ""),
        (
            'Traceback (most recent call last):\n  File "a", line 1\n    x()\n'
            "pydantic.ValidationError: 2 errors\nfield\n2026-11-26 12:00:00 [info] up\nmore\n",
            "ValidationError: 2 errors field",
        ),
        (
            "terminate called after throwing an instance of 'std::bad_alloc'\n"
            "  what():  std::bad_alloc\n*** at 0x1\n",
            "what(): std::bad_alloc",
        ),
        ("\x00\x07error: \u202eno\n", "no"),
        (f"error: {'x' * 300}\n", f"{'x' * 78} ... {'x' * 117}"),
    ],
)
def test_the_cause_in_the_end_of_a_log(text: str, cause: str) -> None:
    assert cause_in(text) == cause
