"""SWE-smith rows: `patch` is the bug, and undoing it is the fix.

An image holds a repository without any bug, for all rows of it. The bug is put in before an agent
begins, and the files with the tests that fail of it are taken away, as on the data set's branches.

Owns `swe_smith.toml`, the data set's own commands: a row of a repository that is not in it is
refused, and so is a name that pytest could not have printed. All files with a test of FAIL_TO_PASS
or PASS_TO_PASS are run, and all tests of both must pass: what the data set's harness does unless it
is told `--f2p_only`. Pure but for reading the table once. Imported by `rows`.
"""

import shlex
import tomllib
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from infra.sources.fields import Row, names, text
from infra.sources.image_rules import ImageFamily, image_for
from infra.sources.kinds.specs import END, START, WORKDIR, with_exit_code
from infra.sources.patch_files import reversed_patch
from infra.sources.protocol import ImportOptions, RowError, RowProblem
from mainspring.tasks.criterion import TestLog

REPO_PREFIX = "swesmith/"
PARSER = "parse_log_pytest"
TABLE = Path(__file__).with_name("swe_smith.toml")
_ENDINGS = (".py", ".rst", ".txt", ".md")
"""Endings of files that pytest finds tests in: doctests stand in texts, too."""
_OUTSIDE = ("/", "-", "../")
_PYTEST = "pytest --disable-warnings --color=no --tb=no"


def task_fields(row: Row, options: ImportOptions) -> dict[str, object]:
    """Without what all SWE-bench rows have alike. Raises RowError."""
    task_id = text(row, "instance_id")
    command = _command(text(row, "repo").removeprefix(REPO_PREFIX))
    bug = text(row, "patch")
    try:
        gold_patch = reversed_patch(bug)
    except ValueError as error:
        raise RowError(RowProblem.NOT_A_PATCH, f"patch is not a git patch: {error}") from None
    fail_to_pass, pass_to_pass = names(row, "FAIL_TO_PASS"), names(row, "PASS_TO_PASS")
    hidden_files = _files("FAIL_TO_PASS", fail_to_pass)
    files = dict.fromkeys((*hidden_files, *_files("PASS_TO_PASS", pass_to_pass)))
    lines = [
        "set -uxo pipefail",
        "source /opt/miniconda3/bin/activate",
        "conda activate testbed",
        f"cd {WORKDIR}",
        f": '{START}'",
        f"{command} -rA {shlex.join(files)}",
        f": '{END}'",
    ]
    return {
        "image": image_for(row, task_id, ImageFamily.SWE_SMITH, options.image_template),
        "base_patch": bug,
        "hidden_files": hidden_files,
        "gold_patch": gold_patch,
        "test_command": with_exit_code("\n".join(lines) + "\n"),
        "judge": TestLog(parser=PARSER, fail_to_pass=fail_to_pass, pass_to_pass=pass_to_pass),
    }


def _command(repo: str) -> str:
    """Raises RowError."""
    entry = _table().get(repo.lower())
    if entry is None:
        raise RowError(
            RowProblem.NO_SPEC,
            f"how SWE-smith tests {repo} is not known: only repositories that are tested by "
            "pytest are read",
            remedy=f"add its command to {TABLE.name}, or give the row as one of your own "
            "(base_patch, gold_patch, test_command)",
        )
    command, refused = entry
    if refused:
        raise RowError(
            RowProblem.NO_SPEC,
            f"SWE-smith tests {repo} by `{command}`, whose log no parser here reads",
            remedy="leave rows of this repository out (--filter)",
        )
    return command


def _files(field: str, tests: Sequence[str]) -> tuple[str, ...]:
    """Raises RowError for what is no test's name of pytest."""
    for test in tests:
        file, separator, name = test.partition("::")
        if not (separator and name and file.endswith(_ENDINGS)) or file.startswith(_OUTSIDE):
            raise RowError(
                RowProblem.IMPOSSIBLE,
                f"{field}: {test[:80]!r} is not FILE.py::TEST, which is how pytest names tests",
            )
    return tuple(dict.fromkeys(test.partition("::")[0] for test in tests))


@cache
def _table() -> dict[str, tuple[str, bool]]:
    """Command of each repository's tests, in lower case, and whether it is refused."""
    table: dict[str, Any] = tomllib.loads(TABLE.read_text())
    commands = dict.fromkeys(table["pytest"], (_PYTEST, False))
    commands |= {repo: (command, False) for repo, command in table["command"].items()}
    commands |= {repo: (command, True) for repo, command in table["refused"].items()}
    return {repo.lower(): entry for repo, entry in commands.items()}
