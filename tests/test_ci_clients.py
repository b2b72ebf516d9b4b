"""`.ci/clients` never fails what comes after it, and tells in one line why a client is missing."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
NEEDED = "bash cut dirname env head timeout tr"
AWAY = "http://127.0.0.1:1/"


def ci_clients(*names: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(ROOT / ".ci" / "clients"), *names],
        capture_output=True,
        text=True,
        timeout=300,
        env=os.environ | environment,
    )


def test_without_npm_one_line_says_why(tmp_path: Path) -> None:
    path = tmp_path / "path"
    path.mkdir()
    for program in NEEDED.split():
        (path / program).symlink_to(shutil.which(program) or "")
    agents = tmp_path / "agents"
    ran = ci_clients("codex", PATH=str(path), MAINSPRING_AGENTS_DIR=str(agents))
    assert ran.returncode == 0, ran.stderr
    [line] = ran.stdout.splitlines()
    assert line.startswith("no codex, its tests skip: ") and "there is no npm" in line
    assert not list(agents.glob("codex*"))


@pytest.mark.skipif(shutil.which("npm") is None, reason="there is no npm on this machine")
def test_with_a_registry_that_is_away_each_client_has_its_line(tmp_path: Path) -> None:
    away = {"npm_config_registry": AWAY, "npm_config_fetch_retries": "0"}
    ran = ci_clients("codex", "claude-code", MAINSPRING_AGENTS_DIR=str(tmp_path), **away)
    assert ran.returncode == 0, ran.stderr
    lines = sorted(ran.stdout.splitlines())
    assert [line.split(",")[0] for line in lines] == ["no claude-code", "no codex"], lines


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    ran = ci_clients("codex", MAINSPRING_AGENTS_DIR=str(tmp_path / "file" / "agents"))
    assert ran.returncode == 0
    assert "cannot be made in" in ran.stdout and "Traceback" not in ran.stdout
