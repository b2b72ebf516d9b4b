"""Rows of data sets that cannot be tested by what the row holds, told by their right names.

Invariant: a command or a log parser is never invented. What is missing is said, so that a person
does not mend a row that nothing can mend. Kinds are told apart by columns that only they have.
Pure. Imported by `rows`, which asks here before it looks for a kind that it reads.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from infra.sources.fields import Row, from_json
from infra.sources.protocol import RowError, RowProblem

_OWN_ROW = (
    "give each row image, eval_script, log_parser and eval_type, or make it a row of your own "
    "(docs/tasks.md)"
)
_RENAMED = {
    "FAIL_TO_PASS": "fail_to_pass",
    "PASS_TO_PASS": "pass_to_pass",
    "patch": "golden_patch",
}
"""SWE-bench's columns, and what copies of it call them."""


@dataclass(frozen=True, slots=True)
class Foreign:
    name: str
    missing: str
    is_one: Callable[[Row, frozenset[str]], bool]
    """Given the row and its filled columns."""
    problem: RowProblem = RowProblem.NO_SPEC
    remedy: str = _OWN_ROW


def _has(*columns: str) -> Callable[[Row, frozenset[str]], bool]:
    return lambda _row, filled: not filled.isdisjoint(columns)


def _is_rebench_v2(row: Row, filled: frozenset[str]) -> bool:
    config = from_json(row.get("install_config"))
    if not isinstance(config, Mapping):
        return False
    own = {"base_image_name", "docker_specs"} & set(config)
    return bool(own) or isinstance(config.get("test_cmd"), list) or "language" in filled


def _is_multimodal(_row: Row, filled: frozenset[str]) -> bool:
    return "image_assets" in filled and not {"eval_script", "log_parser"} & filled


def _is_renamed(_row: Row, filled: frozenset[str]) -> bool:
    lacks = [name for name, other in _RENAMED.items() if name not in filled and other in filled]
    return bool(lacks) and "base_commit" in filled


def _is_chat(_row: Row, filled: frozenset[str]) -> bool:
    tests = {"FAIL_TO_PASS", "test_command", "expected_output_json"}
    return bool({"messages", "conversations", "trajectory"} & filled) and not tests & filled


def _is_prediction(_row: Row, filled: frozenset[str]) -> bool:
    return bool({"model_patch", "model_name_or_path"} & filled) and not (
        {"FAIL_TO_PASS", "test_patch", "test_command"} & filled
    )


KINDS = (
    Foreign(
        "a SWE-bench Pro row",
        "the scripts that run and read its tests (run_script.sh, parser.py) are files of the data "
        "set's own repository, one pair for each row",
        _has("before_repo_set_cmd", "selected_test_files_to_run", "dockerhub_tag"),
    ),
    Foreign(
        "a Multi-SWE-bench row",
        "its commands are in its image, and its log parser is a program of the package "
        "multi-swe-bench, one for each repository",
        lambda _row, filled: "fix_patch" in filled or {"org", "number", "base"} <= filled,
    ),
    Foreign(
        "a SWE-EVO row",
        "its test_cmds are read by a log parser of the data set's own repository",
        lambda _row, filled: "test_cmds" in filled and "end_version" in filled,
    ),
    Foreign(
        "a SWE-bench-Live row",
        "its test_cmds are read by a log parser of the data set's own repository",
        _has("test_cmds"),
    ),
    Foreign(
        "a SWE-rebench V2 row",
        "its log parser is a program of the data set's own repository, and only its image tells "
        "where the repository is",
        _is_rebench_v2,
    ),
    Foreign(
        "a SWE-bench Multimodal row without its tests",
        "it has no eval_script and no log_parser",
        _is_multimodal,
        remedy="import the newest SWE-bench/SWE-bench_Multimodal, whose rows have them",
    ),
    Foreign(
        "chats or trajectories, not tasks",
        "they have no tests",
        _is_chat,
        RowProblem.UNKNOWN_KIND,
        remedy="chats are what `mainspring sft` trains on (docs/supervised.md)",
    ),
    Foreign(
        "predictions for SWE-bench, not tasks",
        "they have patches of a model and no tests",
        _is_prediction,
        RowProblem.UNKNOWN_KIND,
        remedy="import the data set that they are for",
    ),
    Foreign(
        "a SWE-bench row whose columns have other names",
        "FAIL_TO_PASS, PASS_TO_PASS or patch is missing",
        _is_renamed,
        RowProblem.MISSING_FIELD,
        remedy="rename its columns: "
        + ", ".join(f"{other} to {name}" for name, other in _RENAMED.items()),
    ),
)


def refuse(row: Row, filled: frozenset[str]) -> None:
    """Raises RowError for a row of a kind that is known and not read."""
    if {"eval_script", "log_parser", "eval_type"} <= filled:
        return  # it brings all that SWE-bench's own rows bring
    for kind in KINDS:
        if kind.is_one(row, filled):
            raise RowError(
                kind.problem, f"it looks like {kind.name}: {kind.missing}", remedy=kind.remedy
            )
