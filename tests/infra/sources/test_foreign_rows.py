"""Rows of other data sets: read where they hold how they are tested, else refused by their name."""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from source_rows import DJANGO, MOTO, SKLEARN, Row, errors_of, read, tasks_of, v5_row, write_lines

from infra.sources.protocol import RowError, RowProblem
from mainspring.tasks.criterion import TestLog

PRO: Row = {
    "repo": "NodeBB/NodeBB",
    "instance_id": "instance_NodeBB__NodeBB-04998908ba6721d64eba79ae3b65a351dcfbc5b5",
    "base_commit": "1e137b07052bc3ea0da44ed201702c94055b8ad2",
    "patch": SKLEARN["patch"],
    "test_patch": SKLEARN["test_patch"],
    "problem_statement": "x",
    "requirements": "x",
    "interface": "x",
    "repo_language": "js",
    "fail_to_pass": "['test/database.js | Test database']",
    "pass_to_pass": "[]",
    "before_repo_set_cmd": "git reset --hard",
    "selected_test_files_to_run": '["test/database.js"]',
    "dockerhub_tag": "nodebb.nodebb-NodeBB__NodeBB-04998908",
}
LIVE = {key: value for key, value in SKLEARN.items() if key != "version"} | {
    "pull_number": "1",
    "test_cmds": ["pytest -rA"],
    "log_parser": "pytest",
    "difficulty": {"files": 1},
}
MULTI: Row = {
    "org": "cli",
    "repo": "cli",
    "number": 1,
    "state": "closed",
    "title": "x",
    "base": {"label": "cli:trunk", "ref": "trunk", "sha": "abc"},
    "fix_patch": SKLEARN["patch"],
    "test_patch": SKLEARN["test_patch"],
    "f2p_tests": {},
    "instance_id": "cli__cli-1",
}
INSTALL: Row = {
    "env_vars": None,
    "env_yml_path": None,
    "install": "pip install -e .[dev]",
    "log_parser": "parse_log_pytest",
    "no_use_env": None,
    "packages": "requirements.txt",
    "pip_packages": ["pytest"],
    "pre_install": None,
    "python": "3.9",
    "reqs_path": ["requirements.txt"],
    "test_cmd": "pytest --no-header -rA --tb=line --color=no -p no:cacheprovider",
}
REBENCH: Row = SKLEARN | {
    "repo": "scikit-learn/scikit-learn",
    "docker_image": "swerebench/sweb.eval.x86_64.scikit-learn_1776_scikit-learn-14141",
    "install_config": INSTALL,
}
V2 = REBENCH | {
    "language": "python",
    "install_config": {"log_parser": "parse_log_pytest", "test_cmd": ["pytest -rA"]},
}
GYM: Row = {"responses_create_params": {"input": [], "metadata": {}}}


@pytest.mark.parametrize(
    ("row", "said"),
    [
        (PRO, "a SWE-bench Pro row: the scripts that run and read its tests"),
        (PRO | {"FAIL_TO_PASS": "['a']", "PASS_TO_PASS": "[]"}, "a SWE-bench Pro row"),
        (LIVE, "a SWE-bench-Live row"),
        (LIVE | {"start_version": "1", "end_version": "2"}, "a SWE-EVO row"),
        (MULTI, "a Multi-SWE-bench row"),
        (V2, "a SWE-rebench V2 row"),
        (REBENCH | {"install_config": INSTALL | {"base_image_name": "py"}}, "a SWE-rebench V2 row"),
        (SKLEARN | {"image_assets": '{"patch": []}'}, "a SWE-bench Multimodal row"),
        (GYM, "a NeMo-Gym input without a task's row"),
        (GYM | {"metadata": {"question": "x"}}, "a NeMo-Gym input without"),
        ({"instance_id": "a", "model_patch": "x", "model_name_or_path": "m"}, "predictions"),
        ({"messages": [{"role": "user"}], "instance_id": "a"}, "chats or trajectories"),
        ({"conversations": [{"from": "human"}]}, "chats or trajectories"),
        ({"trajectory": [1], "model_patch": "x"}, "chats or trajectories"),
        (SKLEARN | {"version": ""}, "a classic SWE-bench row without version"),
        (
            {k: v for k, v in SKLEARN.items() if k != "FAIL_TO_PASS"} | {"fail_to_pass": ["a"]},
            "a SWE-bench row whose columns have other names",
        ),
        (
            {"base_commit": "a", "golden_patch": "x", "fail_to_pass": ["a"]},
            "a SWE-bench row whose columns have other names",
        ),
    ],
)
def test_a_row_that_does_not_hold_how_it_is_tested_is_refused_by_its_name(
    tmp_path: Path, row: Row, said: str
) -> None:
    [found] = read(write_lines(tmp_path / "rows.jsonl", row))
    assert isinstance(found.result, RowError), found
    assert found.result.message.startswith(f"it looks like {said}"), found.result
    assert found.result.remedy


def test_a_foreign_row_that_brings_its_eval_script_is_read(tmp_path: Path) -> None:
    rows = [v5_row() | {"image_assets": "{}", "test_cmds": ["x"], "dockerhub_tag": "x"}]
    assert tasks_of(read(write_lines(tmp_path / "rows.jsonl", *rows)))


def test_a_swe_rebench_row_is_tested_by_its_own_commands(tmp_path: Path) -> None:
    variables = {"A_B": "x y", "OTHER": None}
    rows = [
        REBENCH,
        REBENCH | {"install_config": json.dumps(INSTALL)},
        REBENCH | {"install_config": INSTALL | {"env_vars": variables, "install": ["a", "b"]}},
    ]
    plain, as_text, more = tasks_of(read(write_lines(tmp_path / "rows.jsonl", *rows)))
    assert plain.content_hash == as_text.content_hash
    test = f"\n{INSTALL['test_cmd']} sklearn/utils/tests/test_show_versions.py\n"
    assert test in plain.test_command and "\npip install -e .[dev]\n" in plain.test_command
    assert isinstance(plain.judge, TestLog) and plain.judge.parser == "parse_log_pytest"
    assert plain.image == REBENCH["docker_image"] and plain.workdir == "/testbed"
    assert "\nexport A_B='x y'\na\nb\n" in more.test_command and "OTHER" not in more.test_command
    subprocess.run(["bash", "-n"], input=more.test_command.encode(), check=True)
    # The table has other commands for the same repository; they are not used.
    [classic] = tasks_of(read(write_lines(tmp_path / "classic.jsonl", SKLEARN)))
    assert classic.test_command != plain.test_command


@pytest.mark.parametrize(
    ("config", "problem", "said"),
    [
        ("not json", RowProblem.WRONG_TYPE, "install_config must be an object"),
        ([1], RowProblem.WRONG_TYPE, "install_config must be an object"),
        (INSTALL | {"log_parser": ""}, RowProblem.NO_SPEC, "install_config.log_parser is missing"),
        (INSTALL | {"test_cmd": None}, RowProblem.NO_SPEC, "install_config.test_cmd is missing"),
        (INSTALL | {"test_cmd": 3}, RowProblem.WRONG_TYPE, "install_config.test_cmd must be text"),
        (INSTALL | {"log_parser": "parse_log_nope"}, RowProblem.UNKNOWN_PARSER, "parse_log_nope"),
        (INSTALL | {"install": [1]}, RowProblem.WRONG_TYPE, "install_config.install"),
        (INSTALL | {"env_vars": {"a b": 1}}, RowProblem.WRONG_TYPE, "install_config.env_vars"),
    ],
)
def test_an_install_config_that_cannot_be_used_is_refused(
    tmp_path: Path, config: Any, problem: RowProblem, said: str
) -> None:
    [found] = read(write_lines(tmp_path / "rows.jsonl", REBENCH | {"install_config": config}))
    assert isinstance(found.result, RowError)
    assert (found.result.problem, said in found.result.message) == (problem, True), found.result


def test_a_nemo_gym_input_that_holds_a_row_is_that_row(tmp_path: Path) -> None:
    request = {"input": [], "metadata": {"docker_image": "swebench/own:latest"}}
    inputs: list[Row] = [
        GYM | {"verifier_metadata": {"instance_dict": SKLEARN, "fail_to_pass": ["x"]}},
        {"responses_create_params": {"metadata": {"instance_dict": json.dumps(SKLEARN)}}},
        GYM | {"instance": SKLEARN},
        {"instance_dict": json.dumps(SKLEARN)},
        GYM | {"metadata": json.dumps({"instance": SKLEARN})},
        SKLEARN | GYM | {"subset": "gym", "instance_dict": DJANGO},
    ]
    hashes = {
        task.content_hash
        for task in tasks_of(read(write_lines(tmp_path / "gym.jsonl", *inputs), name="s"))
    }
    [plain] = tasks_of(read(write_lines(tmp_path / "plain.jsonl", SKLEARN), name="s"))
    assert hashes == {plain.content_hash}
    named = {"responses_create_params": request, "verifier_metadata": {"instance_dict": MOTO}}
    [task] = tasks_of(read(write_lines(tmp_path / "named.jsonl", named)))
    assert task.image == "swebench/own:latest" and task.id == MOTO["instance_id"]
    bad = [GYM | {"instance_dict": "{cut"}, GYM | {"verifier_metadata": {"instance_dict": [1]}}]
    assert errors_of(read(write_lines(tmp_path / "bad.jsonl", *bad))) == ["wrong_type"] * 2


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ('["a b", "c\'d"]', ("a b", "c'd")),
        ("['a b', \"c'd\"]", ("a b", "c'd")),
        ("['a',\n 'b',]", ("a", "b")),
        (["a"], ("a",)),
    ],
)
def test_lists_of_names_in_text(tmp_path: Path, given: object, expected: tuple[str, ...]) -> None:
    row = SKLEARN | {"repo": "sympy/sympy", "version": "1.8", "FAIL_TO_PASS": given}
    [task] = tasks_of(read(write_lines(tmp_path / "r.jsonl", row)))
    assert isinstance(task.judge, TestLog) and task.judge.fail_to_pass == expected


@pytest.mark.parametrize(
    "given",
    [
        "['a' 'b']",
        "['a' 'b'\n 'c']",
        "array(['a'], dtype=object)",
        "['a', 1]",
        "('a', 'b')",
        "{'a'}",
        "['a'",
        "[" * 100_000,
        "a, b",
        "['a' + 'b']",
        "[f'a']",
        "['a\x00']",
        '{"a": 1}',
    ],
)
def test_what_is_no_list_of_names_is_refused(tmp_path: Path, given: str) -> None:
    [found] = read(write_lines(tmp_path / "r.jsonl", SKLEARN | {"FAIL_TO_PASS": given}))
    assert isinstance(found.result, RowError)
    assert "FAIL_TO_PASS must be a list of names" in found.result.message
