"""Packages of others under our names are told at the start."""

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from cli import own_packages

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
