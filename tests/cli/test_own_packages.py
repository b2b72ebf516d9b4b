"""Packages of others under our names are told at the start."""

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from cli import own_packages
from cli.operations.machine.supervisor import Supervisor
from mainspring.config.registry import FOLDERS, Registry

ROOT = Path(own_packages.__file__).parents[1]


def test_all_packages_of_the_wheel_are_looked_at() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    packages = project["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
    assert {"mainspring", *own_packages.NAMES} == set(packages)


@pytest.mark.parametrize("name", ["infra", "workflows"])
def test_a_stranger_under_one_of_our_names_is_named(tmp_path: Path, name: str) -> None:
    stranger = tmp_path / name / "__init__.py"
    stranger.parent.mkdir()
    stranger.touch()
    code = f"import sys; sys.path[:0] = ['{tmp_path}', '{ROOT}']; import cli.main"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd="/")
    assert ended.returncode == 2
    assert f"error: Python finds the package `{name}` at {stranger}" in ended.stderr
    assert "environment of its own" in ended.stderr and "Traceback" not in ended.stderr


def test_a_checkout_has_no_file_that_was_overwritten() -> None:
    assert own_packages.overwritten() == []


def test_modules_beside_a_campaign_file_are_found_and_hide_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mine_of_the_file.py").write_text("def reward(outcome): return 1.0\n")
    (tmp_path / "json.py").write_text("raise ImportError('a file of the user')\n")
    monkeypatch.delenv(FOLDERS, raising=False)
    monkeypatch.setattr(sys, "path", [*sys.path])
    own_packages.import_beside(tmp_path / "campaign.toml")
    own_packages.import_beside(tmp_path / "campaign.toml")
    assert os.environ[FOLDERS] == str(tmp_path), "once, for all processes that are started"
    registry: Registry[object] = Registry("reward", takes="outcome")
    assert registry.find("mine_of_the_file:reward") is not None
    child = subprocess.run(
        [sys.executable, "-c", "from mainspring.config import registry; "
         "registry.search_own_folders(); import json, mine_of_the_file; print(json.__file__)"],
        capture_output=True, text=True, check=True, cwd="/",
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert str(tmp_path) not in child.stdout


def test_a_run_that_is_resumed_by_name_finds_them_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(FOLDERS, "/mine:/yours")
    supervisor = Supervisor(tmp_path, "a")
    assert supervisor.imports() == []
    with supervisor.holding():
        assert supervisor.pid() == os.getpid()
    assert supervisor.imports() == ["/mine", "/yours"]
    monkeypatch.delenv(FOLDERS)
    own_packages.import_from(supervisor.imports())
    assert os.environ[FOLDERS] == "/mine:/yours"
    (tmp_path / "run" / "train-old.lock").write_text("77")  # of the release before
    assert Supervisor(tmp_path, "old").imports() == []
