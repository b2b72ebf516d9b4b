"""Patches taken apart and put together; what of them counts for a task."""

import json
import os
import subprocess
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from infra.sources.protocol import ImportOptions
from infra.sources.resolve import open_source
from mainspring.ids import TaskId
from mainspring.tasks.patches import (
    attributes_last,
    hidden_paths,
    is_ci,
    is_test,
    paths,
    split,
    without_tests,
)
from mainspring.tasks.swe_task import SweTask

NAMES = st.sampled_from(
    [
        "a.py",
        "b c",
        "d\te",
        'q"u\\o',
        "\u00e9",
        " lead",
        "x\ny",
        "b/f.py",
        "b/g h/i",
        "b/-- a",
        "--",
    ]
)
BINARY = st.binary(max_size=40).map(lambda tail: b"\0\1" + tail)
LINES = st.lists(
    st.sampled_from(
        [
            *("", "x", "- a/x", "-- a/x", "++ b/x", "@@ -1,2 +3,4 @@", "diff --git a/x b/x"),
            *(
                "GIT binary patch",
                "literal 3",
                "\\ No newline at end of file",
                "\rx",
                "rename to y",
            ),
        ]
    ),
    max_size=12,
)
TEXT = st.tuples(LINES, st.booleans()).map(
    lambda drawn: ("\n".join(drawn[0]) + "\n" * drawn[1]).encode()
)
TREES = st.dictionaries(NAMES, st.tuples(BINARY | TEXT, st.booleans()), max_size=6)
ENVIRONMENT = {
    **{name: os.environ[name] for name in ("PATH",)},
    **{f"GIT_{who}_{what}": "x" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")},
    "GIT_CONFIG_GLOBAL": "/dev/null",
}


def git(folder: Path, *arguments: str, stdin: bytes = b"") -> bytes:
    done = subprocess.run(
        ["git", *arguments], cwd=folder, input=stdin, capture_output=True, env=ENVIRONMENT
    )
    assert done.returncode == 0, (arguments, done.stderr, stdin)
    return done.stdout


def fill(folder: Path, tree: dict[str, tuple[bytes, bool]]) -> None:
    """Files with their executable bits; a name that is also a folder's loses."""
    git(folder, "rm", "-rfq", "--ignore-unmatch", ".")
    for name, (content, executable) in tree.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        path.chmod(0o755 if executable else 0o644)
    git(folder, "add", "-A")


def entries(folder: Path) -> set[bytes]:
    return set(git(folder, "ls-files", "-sz").split(b"\0")) - {b""}


@settings(
    max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(before=TREES, after=TREES, renames=st.booleans(), part=st.integers(0, 63))
def test_the_parts_of_a_patch_are_the_patch_and_can_be_taken_one_by_one(
    before, after, renames, part
) -> None:
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        git(folder, "init", "-q")
        fill(folder, before)
        git(folder, "commit", "-q", "--allow-empty", "-m", "before")
        old = entries(folder)
        fill(folder, after)
        new = entries(folder)
        how = "-M" if renames else "--no-renames"
        patch = git(folder, "diff", "--cached", "--binary", how, "HEAD")
        preamble, changes = split(patch)
        assert preamble + b"".join(change.raw for change in changes) == patch
        assert split(b"From: me\n\n" + patch)[1] == changes
        listed = git(folder, "diff", "--cached", "--no-renames", "--name-only", "-z", "HEAD")
        changed = {os.fsdecode(name) for name in listed.split(b"\0")} - {""}
        assert paths(patch) == changed
        # Without the parts of some files exactly these stay as they were.
        kept = [change for number, change in enumerate(changes) if part >> number & 1]
        git(folder, "read-tree", "--reset", "HEAD")
        if kept:
            counts = b"".join(change.raw for change in kept)
            git(folder, "apply", "--cached", "--whitespace=nowarn", stdin=counts)
        names = {name for change in kept for name in (change.path, change.old_path)}

        def of(listed: set[bytes], inside: bool) -> set[bytes]:
            return {
                each
                for each in listed
                if (os.fsdecode(each.partition(b"\t")[2]) in names) is inside
            }

        assert entries(folder) == of(new, True) | of(old, False)


@settings(max_examples=200, deadline=None)
@given(
    st.lists(
        st.sampled_from(
            [
                *(b"diff --git a/x b/x\n", b"--- a/x\n", b"+++ b/x\n", b"@@ -1,3 +1 @@\n", b"\n"),
                *(b"@@ -0,0 +1,9 @@\n", b"+x\n", b"-x\n", b"\xff\0", b"rename to z\n", b'"\\'),
                *(b'diff --git "a/\\303\n', b"diff --git \n", b"GIT binary patch\n", b"--- \n"),
            ]
        )
    ).map(b"".join)
)
def test_whatever_a_patch_is_its_parts_are_it(patch) -> None:
    preamble, changes = split(patch)
    assert preamble + b"".join(change.raw for change in changes) == patch


def change(path: str, line: str = "x") -> str:
    return f"diff --git a/{path} b/{path}\n--- a/{path}\n+++ b/{path}\n@@ -1 +1 @@\n-{line}\n+y\n"


def make_task(**fields) -> SweTask:
    return SweTask(
        id=TaskId("t/1"),
        source="t",
        split="train",
        issue="x",
        files={"a.py": "x"},
        **{"test_command": "true", **fields},
    )


def test_only_files_that_do_not_count_are_dropped() -> None:
    task = make_task(
        tests={"hidden/check.py": "", "/tests/test.sh": ""},
        test_patch=change("hidden/patched.py"),
        test_command="git apply - <<'EOF'\n" + change("hidden/in script.py") + "EOF\n",
        gold_patch=change("tests/data.py") + change("conftest.py"),
    )
    stay = [
        *("a.py", "django/test/client.py", "sympy/utilities/runtests.py", "src/_pytest/main.py"),
        *(
            "tests/data.py",
            "conftest.py",
            "tox.ini",
            "setup.cfg",
            "hidden/other.py",
            "testing/a.py",
        ),
        *(
            ".github/dependabot.yml",
            "docs/.travis.yml",
            "contest.py",
            "protest_x.py",
            "latest/a.js",
        ),
    ]
    go = [
        *("hidden/check.py", "hidden/check.py/inner", "hidden/patched.py", "hidden/in script.py"),
        *("tests/other.py", "pkg/tests/a.txt", "test/a.py", "web/__tests__/a.js", "pkg/test_a.py"),
        *("pkg/a_test.py", "pkg/conftest.py", "a.test.ts", "b.spec.jsx", "c_test.go"),
        *(".github/workflows/ci.yml", ".gitlab-ci.yml", ".circleci/config.yml", ".travis.yml"),
        *("azure-pipelines.yml", "tests/\u00e9.py"),
    ]
    patch = "".join(map(change, [*stay, *go])).encode()
    counts, dropped = without_tests(patch, task)
    assert (list(dropped), counts) == (go, "".join(map(change, stay)).encode())
    assert without_tests("".join(map(change, go)).encode(), task) == (b"", tuple(go))
    assert without_tests(b"no patch", task) == (b"no patch", ())


@pytest.mark.parametrize(
    "smuggled",
    [
        change("tests/b.py").partition("\n")[2],  # names and a hunk, without git's own header
        'diff --git "a/te\\163ts/b.py" "b/te\\163ts/b.py"\nold mode 100644\nnew mode 100755\n',
        "diff --git a/a.py b/tests/b.py\nsimilarity index 100%\n"
        "rename from a.py\nrename to tests/b.py\n",
        "diff --git a/tests/b.py b/tests/b.py\ndeleted file mode 100644\n"
        "--- a/tests/b.py\n+++ /dev/null\n@@ -1 +0,0 @@\n-x\n",
    ],
)
def test_a_change_cannot_hide_behind_another_files(smuggled) -> None:
    # What looks like a header inside a hunk is not one.
    honest = change("a.py", "-- a/tests/x\n-++ b/tests/x").replace("-1 +1", "-1,2 +1")
    counts, dropped = without_tests((honest + smuggled).encode(), make_task())
    assert (counts, dropped) == (honest.encode(), ("tests/b.py",))


ROWS = Path(__file__).parents[2] / "data" / "swe-rows.jsonl"


def test_of_real_rows_the_hidden_tests_are_known_and_the_true_fix_counts_whole() -> None:
    """Also where the test patch stands in the test command alone."""
    rows = {row["instance_id"]: row for row in map(json.loads, ROWS.read_text().splitlines())}
    imported = [row.result for row in open_source(str(ROWS), ImportOptions()).rows()]
    assert len(imported) == len(rows) >= 3
    for task in imported:
        assert isinstance(task, SweTask)
        assert hidden_paths(task) == paths(rows[task.id]["test_patch"].encode())
        assert without_tests(str(task.gold_patch).encode(), task)[1] == ()


def test_strange_paths_are_no_tests() -> None:
    assert not any(is_test(path) or is_ci(path) for path in ("", "/", "..", "test", "tests"))


def changed(path: str, *lines: str) -> bytes:
    return "\n".join([f"diff --git a/{path} b/{path}", *lines, ""]).encode()


@pytest.mark.parametrize(
    "header",
    [
        ("new file mode 160000", "index 0000000..1111111"),
        ("deleted file mode 160000", "index 1111111..0000000"),
        ("index 1111111..2222222 160000",),
    ],
)
def test_a_commit_of_a_repository_inside_does_not_count_and_is_named(header) -> None:
    row = {"id": "t", "issue": "x", "test_command": "true", "files": {"a": ""}, "split": "train"}
    task = SweTask.model_validate(row | {"source": "t"})
    rest = changed("a", "index 1..2 100644", "--- a/a", "+++ b/a", "@@ -0,0 +1 @@", "+ 160000")
    link = changed("lib", *header, "--- a/lib", "+++ b/lib", "@@ -1 +1 @@", "-x 1", "+x 2")
    assert without_tests(link + rest, task) == (rest, ("lib",))
    assert without_tests(rest, task) == (rest, ())


def test_gitattributes_come_last_and_nothing_else_moves() -> None:
    body = ("--- /dev/null", "@@ -0,0 +1 @@", "+x")
    one, two, deep = (changed(path, *body) for path in ("a", "b", "c/.gitattributes"))
    top = changed(".gitattributes", *body)
    assert attributes_last(top + one + deep + two) == one + two + top + deep
    assert attributes_last(one + two[:-1]) == one + two[:-1]
    assert attributes_last(top + one[:-1]) == one + top
