"""How rows without an eval script of their own are graded: the spec table, and the script from it.

Owns `specs.toml`. The script does what the official harness does in the same order, so that its log
reads the same: environment, install, test files as they were at the base commit, the test patch,
the tests between the library's markers, their exit code, the test files again. Pure but for reading
the table once. Imported by `rows`.
"""

import hashlib
import re
import shlex
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from pathlib import Path
from typing import Any

from infra.sources.image_rules import ImageFamily
from infra.sources.patch_files import PatchFiles
from infra.sources.protocol import RowError, RowProblem

WORKDIR = "/testbed"
"""Where the repository is in all images of these data sets."""
TABLE = Path(__file__).with_name("specs.toml")
START = ">>>>> Start Test Output"
END = ">>>>> End Test Output"
EXIT_CODE = ">>>>> Test Exit Code"
_ACTIVATE = "source /opt/miniconda3/bin/activate\nconda activate testbed"
_NO_TESTS = (
    ".json",
    ".png",
    "csv",
    ".txt",
    ".md",
    ".jpg",
    ".jpeg",
    ".pkl",
    ".yml",
    ".yaml",
    ".toml",
)
"""Endings of what a test patch brings along for its tests."""
_CASE = re.compile(r"\[case ([^\]]+)\]")


class Labels(StrEnum):
    """Kinds of labels that the test command is told to run."""

    FILES = "files"
    """The test patch's files."""
    DOTTED = "dotted"
    """The same as modules below tests/."""
    CASES = "cases"
    """Names of mypy's data-driven cases."""


@dataclass(frozen=True, slots=True)
class Spec:
    images: ImageFamily | None
    """None: the row names its image."""
    parser: str
    test: str
    install: str = ""
    before: tuple[str, ...] = ()
    labels: Labels = Labels.FILES


def spec_for(repo: str, version: str) -> Spec:
    """Raises RowError for a repository or version that the table does not have."""
    entry = _table().get(repo.lower())
    if entry is None:
        raise RowError(
            RowProblem.NO_SPEC,
            f"how to test {repo} (version {version}) is not known",
            remedy="give the row image, eval_script, log_parser and eval_type, or add the "
            f"repository to {TABLE.name}",
        )
    if not _within(version, entry["versions"]):
        raise RowError(
            RowProblem.NO_SPEC,
            f"how to test {repo} is known from version {' to '.join(entry['versions'])}, "
            f"not at {version!r}",
            remedy="give the row image, eval_script, log_parser and eval_type, or widen the "
            f"repository's range in {TABLE.name}",
        )
    fields = {key: value for key, value in entry.items() if key not in ("versions", "except")}
    for exception in entry.get("except", ()):
        if _within(version, exception["versions"]):
            fields |= {key: value for key, value in exception.items() if key != "versions"}
    return Spec(
        images=ImageFamily(fields["images"]),
        parser=fields["parser"],
        test=fields["test"],
        install=fields.get("install", ""),
        before=tuple(fields.get("before", ())),
        labels=Labels(fields.get("labels", Labels.FILES)),
    )


def eval_script(spec: Spec, base_commit: str, test_patch: str, files: PatchFiles) -> str:
    """`files` are those of `test_patch`."""
    restore = []
    if files.before:
        restore.append(shlex.join(["git", "checkout", base_commit, "--", *files.before]))
    if files.created:
        # What the agent put there would keep the test patch from applying.
        restore.append(shlex.join(["rm", "-rf", "--", *files.created]))
    delimiter = "EOF_" + hashlib.sha256(test_patch.encode()).hexdigest()[:16]
    end = "" if test_patch.endswith("\n") else "\n"
    lines = [
        "#!/bin/bash",
        "set -uxo pipefail",
        _ACTIVATE,
        f"cd {WORKDIR}",
        f"git config --global --add safe.directory {WORKDIR}",
        *spec.before,
        spec.install,
        *restore,
        f"git apply -v - <<'{delimiter}'\n{test_patch}{end}{delimiter}",
        f": '{START}'",
        _test_command(spec, test_patch, files),
        f": '{END}'",
        *restore,
    ]
    return with_exit_code("\n".join(line for line in lines if line) + "\n")


def with_exit_code(script: str) -> str:
    """The script with the test command's exit code in its log, after the end of the tests' output:
    the official library does the same to a row's script before it runs it."""
    lines = script.split("\n")
    ends = [i for i, line in enumerate(lines) if END in line]
    if EXIT_CODE in script or not ends:
        return script
    variable = "SWEBENCH_TEST_EXIT_CODE"
    lines[ends[0] : ends[0] + 1] = [
        f"{variable}=$?",
        lines[ends[0]],
        f'echo "{EXIT_CODE}: ${variable}"',
    ]
    return "\n".join(lines)


def check_reached(spec: Spec, files: PatchFiles, fail_to_pass: Iterable[str]) -> None:
    """Raises RowError for a test of another file than the ones that are run: no log will have it.
    A test without a file in its name may be anywhere."""
    run = _run(files)
    # pytest runs a whole package when it is told its __init__.py.
    if spec.labels is not Labels.FILES or not run or any("__init__" in path for path in run):
        return
    for test in fail_to_pass:
        file, separator, _ = test.partition("::")
        if separator and file.endswith(".py") and not any(path.endswith(file) for path in run):
            raise RowError(
                RowProblem.IMPOSSIBLE,
                f"FAIL_TO_PASS has {test[:80]!r}, and test_patch does not touch {file[:80]!r}: "
                "only files of test_patch are run",
            )


def _run(files: PatchFiles) -> list[str]:
    return [path for path in files.after if not path.endswith(_NO_TESTS)]


def _test_command(spec: Spec, test_patch: str, files: PatchFiles) -> str:
    paths = _run(files)
    if spec.labels is Labels.DOTTED:
        paths = [
            path.removesuffix(".py").removeprefix("tests/").replace("/", ".") for path in paths
        ]
    elif spec.labels is Labels.CASES and (cases := _CASE.findall(test_patch)):
        return f"{spec.test} -k {shlex.quote(' or '.join(cases))}"
    return " ".join([spec.test, *map(shlex.quote, paths)])


@cache
def _table() -> dict[str, dict[str, Any]]:
    """By the repository's name in lower case, as some data sets write it."""
    return {repo.lower(): entry for repo, entry in tomllib.loads(TABLE.read_text()).items()}


def _within(version: str, bounds: list[str]) -> bool:
    numbers = _numbers(version)
    return bool(numbers) and _numbers(bounds[0]) <= numbers <= _numbers(bounds[1])


def _numbers(version: str) -> tuple[int, ...]:
    """Numbers of its first two parts, as data sets write versions: "v5.3" is (5, 3)."""
    return tuple(int(number) for number in re.findall(r"\d+", version)[:2])
