"""R2E-Gym rows: the image holds the tests and `run_tests.sh`; the row tells how each ends.

Agents get the image without them.

A task is solved when exactly the expected tests ran and each ended as expected, which no log parser
of SWE-bench reports; a small program run after the tests does, and its exit code is the verdict. It
reads the log as the data set's own reward does, and the expectation is read the same way here. An
expectation that no log can meet is refused. A row that has a test command and no expectation is
judged by that command's exit code.

Imported by `rows`.
"""

import json
import re
import shlex
from collections.abc import Mapping

from infra.sources.fields import Row, from_json, patch, text, text_or
from infra.sources.protocol import RowError, RowProblem
from infra.sources.soundness import TESTS_DIR
from mainspring.artifacts.program_files import program

_RUN_TESTS = "[[ -e r2e_tests || ! -e /r2e_tests ]] || ln -s /r2e_tests .; bash run_tests.sh"
_HIDDEN_FILES = ("run_tests.sh", "r2e_tests", "/r2e_tests", "/root/r2e_tests")
ENDS = ("PASSED", "FAILED", "ERROR")
_COLOUR = re.compile(r"\x1b\[\d+m")
_NOT_IN_A_LOG = re.compile(r"::|\n|\r|\x1b\[[0-9;]*m")
"""Texts that no name read from a log has: they part names, or were taken out of the log."""
_END = "END_OF_EXPECTATION"
_MAX_INLINE_BYTES = 64 << 10
"""Size of an expectation that stands in the command, which may have twice as many."""
_EXPECTED_FILE = f"{TESTS_DIR}/expected_output.json"
# Test ids in the expectation have no file, and dots in the place of colons.
_CHECK = program(__file__, "r2e_check.py")


def task_fields(row: Row) -> dict[str, object]:
    """Without the image. Raises RowError."""
    return {
        "id": text_or(row, "instance_id", "") or _id(row),
        "issue": text(row, "problem_statement"),
        **_tests(row),
        "hidden_files": _HIDDEN_FILES if row.get("expected_output_json") else (),
        "gold_patch": patch(row, "patch")[0] if row.get("patch") else None,
        "metadata": {
            name: text(row, field)
            for name, field in (("repo", "repo_name"), ("base_commit", "commit_hash"))
            if row.get(field)
        },
    }


def _tests(row: Row) -> dict[str, object]:
    """`test_command`, and what it needs beside it. Raises RowError."""
    raw = row.get("expected_output_json")
    if not raw:
        return {"test_command": text(row, "test_command")}
    expected = json.dumps(_expectation(from_json(raw)), sort_keys=True)
    run = text_or(row, "test_command", _RUN_TESTS)
    check = f"set +o pipefail; {{ {run}\n}} 2>&1 | python3 -c {shlex.quote(_CHECK)} 3<"
    if len(expected) > _MAX_INLINE_BYTES:
        return {"test_command": f"{check} {_EXPECTED_FILE}", "tests": {_EXPECTED_FILE: expected}}
    return {"test_command": f"{check}<'{_END}'\n{expected}\n{_END}\n"}


def _expectation(raw: object) -> dict[str, str]:
    """By the test's name as the check finds it in a log. Raises RowError."""
    if not isinstance(raw, Mapping) or not raw:
        raise RowError(
            RowProblem.WRONG_TYPE,
            "expected_output_json must be an object of tests and how they end, or one as JSON text",
        )
    # Repositories whose pytest prints colours have them in the expectation, and in no log: there
    # they are taken out before it is read.
    plain = {_COLOUR.sub("", str(test)): ended for test, ended in raw.items()}
    for test, ended in plain.items():
        if ended not in ENDS:
            raise _never_met(f"{test[:80]!r} ends as {str(ended)[:40]!r}", " or ".join(ENDS))
        if match := _NOT_IN_A_LOG.search(test):
            raise _never_met(f"{test[:80]!r} has {match[0]!r}", "names without it")
        logged = next(end for end in ENDS if end in f"{ended} {test}")
        if logged != ended:
            raise _never_met(f"{test[:80]!r} ends as {ended}", f"{logged} for this name")
    return {test.split(" - ")[0]: plain[test] for test in sorted(plain)}


def _never_met(problem: str, expected: str) -> RowError:
    return RowError(
        RowProblem.IMPOSSIBLE,
        f"expected_output_json cannot be met: {problem}, and a log gives {expected}",
        remedy="make the expectation with the data set's own parser, from the log of its tests",
    )


def _id(row: Row) -> str:
    """These rows have no id; a repository at a commit is one task."""
    return f"{text(row, 'repo_name')}__{text(row, 'commit_hash')}"
