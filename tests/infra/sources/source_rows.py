"""Rows to import: three real ones, and what others look like."""

import json
from pathlib import Path
from typing import Any

from infra.sources.protocol import ImportOptions, RowError, SourceRow
from infra.sources.resolve import open_source
from mainspring.tasks.swe_task import SweTask

SWE_ROWS = Path(__file__).parents[2] / "data" / "swe-rows.jsonl"
MOTO, DJANGO, SKLEARN = (json.loads(line) for line in SWE_ROWS.read_text().splitlines())

Row = dict[str, Any]


def v5_row() -> Row:
    script = "#!/bin/bash\nset -x\n: '>>>>> Start Test Output'\npytest\n: '>>>>> End Test Output'\n"
    return SKLEARN | {
        "image": "swebench/sweb.eval.x86_64.scikit-learn_1776_scikit-learn-14141:latest",
        "eval_script": script,
        "log_parser": "parse_log_scikit",
        "eval_type": "pass_and_fail",
        "FAIL_TO_PASS": json.dumps(SKLEARN["FAIL_TO_PASS"]),
        "PASS_TO_PASS": json.dumps(SKLEARN["PASS_TO_PASS"]),
    }


def own_row() -> Row:
    return {"id": "own-1", "issue": "Mend it", "files": {"a.py": "x = 1\n"}, "test_command": "true"}


def without(row: Row, *fields: str) -> Row:
    return {field: value for field, value in row.items() if field not in fields}


def write_lines(path: Path, *rows: object) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def read(named: str | Path, **options: Any) -> list[SourceRow]:
    return list(open_source(str(named), ImportOptions(**options)).rows())


def tasks_of(rows: list[SourceRow]) -> list[SweTask]:
    """Fails for a row that is none."""
    for row in rows:
        assert isinstance(row.result, SweTask), f"{row.place}: {row.result}"
    return [row.result for row in rows if isinstance(row.result, SweTask)]


def errors_of(rows: list[SourceRow]) -> list[str]:
    """What is wrong with each; empty for a task."""
    return [row.result.problem if isinstance(row.result, RowError) else "" for row in rows]
