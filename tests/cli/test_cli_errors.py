"""Bad input on the command line: one message, the right exit code, no traceback."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest


def mainspring(*arguments: str, home: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    clean = {k: v for k, v in os.environ.items() if not k.startswith("MAINSPRING_")}
    return subprocess.run(
        [sys.executable, "-m", "mainspring", *arguments, "--home", str(home)],
        capture_output=True,
        text=True,
        timeout=120,
        env=clean | environment,
    )


def test_a_wrong_campaign_file(tmp_path: Path) -> None:
    file = tmp_path / "campaign.toml"
    file.write_text('name = "a"\nseeed = 3\n')
    ended = mainspring("campaign", "start", str(file), home=tmp_path / "home")
    assert ended.returncode == 2
    assert "seeed" in ended.stderr and str(file) in ended.stderr
    assert "Traceback" not in ended.stderr
    assert not (tmp_path / "home").exists()


def test_no_stack_is_up(tmp_path: Path) -> None:
    ended = mainspring("campaign", "list", home=tmp_path / "home")
    assert ended.returncode == 3
    assert "mainspring up" in ended.stderr
    assert "Traceback" not in ended.stderr


def test_an_unreachable_database_is_named_without_its_password(tmp_path: Path) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
    url = f"postgresql://me:secret@127.0.0.1:{port}/nothing"
    ended = mainspring("campaign", "list", home=tmp_path, MAINSPRING_DATABASE_URL=url)
    assert ended.returncode == 3
    assert f"127.0.0.1:{port}" in ended.stderr
    assert "secret" not in ended.stderr and "Traceback" not in ended.stderr


@pytest.mark.parametrize("command", [("worker", "rollout"), ("worker", "sandbox")])
def test_a_worker_without_services_says_so(tmp_path: Path, command: tuple[str, str]) -> None:
    ended = mainspring(*command, home=tmp_path / "home")
    assert ended.returncode == 3
    assert "mainspring up" in ended.stderr
    assert "Traceback" not in ended.stderr


def test_a_standby_on_ray_that_others_use_is_refused(tmp_path: Path) -> None:
    wanted = ("worker", "trainer", "--campaign", "c", "--standby")
    ended = mainspring(*wanted, home=tmp_path / "home", MAINSPRING_RAY_ADDRESS="ray:6379")
    assert ended.returncode == 2
    assert "ray:6379" in ended.stderr and "without --standby" in ended.stderr
    assert "Traceback" not in ended.stderr


@pytest.mark.parametrize("command", [("serve",), ("eval", "run", "--source", "s")])
def test_a_folder_of_that_name_is_not_the_bundled_model(
    command: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "bundled").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
    ended = mainspring(*command, "--model", "bundled", home=tmp_path / "home")
    assert ended.returncode == 2
    assert "the bundled model has no folder" in ended.stderr
    assert "policies/v00000/hf" in ended.stderr and "Traceback" not in ended.stderr
