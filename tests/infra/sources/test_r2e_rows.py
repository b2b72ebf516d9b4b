"""R2E-Gym's rows against its own reward: 35 logs with what the data set's parser made of the first
of them (`expected`) and whether its rule calls the second one solved."""

import json
import subprocess
from pathlib import Path

import pytest
from source_rows import read, tasks_of, write_lines

from infra.sources.protocol import RowError, RowProblem
from mainspring.tasks.criterion import ExitCode

LOGS = [
    json.loads(line)
    for line in (Path(__file__).parents[2] / "data" / "r2e-logs.jsonl").read_text().splitlines()
]
EXPECTED = {"TestA.test_one": "PASSED", "test_two[a b]": "FAILED"}


def r2e_row(expected: object, run: str = "cat log; exit 1") -> dict[str, object]:
    return {
        "repo_name": "pillow",
        "commit_hash": "abc123",
        "docker_image": "namanjain12/pillow_final:abc123",
        "problem_statement": "It hangs",
        "expected_output_json": json.dumps(expected),
        "test_command": run,
        "parsed_commit_content": "{}",
    }


def is_solved(folder: Path, expected: object, log: bytes) -> bool:
    (folder / "log").write_bytes(log)
    [task] = tasks_of(read(write_lines(folder / "r.jsonl", r2e_row(expected))))
    for path, text in task.tests.items():
        (folder / path.lstrip("/")).parent.mkdir(exist_ok=True)
        (folder / path.lstrip("/")).write_text(text)
    command = task.test_command.replace("/tests/", f"{folder}/tests/")
    assert task.judge == ExitCode() and "r2e_tests" in task.hidden_files
    run = subprocess.run(["bash", "-c", command], cwd=folder, capture_output=True)
    assert run.stderr == b"" and b"ended otherwise than expected" in run.stdout
    return run.returncode == 0


@pytest.mark.parametrize("given", LOGS, ids=[log["case"] for log in LOGS])
def test_the_reward_is_the_data_sets_own(tmp_path: Path, given: dict[str, object]) -> None:
    log = str(given["log"]).encode("latin-1")
    assert is_solved(tmp_path, given["expected"], log) is given["solved"]


def test_thousands_of_tests_fit(tmp_path: Path) -> None:
    names = [f"TestA.test_{number:05}_with_a_long_name_{'x' * 40}" for number in range(6000)]
    lines = [f"PASSED r2e_tests/test_1.py::{name.replace('.', '::')}\n" for name in names]
    log = "short test summary info\n" + "".join(lines)
    expected = dict.fromkeys(names, "PASSED")
    assert is_solved(tmp_path, expected, log.encode())
    assert not is_solved(tmp_path, expected, log.replace(lines[17], "").encode())


@pytest.mark.parametrize(
    ("expected", "said"),
    [
        ({"test_a": "SKIPPED"}, "ends as 'SKIPPED'"),
        ({"test_a": "passed"}, "ends as 'passed'"),
        ({"test_a": True}, "ends as 'True'"),
        ({"test_a": ["PASSED"]}, "ends as"),
        ({"r2e_tests/test_1.py::test_a": "PASSED"}, "has '::'"),
        ({"test_a\r": "PASSED"}, r"has '\r'"),
        ({"test_a\nb": "PASSED"}, r"has '\n'"),
        ({"\x1b[1;32mtest_a\x1b[0m": "PASSED"}, r"has '\x1b[1;32m'"),
        ({"test_PASSED": "FAILED"}, "gives PASSED for this name"),
        ({"test_FAILED": "ERROR"}, "gives FAILED for this name"),
    ],
)
def test_an_expectation_that_no_log_can_meet_is_refused(
    tmp_path: Path, expected: object, said: str
) -> None:
    row = r2e_row(EXPECTED | expected if isinstance(expected, dict) else expected)
    [found] = read(write_lines(tmp_path / "r.jsonl", row))
    assert isinstance(found.result, RowError)
    assert found.result.problem is RowProblem.IMPOSSIBLE and said in found.result.message


@pytest.mark.parametrize("expected", [[1], {}, "text", 3, [["test_a", "PASSED"]]])
def test_an_expectation_of_another_shape_is_refused(tmp_path: Path, expected: object) -> None:
    row = r2e_row(expected) | {"test_command": ""}
    [found] = read(write_lines(tmp_path / "r.jsonl", row))
    assert isinstance(found.result, RowError) and "must be an object" in found.result.message
