"""Rows of R2E-Gym's kind as they are judged, rows of a hub's data set, rows of one's own."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from source_rows import (
    DJANGO,
    SKLEARN,
    SWE_ROWS,
    errors_of,
    own_row,
    read,
    tasks_of,
    v5_row,
    write_lines,
)

from infra.sources.exporting import eval_line
from infra.sources.hub import HubSource
from infra.sources.patch_files import reversed_patch
from infra.sources.protocol import ImportOptions, Place, RowError
from infra.sources.rows import read_row
from mainspring.ids import TaskId
from mainspring.tasks.criterion import EvalType, ExitCode, RewardFile, TestLog
from mainspring.tasks.swe_task import SweTask


def r2e_row(run: str) -> dict[str, object]:
    return {
        "repo_name": "tornado",
        "commit_hash": "abc123",
        "docker_image": "namanjain12/tornado_final:abc123",
        "problem_statement": "It hangs",
        "expected_output_json": '{"TestA.test_one": "PASSED"}',
        "test_command": run,
        "parsed_commit_content": "{}",
    }


def test_rows_with_an_image_and_a_command_are_judged_by_exit_code(tmp_path: Path) -> None:
    plain = r2e_row("make test") | {"expected_output_json": None, "agent_name": "mini"}
    plain["tools"] = ["bash", "submit"]
    bad = [plain | {"test_command": ""}, r2e_row("x") | {"expected_output_json": "[1]"}]
    bad += [plain | {"tools": [{"name": "bash"}]}, plain | {"tools": 7}]
    rows = read(write_lines(tmp_path / "r.jsonl", plain, *bad))
    assert errors_of(rows) == ["", "missing_field", "wrong_type", "wrong_type", "wrong_type"]
    [task] = tasks_of(rows[:1])
    assert (task.test_command, task.agent_name) == ("make test", "mini")
    assert task.tools == ("bash", "submit")


def test_a_swe_smith_row_brings_its_bug_and_hides_what_fails_of_it(tmp_path: Path) -> None:
    smith = SKLEARN | {"repo": "swesmith/Project-MONAI__MONAI.a09c1f08", "version": None}
    [task] = tasks_of(read(write_lines(tmp_path / "smith.jsonl", smith)))
    image = "docker.io/swebench/swesmith.x86_64.project-monai_1776_monai.a09c1f08:latest"
    assert task.image == image
    assert task.base_patch == SKLEARN["patch"]
    assert task.hidden_files == ("sklearn/utils/tests/test_show_versions.py",)
    assert "-rA sklearn/utils/tests/test_show_versions.py\n" in task.test_command
    named = smith | {"image_name": "elsewhere/smith"}
    [task] = tasks_of(read(write_lines(tmp_path / "named.jsonl", named)))
    assert task.image == "elsewhere/smith"
    older = smith | {"image_name": "jyangballin/swesmith.x86_64.project-monai_1776_monai.a09c1f08"}
    [task] = tasks_of(read(write_lines(tmp_path / "older.jsonl", older)))
    assert task.image == image
    renames = "diff --git a/x b/y\nsimilarity index 100%\nrename from x\nrename to y\n"
    file = write_lines(tmp_path / "renames.jsonl", smith | {"patch": renames})
    assert errors_of(read(file)) == ["not_a_patch"]


def smith_row(repo: str, *tests: str, kept: tuple[str, ...] = ()) -> dict[str, object]:
    return SKLEARN | {
        "repo": f"swesmith/{repo}",
        "FAIL_TO_PASS": list(tests) or ["t/test_a.py::test_a"],
        "PASS_TO_PASS": list(kept),
    }


@pytest.mark.parametrize(
    ("row", "said"),
    [
        (smith_row("tornadoweb__tornado.d5ac65c1"), "by `python -m tornado.test --verbose`"),
        (smith_row("un33k__python-slugify.872b3750"), "by `python test.py --verbose`"),
        (smith_row("mido__mido.a0158ff9"), "-c /dev/null"),
        (smith_row("python__mypy.e93f06ce"), "-rA -k"),
        (smith_row("gin-gonic__gin.3c12d2a8"), "how SWE-smith tests gin-gonic__gin.3c12d2a8 is"),
        (smith_row("jax-ml__jax.ebd90e06"), "not known"),
        (smith_row("axios__axios.ef36347f", "should parse"), "not known"),
        (smith_row("mahmoud__glom.fb3c4e76", "test_a (glom.test.T.test_a)"), "FAIL_TO_PASS"),
        (smith_row("mahmoud__glom.fb3c4e76", "a.py::t", kept=("TestX",)), "PASS_TO_PASS: 'TestX'"),
        (smith_row("mahmoud__glom.fb3c4e76", "a.js::t"), "is not FILE.py::TEST"),
        (smith_row("mahmoud__glom.fb3c4e76", "../a.py::t"), "is not FILE.py::TEST"),
        (smith_row("mahmoud__glom.fb3c4e76", "a.py::"), "is not FILE.py::TEST"),
    ],
)
def test_a_swe_smith_row_that_plain_pytest_does_not_test_is_refused(
    tmp_path: Path, row: dict[str, object], said: str
) -> None:
    [found] = read(write_lines(tmp_path / "smith.jsonl", row))
    assert isinstance(found.result, RowError) and said in found.result.message


def test_a_swe_smith_row_is_tested_by_the_data_sets_own_command(tmp_path: Path) -> None:
    tests = ("tests/test_a.py::test_a[x y]", "docs/usage.md::usage.md")
    rows = [
        smith_row("pydantic__pydantic.acb0f10f", *tests, kept=("tests/test_b.py::test_b",)),
        smith_row("paramiko__paramiko.23f92003", *tests),
    ]
    uv, plain = tasks_of(read(write_lines(tmp_path / "smith.jsonl", *rows), id_prefix="s."))
    assert uv.hidden_files == ("tests/test_a.py", "docs/usage.md")
    pytest_ = "pytest --disable-warnings --color=no --tb=no -rA"
    files = "tests/test_a.py docs/usage.md"
    assert f"\n/root/.local/bin/uv run {pytest_} {files} tests/test_b.py\n" in uv.test_command
    assert f"\n{pytest_} {files}\n" in plain.test_command


def test_a_reversed_patch_undoes_changed_added_and_deleted_files(tmp_path: Path) -> None:
    def git(*words: str, stdin: str = "") -> str:
        command = ["git", "-c", "user.name=a", "-c", "user.email=b", *words]
        done = subprocess.run(
            command, input=stdin, text=True, cwd=tmp_path, check=True, capture_output=True
        )
        return done.stdout

    (tmp_path / "kept").write_text("".join(f"{n}\n" for n in range(40)) + "-- no end")
    (tmp_path / "old").write_text("--- here\n+++ there\n")
    git("init", "-q")
    git("add", ".")
    git("commit", "-qm", "base")
    (tmp_path / "kept").write_text("zero\n" + "".join(f"{n}\n" for n in range(1, 39)) + "++ end\n")
    (tmp_path / "old").unlink()
    (tmp_path / "new").write_text("fresh\n")
    (tmp_path / "empty").touch()
    git("add", ".")
    patch = git("diff", "--cached")
    git("apply", "--index", stdin=reversed_patch(patch))
    assert git("status", "--porcelain") == ""
    git("apply", "--index", stdin=reversed_patch(reversed_patch(patch)))
    assert git("diff", "--cached") == patch


def test_a_v5_row_brings_everything_itself(tmp_path: Path) -> None:
    [task] = tasks_of(read(write_lines(tmp_path / "v5.jsonl", v5_row())))
    assert task.image == v5_row()["image"]
    assert isinstance(task.judge, TestLog) and len(task.judge.pass_to_pass) == 2
    assert task.test_command.count("Test Exit Code") == 1
    # An eval script alone, as some copies of the older sets have it, is used as it is.
    given_script = DJANGO | {"eval_script": v5_row()["eval_script"]}
    [older] = tasks_of(read(write_lines(tmp_path / "old.jsonl", given_script)))
    assert older.test_command == task.test_command
    assert isinstance(older.judge, TestLog) and older.judge.parser == "parse_log_django"


def test_rows_of_a_hub_data_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("datasets")
    monkeypatch.setenv("HF_HOME", str(tmp_path / "cache"))
    (tmp_path / "set").mkdir()
    for split in ("train", "test"):
        (tmp_path / "set" / f"{split}.jsonl").write_bytes(SWE_ROWS.read_bytes())
    options = ImportOptions(name="s")
    # The library takes a folder as it takes a name on the hub.
    rows = list(HubSource(str(tmp_path / "set"), options).rows())
    assert [row.result.split for row in rows if isinstance(row.result, SweTask)] == (
        ["train"] * 3 + ["test"] * 3
    )
    assert str(rows[3].place).endswith("set@test:1")
    [only, *_] = HubSource(str(tmp_path / "set"), ImportOptions(name="s", split="test")).rows()
    assert only == rows[3]
    local = tasks_of(read(SWE_ROWS, name="s", split="test"))
    assert [row.result for row in rows[3:]] == local


def test_a_hub_that_does_not_answer(tmp_path: Path) -> None:
    pytest.importorskip("datasets")
    program = (
        "from infra.sources.resolve import open_source\n"
        "from infra.sources.protocol import ImportOptions\n"
        "from mainspring.errors import ServiceError\n"
        "try: list(open_source('a/b', ImportOptions()).rows())\n"
        "except ServiceError as error: print(error)\n"
    )
    # The library tries for half a minute before it says so of an address that refuses.
    env = {"HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path), "PATH": "/usr/bin:/bin"}
    said = subprocess.run(
        [sys.executable, "-c", program], env=env, capture_output=True, text=True, timeout=120
    )
    assert "a/b" in said.stdout and "HF_ENDPOINT" in said.stdout, said.stderr


def test_a_hub_that_refuses_is_told_at_once_and_once(tmp_path: Path) -> None:
    pytest.importorskip("datasets")
    program = (
        "from infra.sources.resolve import open_source\n"
        "from infra.sources.protocol import ImportOptions\n"
        "list(open_source('a/b', ImportOptions()).rows())\n"
    )
    env = {"HF_ENDPOINT": "http://127.0.0.1:9", "HF_HOME": str(tmp_path), "PATH": "/usr/bin:/bin"}
    said = subprocess.run(
        [sys.executable, "-c", program], env=env, capture_output=True, text=True, timeout=120
    )
    assert "a/b cannot be read from the hub: http://127.0.0.1:9" in said.stderr
    assert "Retry" not in said.stderr and said.stdout == ""


TEXT = st.text(max_size=30)
SOME = st.text(min_size=1, max_size=30).filter(str.strip)
PATHS = st.from_regex(r"\A[\w ]{1,9}\.py\Z")
NAMES = st.lists(SOME, min_size=1, max_size=3).map(tuple)
JUDGES = st.one_of(
    st.just(ExitCode()),
    st.builds(RewardFile, threshold=st.floats(0, 1)),
    st.builds(
        TestLog,
        parser=st.just("parse_log_pytest"),
        eval_type=st.sampled_from(EvalType),
        fail_to_pass=NAMES,
        pass_to_pass=NAMES,
        repo=TEXT,
        version=TEXT,
    ),
)
WORDS = st.from_regex(r"\A\w[\w.:@-]{0,9}\Z")
TASKS = st.builds(
    SweTask,
    id=WORDS.map(TaskId),
    source=WORDS,
    split=WORDS,
    issue=SOME,
    image=st.none() | st.just("a/b:1"),
    workdir=WORDS.map("/{}".format),
    files=st.dictionaries(PATHS, TEXT, min_size=1, max_size=2),
    tests=st.dictionaries(PATHS | WORDS.map("/tests/{}".format), TEXT, max_size=3),
    test_patch=st.sampled_from(["", SKLEARN["test_patch"]]),
    test_command=SOME,
    test_timeout_s=st.floats(0.001, 1e5),
    judge=JUDGES,
    gold_patch=st.none() | st.just(SKLEARN["patch"]),
    solution=st.just({}) | TEXT.map(lambda script: {"solve.sh": script}),
    agent_name=st.none() | TEXT,
    tools=st.just(()) | st.just(("bash", "own:Tool")),
    allow_hosts=st.just(()) | st.just(("pypi.org:443",)),
    metadata=st.dictionaries(st.sampled_from(["repo", "version", "instance"]), TEXT),
)

ALTERED = {"image": "a/b:1", "base_patch": SKLEARN["patch"], "hidden_files": ["t.py", "/tests"]}


def applicable(task: SweTask) -> SweTask:
    """The patches are of a repository that only an image has."""
    patches = {"gold_patch": None, "test_patch": ""} if task.image is None else {}
    return task.model_copy(update=patches)


def altered(task: SweTask) -> SweTask:
    return SweTask.model_validate(task.model_dump() | ALTERED)


@settings(max_examples=60, deadline=None)
@given(TASKS.map(applicable) | TASKS.map(altered))
def test_what_is_exported_is_imported_the_same(task: SweTask) -> None:
    row = read_row(json.loads(eval_line(task)), Place("f", 1), ImportOptions(), source="else")
    assert row is not None and isinstance(row.result, SweTask), row
    assert row.result == task and row.result.content_hash == task.content_hash


@settings(max_examples=60, deadline=None)
@given(
    st.recursive(
        st.none() | st.booleans() | st.floats() | TEXT,
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    ),
    st.sampled_from(
        [
            SKLEARN,
            v5_row(),
            own_row(),
            r2e_row("x"),
            smith_row("mahmoud__glom.fb3c4e76"),
            SKLEARN | {"image": "a/b", "install_config": {"test_cmd": "x", "log_parser": "y"}},
            {"responses_create_params": {"metadata": {}}, "instance_dict": SKLEARN},
        ]
    ),
    st.integers(0, 30),
)
def test_no_row_is_more_than_an_error(value: object, row: dict[str, object], i: int) -> None:
    """Any field, whatever it holds."""
    spoiled = row | {list(row)[i % len(row)]: value}
    for raw in (value, spoiled):
        found = read_row(raw, Place("f", 1), ImportOptions(), source="s")
        assert found is not None
