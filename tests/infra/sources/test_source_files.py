"""Files of rows: each shape gives the same tasks, and each bad row is named and alone."""

import json
from pathlib import Path
from typing import Any

import pytest
from source_rows import (
    DJANGO,
    MOTO,
    SKLEARN,
    SWE_ROWS,
    errors_of,
    own_row,
    read,
    tasks_of,
    v5_row,
    without,
    write_lines,
)

from infra.sources import files
from infra.sources.exporting import instance_id
from infra.sources.protocol import RowError, RowProblem
from mainspring.errors import UsageError

ROWS = [MOTO, DJANGO, SKLEARN]


def write_parquet(path: Path, rows: list[dict[str, Any]]) -> Path:
    import pyarrow
    import pyarrow.parquet

    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    return path


def test_every_shape_of_file_gives_the_same_tasks(tmp_path: Path) -> None:
    listed, by_id = tmp_path / "list.json", tmp_path / "by_id.json"
    listed.write_text(json.dumps(ROWS))
    by_id.write_text(json.dumps({row["instance_id"]: without(row, "instance_id") for row in ROWS}))
    seeds = [
        {"text": row["problem_statement"], "metadata": {"instance": row, "data_source": "a/set"}}
        for row in ROWS
    ]
    files = [
        SWE_ROWS,
        listed,
        by_id,
        write_parquet(tmp_path / "rows.parquet", ROWS),
        write_lines(tmp_path / "seeds.jsonl", *seeds),
    ]
    hashes = [[task.content_hash for task in tasks_of(read(each, name="swe"))] for each in files]
    assert len(hashes[0]) == 3 and all(each == hashes[0] for each in hashes)
    assert {task.source for task in tasks_of(read(files[-1]))} == {"a/set"}
    assert {task.source for task in tasks_of(read(SWE_ROWS))} == {"swe-rows"}


def test_splits_are_chosen_and_given(tmp_path: Path) -> None:
    file = write_lines(tmp_path / "f.jsonl", own_row(), own_row() | {"id": "2", "split": "dev"})
    assert [task.split for task in tasks_of(read(file))] == ["train", "dev"]
    assert [task.split for task in tasks_of(read(file, split="test"))] == ["test"]
    assert [task.id for task in tasks_of(read(file, split="dev"))] == ["own-1", "2"]


BAD = [
    (without(MOTO, "problem_statement"), RowProblem.MISSING_FIELD, "problem_statement"),
    (MOTO | {"instance_id": ""}, RowProblem.MISSING_FIELD, "instance_id"),
    (MOTO | {"FAIL_TO_PASS": "[]"}, RowProblem.MISSING_FIELD, "FAIL_TO_PASS"),
    (MOTO | {"FAIL_TO_PASS": "[not json"}, RowProblem.WRONG_TYPE, "FAIL_TO_PASS"),
    (MOTO | {"PASS_TO_PASS": [1]}, RowProblem.WRONG_TYPE, "PASS_TO_PASS"),
    (MOTO | {"problem_statement": ["a"]}, RowProblem.WRONG_TYPE, "problem_statement"),
    (MOTO | {"patch": "fix the bug"}, RowProblem.NOT_A_PATCH, "patch"),
    (MOTO | {"patch": MOTO["patch"][:-200]}, RowProblem.NOT_A_PATCH, "cut short"),
    (MOTO | {"test_patch": "diff --git a/x b/x\n"}, RowProblem.NOT_A_PATCH, "test_patch"),
    (MOTO | {"repo": "some/where"}, RowProblem.NO_SPEC, "some/where"),
    (MOTO | {"version": "99.1"}, RowProblem.NO_SPEC, "0.4 to 5.0"),
    (v5_row() | {"image": None}, RowProblem.NO_IMAGE, "image"),
    (v5_row() | {"image": "Not an image"}, RowProblem.NO_IMAGE, "Not an image"),
    (v5_row() | {"log_parser": "parse_log of mine"}, RowProblem.UNKNOWN_PARSER, "parse_log of"),
    (v5_row() | {"eval_type": "often"}, RowProblem.WRONG_TYPE, "often"),
    (v5_row() | {"eval_script": "pytest"}, RowProblem.WRONG_TYPE, "Start Test Output"),
    (without(v5_row(), "eval_script"), RowProblem.MISSING_FIELD, "eval_script"),
    (own_row() | {"id": "a/../b"}, RowProblem.WRONG_TYPE, "cannot be a name"),
    (own_row() | {"source": "a\nb"}, RowProblem.WRONG_TYPE, "source"),
    (without(own_row(), "id"), RowProblem.MISSING_FIELD, "id"),
    (without(own_row(), "test_command"), RowProblem.MISSING_FIELD, "test_command"),
    (own_row() | {"tests": {"a": 1}}, RowProblem.WRONG_TYPE, "tests.a"),
    (own_row() | {"flies": {}}, RowProblem.WRONG_TYPE, "flies"),
    (without(own_row(), "files"), RowProblem.WRONG_TYPE, "neither an image nor files"),
    (own_row() | {"image": "x", "base_patch": "mend it"}, RowProblem.NOT_A_PATCH, "base_patch"),
    (own_row() | {"base_patch": MOTO["patch"]}, RowProblem.WRONG_TYPE, "are for images"),
    (own_row() | {"image": "x", "hidden_files": ["../a"]}, RowProblem.WRONG_TYPE, "../a"),
    ({"a": 1}, RowProblem.UNKNOWN_KIND, "a"),
    # An image is no mark of R2E's rows: its own fields are.
    (
        {"task_id": "t", "docker_image": "i", "instruction": "x"},
        RowProblem.UNKNOWN_KIND,
        "docker_image",
    ),
    (
        {"id": "t", "docker_image": "i", "problem_statement": "x"},
        RowProblem.UNKNOWN_KIND,
        "docker_image",
    ),
    (["no", "object"], RowProblem.NOT_JSON, "object"),
]


def test_each_bad_row_is_named_and_the_rest_is_read(tmp_path: Path) -> None:
    rows = [each for row, _, _ in BAD for each in (row, own_row())]
    found = read(write_lines(tmp_path / "bad.jsonl", *rows))
    assert len(found) == len(rows)
    for i, (row, problem, named) in enumerate(BAD):
        bad, good = found[2 * i : 2 * i + 2]
        assert isinstance(bad.result, RowError), row
        assert bad.result.problem is problem, bad.result
        assert named in str(bad.result)
        assert str(bad.place) == f"{tmp_path}/bad.jsonl:{2 * i + 1}"
        if isinstance(row, dict):
            assert bad.id == (row.get("instance_id") or row.get("id") or "")
        assert tasks_of([good])


def test_lines_that_are_not_json_are_rows_of_their_own(tmp_path: Path) -> None:
    file = write_lines(tmp_path / "cut.jsonl", own_row(), own_row())
    whole = file.read_bytes()
    file.write_bytes(b"\n" + b"\xff\n" + b"[" * 100_000 + b"\n" + whole[:-9])
    found = read(file)
    assert errors_of(found) == ["not_json", "not_json", "", "not_json"]
    assert [row.place.number for row in found] == [2, 3, 4, 5]


@pytest.mark.parametrize("share", [0.0, 0.5, 0.99])
def test_files_cut_short_are_one_error_that_names_them(tmp_path: Path, share: float) -> None:
    parquet, listed = write_parquet(tmp_path / "rows.parquet", ROWS), tmp_path / "rows.json"
    listed.write_text(json.dumps(ROWS))
    for file in (parquet, listed):
        whole = file.read_bytes()
        file.write_bytes(whole[: int(len(whole) * share)])
        with pytest.raises(UsageError, match=file.name) as error:
            read(file)
        assert "cut short" in error.value.remedy


@pytest.mark.parametrize(
    ("named", "said"),
    [
        ("missing.jsonl", "no file"),
        ("nothing", "no file or folder"),
        (".", "folder without tasks"),
        ("notes.txt", "not a file of rows"),
        ("number.json", "neither a list"),
    ],
)
def test_what_is_no_source_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, named: str, said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "notes.txt").write_text("")
    (tmp_path / "number.json").write_text("1")
    with pytest.raises(UsageError, match=said):
        read(named)


def test_a_prefix_is_put_before_ids_alone() -> None:
    plain, other = (tasks_of(read(SWE_ROWS, id_prefix=prefix))[0] for prefix in ("", "lite."))
    assert other.id == "lite.getmoto__moto-7365" and other.image == plain.image
    assert other.metadata == plain.metadata | {"instance_id": plain.id}
    assert instance_id(other) == instance_id(plain) == plain.id


def test_images_follow_a_template(tmp_path: Path) -> None:
    template = "mirror.example/{id_s}/x:{id}"
    moto = tasks_of(read(SWE_ROWS, image_template=template))[0]
    assert moto.image == "mirror.example/getmoto_s_moto-7365/x:getmoto__moto-7365"
    for bad in ("x", "{name}", "{id", "UPPER/{id}"):
        with pytest.raises(UsageError):
            read(SWE_ROWS, image_template=bad)
    hosts = tasks_of(read(SWE_ROWS, allow_hosts=("pypi.org:443",)))[0].allow_hosts
    assert hosts == ("pypi.org:443",)
    with pytest.raises(UsageError):
        read(SWE_ROWS, allow_hosts=("not a host",))


def test_a_byte_order_mark_is_no_part_of_a_row(tmp_path: Path) -> None:
    for name in ("f.jsonl", "f.json"):
        file = tmp_path / name
        rows = [own_row()] if name == "f.json" else own_row()
        file.write_bytes(b"\xef\xbb\xbf" + json.dumps(rows).encode())
        assert len(tasks_of(read(file))) == 1


def test_a_line_without_an_end_is_not_read_into_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "MAX_LINE_BYTES", 1 << 20)
    file = write_lines(tmp_path / "f.jsonl", own_row())
    with file.open("ab") as end:
        end.write(b"x" * (3 << 20))
    with pytest.raises(UsageError, match=r"f.jsonl:2: the line has more than 1 MiB"):
        read(file)


NEW_FILE = (
    "diff --git a/n.py b/n.py\nnew file mode 100644\n--- /dev/null\n+++ b/n.py\n@@ -0,0 +1 @@\n+x\n"
)
ELSEWHERE = ["sklearn/utils/tests/test_other.py::test_a"]
NEVER = [
    (own_row() | {"test_command": "true #" + "x" * 140_000}, "test_command has 140,006 bytes"),
    (own_row() | {"gold_patch": NEW_FILE.replace("n.py", "a.py")}, "gold_patch creates 'a.py'"),
    (own_row() | {"test_patch": NEW_FILE.replace("n.py", "a.py")}, "test_patch creates 'a.py'"),
    (
        SKLEARN | {"FAIL_TO_PASS": ELSEWHERE},
        "test_patch does not touch 'sklearn/utils",
    ),
]


@pytest.mark.parametrize(("row", "said"), NEVER, ids=[said for _, said in NEVER])
def test_a_row_that_nothing_can_resolve_is_refused(
    tmp_path: Path, row: dict[str, Any], said: str
) -> None:
    [found] = read(write_lines(tmp_path / "f.jsonl", row))
    assert isinstance(found.result, RowError) and said in found.result.message, found
    assert found.result.problem is RowProblem.IMPOSSIBLE


def test_a_file_that_one_patch_deletes_another_may_create(tmp_path: Path) -> None:
    gone = (
        "diff --git a/a.py b/a.py\ndeleted file mode 100644\n"
        "--- a/a.py\n+++ /dev/null\n@@ -1 +0,0 @@\n-x = 1\n"
    )
    row = own_row() | {"gold_patch": gone, "test_patch": NEW_FILE.replace("n.py", "a.py")}
    [found] = read(write_lines(tmp_path / "f.jsonl", row))
    assert "creates" not in str(found.result)
