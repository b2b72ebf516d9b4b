"""From one row of a data set, as a mapping of its columns, to a task. Pure.

Kinds of row are told apart by the columns that only they have; every kind is one function below.
Kinds that are known and cannot be tested are refused by name (`kinds.foreign`). Imported by the
sources beside this file.
"""

from collections.abc import Callable
from enum import StrEnum

from infra.sources.fields import Row, build_task, from_json, names, patch, text, text_or
from infra.sources.image_rules import image_for
from infra.sources.kinds import foreign, r2e, swe_rebench, swe_smith, verl
from infra.sources.kinds.log_parsers import check_parser
from infra.sources.kinds.specs import (
    END,
    START,
    WORKDIR,
    check_reached,
    eval_script,
    spec_for,
    with_exit_code,
)
from infra.sources.protocol import ImportOptions, Place, RowError, RowProblem, SourceRow
from infra.sources.wrapped import unwrapped
from mainspring.tasks.any_task import AnyTask
from mainspring.tasks.criterion import EvalType, TestLog
from mainspring.tasks.swe_task import SWE, SweTask

DEFAULT_SPLIT = "train"
TEST_TIMEOUT_S = 1800.0
"""The official harness's own limit."""
_SAID_TWICE = ("instance_id", "problem_statement", "image_name", "eval_script", "patch")
"""Fields that an exported row has besides a task's own, for readers that know these names only."""


class RowKind(StrEnum):
    OWN = "own"
    """Fields named like a Task's."""
    SWE_BENCH_V5 = "swe_bench_v5"
    """SWE-bench since version 5: brings its eval script and the name of its log parser."""
    CLASSIC = "classic"
    """SWE-bench before that, and SWE-Gym: how to test is in the spec table."""
    SWE_REBENCH = "swe_rebench"
    """SWE-rebench: how to test is in the row's own `install_config`."""
    SWE_SMITH = "swe_smith"
    """SWE-smith: its patch is the bug."""
    R2E = "r2e"
    """R2E-Gym and the like: an image that holds its tests, and what they should come to."""


def kind_of(row: Row) -> RowKind:
    """Raises RowError."""
    filled = frozenset(field for field, value in row.items() if value not in (None, "", [], {}))
    if "issue" in row:
        return RowKind.OWN
    foreign.refuse(row, filled)
    if str(row.get("repo")).startswith(swe_smith.REPO_PREFIX):
        return RowKind.SWE_SMITH
    if {"log_parser", "eval_type"} & filled:
        return RowKind.SWE_BENCH_V5
    if swe_rebench.CONFIG in filled:
        return RowKind.SWE_REBENCH
    if {"FAIL_TO_PASS", "base_commit"} & filled:
        return RowKind.CLASSIC
    # An image alone is a field of many kinds.
    is_r2e = {"docker_image", "test_command"} <= filled or {"repo_name", "commit_hash"} & filled
    if "expected_output_json" in filled or ("docker_image" in filled and is_r2e):
        return RowKind.R2E
    if "test_command" in filled:
        return RowKind.OWN
    raise RowError(
        RowProblem.UNKNOWN_KIND,
        f"no known kind of row has the fields {', '.join(sorted(map(str, row))[:8]) or '(none)'}",
        remedy="see docs/tasks.md for the kinds of rows that can be imported",
    )


def read_row(
    raw: object, place: Place, options: ImportOptions, *, source: str, split: str | None = None
) -> SourceRow | None:
    """One row of a file or data set; None when it is of another split than `options` asks for.

    A line that only carries a row is that row (`wrapped`, `kinds.verl`).
    `source` and `split` are defaults from the place; a row's own values win.
    """
    row_id = ""
    try:
        if not isinstance(raw, dict):
            raise RowError(RowProblem.NOT_JSON, "it is not a JSON object")
        is_verl = verl.is_verl(raw)
        row, own_source = verl.as_row(raw, place.number) if is_verl else unwrapped(raw)
        row_id = str(row.get("id") or row.get("instance_id") or "")
        own_split = text_or(row, "split", split or "")
        if own_split and options.split and own_split != options.split:
            return None
        task = task_from_row(
            row,
            options,
            source=options.name or own_source or source,
            split=own_split or options.split or DEFAULT_SPLIT,
        )
        return SourceRow(place, task.id, task)
    except RowError as error:
        return SourceRow(place, row_id, error)


def task_from_row(row: Row, options: ImportOptions, *, source: str, split: str) -> AnyTask:
    """Raises RowError."""
    fields = _READERS[kind_of(row)](row, options)
    fields = {"source": source, "split": split, **fields}
    if agent_name := text_or(row, "agent_name", ""):
        fields["agent_name"] = agent_name
    if row.get("tools"):
        fields["tools"] = names(row, "tools")
    task = build_task(fields, options)
    if isinstance(task, SweTask) and isinstance(task.judge, TestLog):
        check_parser(task.judge.parser)
    return task


def _own(row: Row, options: ImportOptions) -> dict[str, object]:
    fields = {key: value for key, value in row.items() if key not in _SAID_TWICE}
    needed = ("issue", "test_command") if text_or(row, "kind", SWE) == SWE else ("issue",)
    fields |= {key: text(row, key) for key in needed}
    if options.name is not None:
        fields["source"] = options.name
    if "id" not in fields and "instance_id" in row:
        fields["id"] = row["instance_id"]
    if options.image_template is not None:
        fields["image"] = image_for(row, text(fields, "id"), None, options.image_template)
    return fields


def _swe_bench_v5(row: Row, options: ImportOptions) -> dict[str, object]:
    assets = from_json(row.get("image_assets"))
    if isinstance(assets, dict) and assets.get("test_patch"):
        raise RowError(RowProblem.UNSUPPORTED, "its tests need binary files (image_assets)")
    script, eval_type = _given_script(row), text(row, "eval_type")
    if eval_type not in list(EvalType):
        raise RowError(
            RowProblem.WRONG_TYPE, f"eval_type {eval_type!r} is none of {', '.join(EvalType)}"
        )
    return _swe_bench(row, text(row, "log_parser"), EvalType(eval_type)) | {
        "image": image_for(row, text(row, "instance_id"), None, options.image_template),
        "test_command": script,
    }


def _given_script(row: Row) -> str:
    script = text(row, "eval_script")
    if START not in script or END not in script:
        raise RowError(
            RowProblem.WRONG_TYPE,
            f"eval_script does not print {START!r} and {END!r} round its tests",
        )
    return with_exit_code(script)


def _classic(row: Row, options: ImportOptions) -> dict[str, object]:
    task_id = text(row, "instance_id")
    if row.get("version") in (None, ""):
        raise RowError(
            RowProblem.MISSING_FIELD,
            "it looks like a classic SWE-bench row without version, which tells how it is tested",
            remedy="import the data set itself, or give the row image, eval_script, log_parser and "
            "eval_type",
        )
    spec = spec_for(text(row, "repo"), text(row, "version"))
    test_patch, test_files = patch(row, "test_patch")
    if not row.get("eval_script"):
        check_reached(spec, test_files, names(row, "FAIL_TO_PASS"))
    return _swe_bench(row, spec.parser, EvalType.PASS_AND_FAIL) | {
        "image": image_for(row, task_id, spec.images, options.image_template),
        "test_command": _given_script(row)
        if row.get("eval_script")
        else eval_script(spec, text(row, "base_commit"), test_patch, test_files),
    }


def _swe_rebench(row: Row, options: ImportOptions) -> dict[str, object]:
    spec = swe_rebench.spec_of(row)
    return _swe_bench(row, spec.parser, EvalType.PASS_AND_FAIL) | swe_rebench.test_fields(
        row, spec, options
    )


def _swe_bench(row: Row, parser: str, eval_type: EvalType) -> dict[str, object]:
    """Fields of both kinds of SWE-bench rows. The eval script applies the test patch itself."""
    fail_to_pass = names(row, "FAIL_TO_PASS")
    if not fail_to_pass:
        raise RowError(RowProblem.MISSING_FIELD, "FAIL_TO_PASS is empty: nothing to solve")
    facts = {field: text_or(row, field, "") for field in ("repo", "version", "base_commit")}
    return {
        "id": text(row, "instance_id"),
        "issue": text(row, "problem_statement"),
        "workdir": WORKDIR,
        "test_timeout_s": TEST_TIMEOUT_S,
        "gold_patch": patch(row, "patch")[0],
        "judge": TestLog(
            parser=parser,
            eval_type=eval_type,
            fail_to_pass=fail_to_pass,
            pass_to_pass=names(row, "PASS_TO_PASS"),
            repo=facts["repo"],
            version=facts["version"],
        ),
        "metadata": {field: value for field, value in facts.items() if value},
    }


def _swe_smith(row: Row, options: ImportOptions) -> dict[str, object]:
    return _swe_bench(row, swe_smith.PARSER, EvalType.PASS_AND_FAIL) | swe_smith.task_fields(
        row, options
    )


def _r2e(row: Row, options: ImportOptions) -> dict[str, object]:
    fields = r2e.task_fields(row)
    task_id = str(fields["id"])
    image = image_for(row, task_id, None, options.image_template)
    return fields | {"image": image, "workdir": WORKDIR, "test_timeout_s": TEST_TIMEOUT_S}


_READERS: dict[RowKind, Callable[[Row, ImportOptions], dict[str, object]]] = {
    RowKind.OWN: _own,
    RowKind.SWE_BENCH_V5: _swe_bench_v5,
    RowKind.CLASSIC: _classic,
    RowKind.SWE_REBENCH: _swe_rebench,
    RowKind.SWE_SMITH: _swe_smith,
    RowKind.R2E: _r2e,
}
