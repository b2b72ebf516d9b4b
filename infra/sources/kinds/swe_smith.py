"""SWE-smith rows: `patch` is the bug, and undoing it is the fix.

An image holds a repository without any bug, for all rows of it. The bug is put in before an agent
begins, and the files with the tests that fail of it are taken away, as on the data set's branches.
Pure. Imported by `rows`.
"""

import shlex
from collections.abc import Sequence

from infra.sources.fields import Row, names, text
from infra.sources.image_rules import ImageFamily, image_for
from infra.sources.patch_files import reversed_patch
from infra.sources.protocol import ImportOptions, RowError, RowProblem
from infra.sources.kinds.specs import END, START, WORKDIR, with_exit_code
from mainspring.tasks.criterion import TestLog

REPO_PREFIX = "swesmith/"
PARSER = "parse_log_pytest"


def task_fields(row: Row, options: ImportOptions) -> dict[str, object]:
    """Without what all SWE-bench rows have alike. Raises RowError."""
    task_id = text(row, "instance_id")
    bug = text(row, "patch")
    try:
        gold_patch = reversed_patch(bug)
    except ValueError as error:
        raise RowError(RowProblem.NOT_A_PATCH, f"patch is not a git patch: {error}") from None
    fail_to_pass, pass_to_pass = names(row, "FAIL_TO_PASS"), names(row, "PASS_TO_PASS")
    files = _files((*fail_to_pass, *pass_to_pass))
    lines = [
        "set -uxo pipefail",
        "source /opt/miniconda3/bin/activate",
        "conda activate testbed",
        f"cd {WORKDIR}",
        f": '{START}'",
        "pytest --disable-warnings --color=no --tb=no -rA " + shlex.join(files),
        f": '{END}'",
    ]
    return {
        "image": image_for(row, task_id, ImageFamily.SWE_SMITH, options.image_template),
        "base_patch": bug,
        "hidden_files": _files(fail_to_pass),
        "gold_patch": gold_patch,
        "test_command": with_exit_code("\n".join(lines) + "\n"),
        "judge": TestLog(parser=PARSER, fail_to_pass=fail_to_pass, pass_to_pass=pass_to_pass),
    }


def _files(tests: Sequence[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(test.partition("::")[0] for test in tests))
