"""True fixes of real repositories are not marked, and the page has a row for each suspicion."""

import json
import os
from pathlib import Path

import pytest

from bundled.gold import make_gold_tasks
from mainspring.ids import TaskId
from mainspring.integrity.suspicion import suspicions
from mainspring.status import Suspicion
from mainspring.tasks.criterion import TestLog
from mainspring.tasks.swe_task import SweTask
from tests.adversarial.suspicion_table import PAGE, TALLY

ROWS = Path(os.environ.get("MAINSPRING_ROWS", Path(__file__).parents[1] / "data/swe-rows.jsonl"))
"""Rows of SWE-bench and of sets like it."""


def real_task(row: dict[str, str]) -> SweTask:
    """Without its true fix, whose files would be allowed: another agent's fix has others."""
    names = row["FAIL_TO_PASS"]
    return SweTask(
        id=TaskId(row["instance_id"]),
        source="rows",
        split="test",
        issue=row["problem_statement"],
        image="an-image",
        test_patch=row["test_patch"],
        test_command="pytest",
        judge=TestLog(
            parser="parse_log_pytest",
            repo=row["repo"],
            fail_to_pass=tuple(json.loads(names) if isinstance(names, str) else names),
        ),
    )


@pytest.mark.parametrize("with_tests", [False, True], ids=["fix", "fix and its tests"])
def test_real_true_fixes_are_not_marked(with_tests: bool) -> None:
    """Nor those of an agent that also changes the tests as the repository's people did."""
    rows = [json.loads(line) for line in ROWS.read_text().splitlines()]
    for row in rows:
        patch = row["patch"] + (row["test_patch"] if with_tests else "")
        marks = suspicions([], patch.encode(), real_task(row))
        TALLY.honest(marks, refused=bool(marks))
        assert marks == (), row["instance_id"]
    assert rows


def test_true_fixes_of_the_bundled_tasks_are_not_marked() -> None:
    for task in make_gold_tasks(5, "gold", 60):
        patch = (task.gold_patch or "").encode()
        marks = suspicions([], patch, task.model_copy(update={"gold_patch": None}))
        TALLY.honest(marks, refused=bool(marks))
        assert marks == ()


def test_the_page_has_each_suspicion_and_no_honest_work_is_marked() -> None:
    rows = [line for line in PAGE.read_text().splitlines() if line.startswith("| `")]
    cells = {row.split("|")[1].strip(" `"): row.split("|")[2].strip() for row in rows}
    remedy = (
        "run MAINSPRING_WRITE_TABLE=1 python -m pytest tests/adversarial "
        "tests/mainspring/integrity -k 'not contained' -n 0"
    )
    assert {each.value for each in Suspicion} <= set(cells), remedy
    assert all(cells[each].startswith("0 of ") for each in Suspicion), remedy
