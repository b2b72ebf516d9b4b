"""What stands before the command: `mainspring --home X status`, --version, -h, --no-color."""

import json
import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

from cli.operations.machine.embedded_stack import StackInfo
from tests.terminal import printed_to

LISTING = """
import json, sys
from cli.main import app
sys.argv = ["mainspring", "--home", sys.argv[1], "campaign", "list", "--json"]
try:
    app()
except SystemExit as ended:
    assert not ended.code
print(json.dumps(sorted({name.partition(".")[0] for name in sys.modules})))
"""


def mainspring(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "mainspring", *words], capture_output=True, text=True, timeout=120
    )


def test_home_before_the_command_and_its_own_goes_first(tmp_path: Path) -> None:
    one, other = tmp_path / "one", tmp_path / "other"
    before = mainspring("--home", str(one), "db", "current")
    assert before.returncode == 2 and f"recorded in {one}" in before.stderr
    both = mainspring("--home", str(one), "db", "current", "--home", str(other))
    assert f"recorded in {other}" in both.stderr


def test_version_and_short_help() -> None:
    version = mainspring("--version")
    assert (version.returncode, version.stdout.split()[0]) == (0, "mainspring")
    for words in ((), ("campaign",), ("campaign", "list")):
        found = mainspring(*words, "-h")
        assert found.returncode == 0 and "Usage:" in found.stdout


@pytest.mark.parametrize(
    ("typed", "offered"),
    [("mainspring camp", ["campaign"]), ("mainspring rollout ", ["list", "show", "retry"])],
)
def test_the_shell_completes_commands(typed: str, offered: list[str]) -> None:
    asked = {"COMP_WORDS": typed, "COMP_CWORD": str(typed.count(" "))}
    found = subprocess.run(
        [Path(sys.executable).parent / "mainspring"],
        env={**os.environ, "_MAINSPRING_COMPLETE": "complete_bash", **asked},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert found.returncode == 0, found.stderr
    assert set(offered) <= set(found.stdout.split())


@pytest.mark.parametrize("switch", ["none", "option", "variable"])
def test_colours_on_a_terminal_unless_switched_off(tmp_path: Path, switch: str) -> None:
    ours, theirs = pty.openpty()
    words = ["--no-color"] if switch == "option" else []
    environment = {**os.environ, "TERM": "xterm-256color"}
    environment.pop("NO_COLOR", None)
    if switch == "variable":
        environment["NO_COLOR"] = "1"
    process = subprocess.Popen(
        [sys.executable, "-m", "mainspring", *words, "--home", str(tmp_path), "status"],
        stdin=subprocess.DEVNULL,
        stdout=theirs,
        stderr=theirs,
        env=environment,
    )
    os.close(theirs)
    shown = printed_to(ours)
    assert process.wait(120) == 3
    assert "is not running" in shown
    red = "\x1b[31m" in shown
    assert red == (switch == "none")


def test_a_listing_loads_what_it_uses(stack: StackInfo) -> None:
    found = subprocess.run(
        [sys.executable, "-c", LISTING, str(stack.home)],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert found.returncode == 0, found.stderr
    loaded = set(json.loads(found.stdout.splitlines()[-1]))
    assert "sqlalchemy" in loaded
    assert not loaded & {"temporalio", "alembic", "structlog", "torch", "docker", "ray"}
