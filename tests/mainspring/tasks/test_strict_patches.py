"""Patches from outside: whatever git writes is taken, and nothing that could mean two things."""

import random
import subprocess
from pathlib import Path

import pytest

from mainspring.tasks.patches import split
from mainspring.tasks.strict_patch import UnusualPatch, checked

GOOD = b"""\
diff --git a/a.py b/a.py
index 1111111..2222222 100644
--- a/a.py
+++ b/a.py
@@ -1,2 +1,2 @@ def f():
 x = 1
-y = 1
+y = 2
\\ No newline at end of file
"""
PART = GOOD.partition(b"\\")[0]


def git(folder: Path, *words: str) -> bytes:
    command = ["git", "-c", "user.name=a", "-c", "user.email=a@b", *words]
    return subprocess.run(command, cwd=folder, check=True, capture_output=True).stdout


@pytest.mark.parametrize("seed", range(12))
def test_what_git_writes_is_taken(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    git(tmp_path, "init", "-q")
    names = [
        "a.py",
        "dir/b c.py",
        "d\te.txt",
        "\u00fc.txt",
        "bin",
        "f.sh",
        "empty",
        'q"uote',
        "--- x",
    ]
    for name in names:
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(rng.randbytes(400) if name == "bin" else _text(rng))
    git(tmp_path, "add", "-A")
    git(tmp_path, "commit", "-qm", "a")
    for name in names:
        path = tmp_path / name
        match rng.randrange(5):
            case 0:
                path.unlink()
            case 1:
                path.rename(path.with_name(f"{path.name} moved"))
            case 2:
                path.chmod(0o755)
            case 3:
                path.write_bytes(rng.randbytes(300) if name == "bin" else _text(rng)[:-1])
            case _:
                path.write_bytes(path.read_bytes() + b"--- a/x\n+++ b/x\n@@ -1 +1 @@\ndiff --git\n")
    (tmp_path / "new one").write_bytes(b"")
    git(tmp_path, "add", "-A")
    for options in (("--binary",), ("--binary", "-M"), ("--binary", "-U0"), ("--binary", "-C")):
        patch = git(tmp_path, "diff", "--cached", *options)
        assert checked(patch) == patch
        preamble, changes = split(patch)
        assert preamble == b"" and changes
    # Also without its last line's end, as programs that strip text hand it in.
    git(tmp_path, "reset", "-q", "--hard")
    (tmp_path / "given").write_bytes(checked(patch.rstrip(b"\n")))
    git(tmp_path, "apply", "--check", "given")


def _text(rng: random.Random) -> bytes:
    lines = ["one", "two", "", "three", "\tfour", "-- five", "++ six", "@@ seven"]
    return "".join(f"{rng.choice(lines)}\n" for _ in range(rng.randrange(1, 40))).encode()


@pytest.mark.parametrize(
    "patch",
    [
        b"no patch at all\n",
        b"Index: conftest.py\n" + GOOD,
        PART + b"Index: conftest.py\n--- conftest.py\n+++ conftest.py\n@@ -0,0 +1 @@\n+evil\n",
        PART
        + b"*** conftest.py\n--- conftest.py\n***************\n*** 0 ****\n--- 1 ----\n+ evil\n",
        PART + b"0a1\n> evil\n",
        PART + b"garbage\n" + GOOD,
        b"From: someone\n\n" + GOOD,
        GOOD.replace(b"+++ b/a.py", b"+++ b/conftest.py"),
        GOOD.replace(b"--- a/a.py", b"--- a/conftest.py"),
        GOOD.replace(b"diff --git a/a.py b/a.py", b"diff --git a/conftest.py b/a.py"),
        GOOD.replace(b"a.py", b"../a.py"),
        GOOD.replace(b"a.py", b".git/hooks/pre-commit"),
        GOOD.replace(b"a.py", b"x//a.py"),
        GOOD.replace(b"a.py", b"./a.py"),
        GOOD.replace(b"-1,2 +1,2", b"-1,3 +1,3"),
        GOOD.replace(b"-1,2 +1,2", b"-1,2 +1,1"),
        GOOD.replace(b"diff --git a/a.py b/a.py\n", b""),
        PART.replace(b"@@ -1,2 +1,2 @@ def f():", b"Binary files a/a.py and b/a.py differ"),
        GOOD + b"rename to conftest.py\n",
        b"\xff\xfe\x00",
    ],
)
def test_what_could_mean_another_file_is_refused_with_its_line(patch: bytes) -> None:
    with pytest.raises(UnusualPatch, match=r"line \d+ of the patch") as refused:
        checked(patch)
    assert "git diff" in refused.value.remedy


def test_nothing_is_an_empty_patch() -> None:
    assert checked(b"") == checked(b"\n\n") == b""
    assert checked(GOOD) == GOOD
