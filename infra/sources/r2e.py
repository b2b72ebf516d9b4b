"""R2E-Gym rows: the image holds the tests and `run_tests.sh`; the row tells how each ends.

Agents get the image without them.

A task is solved when exactly the expected tests ran and each ended as expected, which no log parser
of SWE-bench reports; a small program run after the tests does, and its exit code is the verdict. A
row that has a test command and no expectation is judged by that command's exit code.

Imported by `rows`.
"""

import json
import shlex

from infra.sources.fields import Row, from_json, patch, text, text_or
from infra.sources.protocol import RowError, RowProblem
from mainspring.program_files import program

_RUN_TESTS = "[[ -e r2e_tests || ! -e /r2e_tests ]] || ln -s /r2e_tests .; bash run_tests.sh"
_HIDDEN_FILES = ("run_tests.sh", "r2e_tests", "/r2e_tests", "/root/r2e_tests")
# Test ids in the expectation have no file, and dots in the place of colons.
_CHECK = program(__file__, "r2e_check.py")


def task_fields(row: Row) -> dict[str, object]:
    """Without the image. Raises RowError."""
    return {
        "id": text_or(row, "instance_id", "") or _id(row),
        "issue": text(row, "problem_statement"),
        "test_command": _test_command(row),
        "hidden_files": _HIDDEN_FILES if row.get("expected_output_json") else (),
        "gold_patch": patch(row, "patch")[0] if row.get("patch") else None,
        "metadata": {
            name: text(row, field)
            for name, field in (("repo", "repo_name"), ("base_commit", "commit_hash"))
            if row.get(field)
        },
    }


def _test_command(row: Row) -> str:
    expected = row.get("expected_output_json")
    if not expected:
        return text(row, "test_command")
    expected = from_json(expected)
    if not isinstance(expected, dict) or not expected:
        raise RowError(
            RowProblem.WRONG_TYPE,
            "expected_output_json must be an object of tests and how they end, or one as JSON text",
        )
    expected = {test.split(" - ")[0]: ended for test, ended in expected.items()}
    run = text_or(row, "test_command", _RUN_TESTS)
    return f"set +o pipefail; {{ {run}\n}} 2>&1 | python3 -c {shlex.quote(_CHECK)} " + shlex.quote(
        json.dumps(expected, sort_keys=True)
    )


def _id(row: Row) -> str:
    """These rows have no id; a repository at a commit is one task."""
    return f"{text(row, 'repo_name')}__{text(row, 'commit_hash')}"
