"""Gives processes of a fleet a time of day that is wrong (`wrong_clock.c`): their Python, their
libraries and the children that inherit their environment read it, Temporal's SDK and Ray too.
"""

import platform
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from cli.operations.machine.fleet import Member

SOURCE = Path(__file__).with_name("wrong_clock.c")


def library(folder: Path) -> Path:
    """Made in `folder`; the test is skipped where nothing can make it."""
    compiler = shutil.which("cc")
    if platform.machine() != "x86_64":
        pytest.skip("the library that gives a process another time of day is for x86-64")
    if compiler is None:
        pytest.skip("no C compiler (cc) to make a library that gives a process another time of day")
    made = folder / "wrong_clock.so"
    asked = [compiler, "-O2", "-Wall", "-Werror", "-shared", "-fPIC", "-o", str(made), str(SOURCE)]
    subprocess.run(asked, check=True)
    return made


def with_clocks(members: Sequence[Member], hours: Mapping[str, int], library: Path) -> list[Member]:
    """The same members; each one that `hours` names has a clock that is off by that many hours."""
    found = {member.name for member in members}
    assert found >= set(hours), f"no member {set(hours) - found} among {found}"
    return [
        replace(member, environment=member.environment | _environment(hours[member.name], library))
        if member.name in hours
        else member
        for member in members
    ]


def _environment(hours: int, library: Path) -> dict[str, str]:
    return {"LD_PRELOAD": str(library), "WRONG_CLOCK_S": str(hours * 3600)}
