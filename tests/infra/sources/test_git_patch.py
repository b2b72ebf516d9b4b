"""Patches of rows as git reads them: what is accepted `git apply` takes, the rest is told."""

import subprocess
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from source_rows import Row, own_row, read, tasks_of, write_lines

from infra.sources.git_patch import whole_patch
from infra.sources.protocol import RowError

BUGGY = "def add(a, b):\n    return a - b\n"
FIX = (
    "diff --git a/calc.py b/calc.py\n--- a/calc.py\n+++ b/calc.py\n@@ -1,2 +1,2 @@\n"
    " def add(a, b):\n-    return a - b\n+    return a + b\n"
)
NEW = "diff --git a/n b/n\nnew file mode 100644\n--- /dev/null\n+++ b/n\n@@ -0,0 +1 @@\n+x\n"
MAIL = "From abc\nSubject: [PATCH] x\n\n - item\n+ item\n---\n{}-- \n2.39.2\n\n"

ACCEPTED = {
    "as git writes it": FIX,
    "no newline at the end": FIX[:-1],
    "a note without its newline": FIX + "\\ No newline at end of file",
    "mnemonic prefixes": FIX.replace("a/calc", "i/calc").replace("b/calc", "w/calc"),
    "timestamps": FIX.replace("--- a/calc.py", "--- a/calc.py\t2024-01-01 10:00:00.0 +0000"),
    "a mail": MAIL.format(FIX),
    "two mails": MAIL.format(FIX) + MAIL.format(NEW),
    "blank lines at the end": FIX + "\n\n",
    "a new file": FIX + NEW,
    "mode alone": "diff --git a/calc.py b/calc.py\nold mode 100644\nnew mode 100755\n",
    "a rename": "diff --git a/calc.py b/c\nrename from calc.py\nrename to c\n",
}
REFUSED = {
    "no prefixes": (FIX.replace("a/calc", "calc").replace("b/calc", "calc"), "no a/ and b/"),
    "no prefixes, a folder": (FIX.replace("a/calc", "s/c").replace("b/calc", "s/c"), "no a/ and"),
    "one name without prefix": (FIX.replace("--- a/calc", "--- calc"), "git apply"),
    "no git header": (FIX.partition("\n")[2], "`diff --git` is missing"),
    "a header alone": (FIX.partition("\n")[0], "nothing follows"),
    "more lines than counted": (FIX + "+    more\n", "beyond the lines"),
    "fewer lines counted": (FIX.replace("-1,2 +1,2", "-1,1 +1,1"), "beyond the lines"),
    "more lines counted": (FIX.replace("-1,2 +1,2", "-1,3 +1,3"), "cut short"),
    "cut in the header of a hunk": (FIX + "@@ -9,2", "no whole header of a hunk"),
    "numbers that are none": (FIX.replace("@@ -1,2", "@@ -1,x"), ""),
    "a line of no kind": (FIX.replace(" def", "def"), "invalid line in a hunk"),
    "colours": (FIX.replace("-    ret", "\x1b[31m-    ret"), "invalid line in a hunk"),
    "binary without content": (
        "diff --git a/x b/x\nindex 1..2 100644\nBinary files a/x and b/x differ\n",
        "has no content",
    ),
    "binary cut short": ("diff --git a/x b/x\nGIT binary patch\nliteral 9\nQcmZ\n\n", "git apply"),
    "outside": (FIX.replace("calc.py", "../calc.py"), "is not relative"),
    "absolute": (FIX.replace("/calc.py", "//etc/calc.py"), "is not relative"),
    "git's own folder": (FIX.replace("calc.py", ".git/config"), "inside a git directory"),
    "combined": ("diff --cc calc.py\n--- a/calc.py\n+++ b/calc.py\n@@@ -1 -1 +1 @@@\n++c\n", ""),
    "prose": ("return a + b instead", "no line begins with `diff --git`"),
    "half a surrogate pair": (FIX.replace("add", "\ud800"), "half a surrogate pair"),
}


@pytest.mark.parametrize("name", ACCEPTED)
def test_an_accepted_patch_applies(tmp_path: Path, name: str) -> None:
    (tmp_path / "calc.py").write_text(BUGGY)
    patch, files = whole_patch(ACCEPTED[name])
    done = subprocess.run(
        ["git", "apply", "-"], input=patch.encode(), cwd=tmp_path, capture_output=True
    )
    assert done.returncode == 0, done.stderr
    assert "calc.py" in files.before
    assert patch.removesuffix("\n") == ACCEPTED[name].removesuffix("\n")


@pytest.mark.parametrize("field", ["gold_patch", "test_patch", "base_patch"])
@pytest.mark.parametrize("name", REFUSED)
def test_a_patch_that_git_does_not_read_is_refused(tmp_path: Path, name: str, field: str) -> None:
    patch, said = REFUSED[name]
    row: Row = own_row() | {"image": "a/b:1", field: patch}
    [found] = read(write_lines(tmp_path / "r.jsonl", row))
    assert isinstance(found.result, RowError), found
    assert field in found.result.message and said in found.result.message, found.result
    assert "\n" not in found.result.message


@pytest.mark.parametrize("field", ["gold_patch", "test_patch", "base_patch"])
def test_the_last_newline_is_added(tmp_path: Path, field: str) -> None:
    row: Row = own_row() | {"image": "a/b:1", field: FIX[:-1]}
    [task] = tasks_of(read(write_lines(tmp_path / "r.jsonl", row)))
    assert getattr(task, field) == FIX


@settings(max_examples=150, deadline=None)
@given(
    st.sampled_from([FIX + NEW, MAIL.format(FIX), ACCEPTED["a rename"]]),
    st.integers(0, 400),
    st.integers(0, 40),
    st.text(alphabet="+-@ \n\\ab/\r\t\x00\ud800,0123", max_size=12),
)
def test_whatever_is_accepted_is_read_by_git(
    patch: str, start: int, length: int, text: str
) -> None:
    start %= len(patch)
    spoiled = patch[:start] + text + patch[start + length :]
    try:
        whole, _ = whole_patch(spoiled)
    except ValueError as refused:
        assert str(refused)
        return
    command = ["git", "apply", "--numstat"]
    done = subprocess.run(command, input=whole.encode(), cwd="/", capture_output=True)
    assert done.returncode == 0, spoiled


def test_a_persons_own_settings_of_git_do_not_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / ".gitconfig").write_text("[apply]\n\twhitespace = error\n\tdirectory = x\n")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("GIT_DIR", str(tmp_path))
    whole_patch.cache_clear()
    patch = FIX.replace("a + b\n", "a + b  \n")
    assert whole_patch(patch)[0] == patch
