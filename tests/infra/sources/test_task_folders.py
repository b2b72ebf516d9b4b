"""Tasks that are folders: SWE-bench task repositories and Harbor tasks."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from source_rows import errors_of, read, tasks_of, v5_row

from mainspring.errors import UsageError
from mainspring.tasks.criterion import RewardFile, TestLog


def write(folder: Path, files: Mapping[str, str | bytes]) -> Path:
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return folder


def swebench_task(**more: Any) -> dict[str, str | bytes]:
    row = v5_row()
    short = ("instance_id", "repo", "version", "base_commit", "image", "log_parser", "eval_type")
    tests = {name: json.loads(row[name]) for name in ("FAIL_TO_PASS", "PASS_TO_PASS")}
    described = {name: row[name] for name in short} | {"split": "test", "datasets": ["a/b"]}
    return {
        "task.yaml": yaml.safe_dump(described | more),
        "tests.json": json.dumps(tests),
        "problem_statement.md": row["problem_statement"],
        "gold.patch": row["patch"],
        "test.patch": row["test_patch"],
        "eval.sh": row["eval_script"],
        "Dockerfile": "FROM x\n",
    }


def test_a_task_repository_gives_what_its_data_set_would(tmp_path: Path) -> None:
    write(tmp_path, {"sweb.yaml": "datasets: [a/b]\nsplits: [test]\n"})
    write(tmp_path / "tasks/good", swebench_task())
    write(tmp_path / "tasks/old", swebench_task(split="deprecated", instance_id="old"))
    write(tmp_path / "tasks/cut", swebench_task() | {"tests.json": "{"})
    write(tmp_path / "tasks/lost", swebench_task())
    (tmp_path / "tasks/lost/gold.patch").unlink()
    write(tmp_path / "tasks/pics", swebench_task() | {"test_assets/a/b.png": b"\xff"})

    rows = read(tmp_path, name="s", split=None)
    assert errors_of(rows) == ["wrong_type", "", "missing_field", "unsupported"]
    assert [row.id for row in rows][2:] == ["lost", "pics"]
    assert str(rows[2].place) == str(tmp_path / "tasks/lost")
    (row_file := tmp_path / "row.jsonl").write_text(json.dumps(v5_row() | {"split": "test"}))
    assert rows[1].result == tasks_of(read(row_file, name="s"))[0]
    assert [row.id for row in read(tmp_path, split="deprecated") if row.id == "old"] == ["old"]
    with pytest.raises(UsageError, match=r"sweb\.yaml"):
        read(write(tmp_path, {"sweb.yaml": "- a"}))


HARBOR = {
    "task.toml": '[metadata]\ndifficulty = "easy"\n[verifier]\ntimeout_sec = 12.5\n',
    "instruction.md": "Write hello.txt",
    "environment/Dockerfile": "FROM ubuntu\nWORKDIR /srv/app\nRUN make\n",
    "tests/test.sh": "echo 1 > /logs/verifier/reward.txt\n",
    "tests/data/a.json": "{}",
    "solution/solve.sh": "touch hello.txt\n",
}


def test_a_harbor_task(tmp_path: Path) -> None:
    write(tmp_path / "set/Hello_World", HARBOR)
    [task] = tasks_of(read(tmp_path / "set"))
    assert (task.id, task.source, task.split) == ("Hello_World", "set", "train")
    assert task.issue == "Write hello.txt"
    assert task.image == "mainspring-harbor/hello-world" and task.workdir == "/srv/app"
    assert list(task.tests) == ["/tests/data/a.json", "/tests/test.sh"]
    assert task.solution == {"solve.sh": "touch hello.txt\n"}
    assert task.test_command == "bash /tests/test.sh" and task.test_timeout_s == 12.5
    assert task.judge == RewardFile() and task.metadata == {"difficulty": "easy"}
    assert tasks_of(read(tmp_path / "set/Hello_World")) == [task]


@pytest.mark.parametrize(
    ("files", "image", "workdir", "repository"),
    [
        ({"environment/Dockerfile": "FROM a\nWORKDIR /w\nCOPY . /w\n", "environment/src/a": "1"},
         None, "/w", {"src/a": "1"}),
        ({"environment/Dockerfile": "FROM a\nWORKDIR /w\nCOPY src/ lib/\n# c\nCOPY b \\\n  ./\n",
          "environment/src/a": "1", "environment/b": "2"},
         None, "/w", {"lib/a": "1", "b": "2"}),
        ({"environment/Dockerfile": None, "environment/files/a/b": "1"},
         None, "/app", {"a/b": "1"}),
        ({"environment/Dockerfile": "FROM a\nWORKDIR /w\nCOPY a /etc/a\n", "environment/a": "1"},
         "mainspring-harbor/t", "/w", {}),
        ({"environment/Dockerfile": "FROM a\nCOPY --chown=1 a a\n", "environment/a": "1"},
         "mainspring-harbor/t", "/app", {}),
        ({"task.toml": '[environment]\ndocker_image = "me/x:1"\n'}, "me/x:1", "/srv/app", {}),
    ],
)  # fmt: skip
def test_where_a_harbor_task_runs(
    tmp_path: Path,
    files: dict[str, str | None],
    image: str | None,
    workdir: str,
    repository: dict[str, str],
) -> None:
    whole = {name: text for name, text in (HARBOR | files).items() if text is not None}
    [task] = tasks_of(read(write(tmp_path / "t", whole)))
    assert (task.image, task.workdir, task.files) == (image, workdir, repository)


@pytest.mark.parametrize(
    ("files", "problem"),
    [
        ({"task.toml": "timeout = ["}, "wrong_type"),
        ({"task.toml": "verifier = 3"}, "wrong_type"),
        ({"task.toml": '[verifier]\ntimeout_sec = "long"'}, "wrong_type"),
        ({"task.toml": "[[steps]]\nname = 'a'"}, "unsupported"),
        ({"task.toml": '[verifier.env]\nKEY = "${OPENAI_API_KEY}"'}, "unsupported"),
        ({"task.toml": '[environment.env]\nKEY = "${KEY:-x}"'}, "unsupported"),
        ({"task.toml": '[solution.env]\nKEY = "${KEY}"'}, "unsupported"),
        ({"task.toml": '[environment.env]\n"A-B" = "x"'}, "wrong_type"),
        ({"task.toml": '[solution.env]\nKEY = ["x"]'}, "wrong_type"),
        ({"task.toml": "[environment]\nenv = 3"}, "wrong_type"),
        ({"environment/docker-compose.yaml": "services: {}"}, "unsupported"),
        ({"instruction.md": None}, "missing_field"),
        ({"tests/test.sh": None}, "missing_field"),
        ({"tests/pic.png": b"\xff"}, "unsupported"),
        ({"environment/Dockerfile": None}, "no_image"),
        ({"environment/Dockerfile": "FROM a\nWORKDIR /w\nCOPY lost ./\n"}, "missing_field"),
    ],
)
def test_a_bad_harbor_task_is_named_and_alone(
    tmp_path: Path, files: dict[str, Any], problem: str
) -> None:
    write(tmp_path / "good", HARBOR)
    whole = {name: text for name, text in (HARBOR | files).items() if text is not None}
    write(tmp_path / "bad", whole)
    rows = read(tmp_path)
    assert errors_of(rows) == [problem, ""]
    assert rows[0].id == "bad" and str(rows[0].place) == str(tmp_path / "bad")


@pytest.mark.parametrize("begin", ["[", "{a=", "[{a=["])
def test_a_harbor_task_that_is_nested_without_end_is_refused(tmp_path: Path, begin: str) -> None:
    write(tmp_path / "bad", HARBOR | {"task.toml": "timeout = " + begin * 50_000})
    [row] = read(tmp_path)
    assert errors_of([row]) == ["wrong_type"] and "task.toml: it is nested too" in str(row.result)


def test_keys_of_many_parts_that_no_field_has_are_left_out(tmp_path: Path) -> None:
    write(tmp_path / "t", HARBOR | {"task.toml": f"[metadata]\n{'a.' * 2000}a = 1"})
    [task] = tasks_of(read(tmp_path))
    assert task.metadata == {}


def test_constants_of_the_verifiers_environment_are_set(tmp_path: Path) -> None:
    write(tmp_path / "t", HARBOR | {"task.toml": '[verifier.env]\nMODE = "a b"\n'})
    [task] = tasks_of(read(tmp_path / "t"))
    assert task.test_command == "export MODE='a b'\nbash /tests/test.sh"


def test_variables_of_the_environment_and_of_the_solution_are_kept_apart(tmp_path: Path) -> None:
    config = '[environment.env]\nMODE = "a b"\nN = 3\n[solution.env]\nANSWER = "it\'s"\n'
    write(tmp_path / "t", HARBOR | {"task.toml": config})
    [task] = tasks_of(read(tmp_path / "t"))
    assert task.variables == {"MODE": "a b", "N": "3"}
    assert task.solution["solve.sh"].startswith("export ANSWER='it'\"'\"'s'\n")
    assert task.test_command == "bash /tests/test.sh"


@pytest.mark.parametrize("dockerfile", [None, "FROM a\nWORKDIR /app\nCOPY files/ .\n"])
def test_executable_files_of_an_environment_keep_their_bit(
    tmp_path: Path, dockerfile: str | None
) -> None:
    files = HARBOR | {"environment/files/bin/tool": "#!/bin/sh\n", "environment/files/a": ""}
    files["environment/Dockerfile"] = dockerfile or ""
    write(tmp_path / "t", files)
    if dockerfile is None:
        (tmp_path / "t/environment/Dockerfile").unlink()
    (tmp_path / "t/environment/files/bin/tool").chmod(0o755)
    [task] = tasks_of(read(tmp_path / "t"))
    assert set(task.files) == {"bin/tool", "a"} and task.executables == ("bin/tool",)


def test_a_task_repositorys_judge_is_the_official_log_parser(tmp_path: Path) -> None:
    write(tmp_path, {"sweb.yaml": "datasets: [a/b]\n"})
    write(tmp_path / "tasks/good", swebench_task())
    judge = tasks_of(read(tmp_path))[0].judge
    assert isinstance(judge, TestLog) and judge.parser == "parse_log_scikit"
