"""A patch of an image's working tree, applied by the grading programs to another copy of it."""

import shutil
import subprocess
from pathlib import Path

import pytest

from infra.environments.grader import APPLY, APPLY_TESTS, CHECK_TESTS, PATCH_FILE, TEST_PATCH_FILE
from infra.sandbox.containers.image_edit import ALTERED, Alteration
from infra.sandbox.containers.image_edit import PATCH_FILE as BASE_PATCH
from mainspring.artifacts.program_files import program
from mainspring.tasks.patches import attributes_last

COMMIT = "git add -A && git -c user.name=a -c user.email=a@b commit -qm c"
FIX = "sed -i 's/a - b/a + b/' calc.py"
BEGIN = program(
    str(Path(__file__).parents[4] / "infra/sandbox/containers/image_edit.py"),
    "image_history_begin.sh",
)
TESTS = b"""diff --git a/tests/t.py b/tests/t.py
new file mode 100644
--- /dev/null
+++ b/tests/t.py
@@ -0,0 +1 @@
+import calc
"""


def bash(script: str, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["bash", "-c", script],
        cwd=folder,
        check=False,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )


def graded(patch: bytes, folder: Path) -> tuple[int, str]:
    (folder / PATCH_FILE).write_bytes(attributes_last(patch))
    done = bash(f"tests=(tests/t.py)\nfolders=(tests)\n{APPLY}", folder)
    return done.returncode, done.stdout


def tree(folder: Path) -> dict[str, tuple[int, bytes]]:
    """Mode and content by path, whatever the line ends: where .gitattributes asks for some, git
    writes new files so."""
    files = (path for path in folder.rglob("*") if path.is_file() and ".git" not in path.parts)
    return {
        str(path.relative_to(folder)): (
            path.stat().st_mode,
            path.read_bytes().replace(b"\r\n", b"\n"),
        )
        for path in files
    }


CHANGES = {
    "an edit": FIX,
    "new files": f"{FIX}; mkdir new; echo 1 > new/a; echo 2 > 'new/b c'",
    "an executable": f"{FIX}; printf '#!/bin/sh\\n' > tool; chmod +x tool; chmod +x calc.py",
    "an ignored file": "mkdir -p build; echo 1 > build/impl.py",
    "an encoding": f"{FIX}; echo '*.py working-tree-encoding=UTF-16' > .gitattributes",
    "line ends": "echo '*.py text eol=crlf' > .gitattributes; sed -i 's/$/\\r/' calc.py",
    "a repository": f"mkdir impl; cd impl; echo 1 > x.py; git init -q .; {COMMIT}",
    "a deletion": "rm calc.py",
}
IMAGES = {
    "the top": (".", "true"),
    "below the top": ("packages/foo", "true"),
    "without modes": (".", "git config core.fileMode false"),
    "whitespace fixed": (".", "git config apply.whitespace fix"),
    "a filter that lacks its program": (
        ".",
        f"echo '*.py filter=lfs' > .gitattributes; {COMMIT}; git config filter.lfs.clean nowhere; "
        "git config filter.lfs.required true",
    ),
    "no repository": (".", "rm -rf .git"),
    "line ends of its own": (
        ".",
        f"echo '* text=auto eol=crlf' > .gitattributes; sed -i 's/$/\\r/' calc.py; {COMMIT}",
    ),
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("image", IMAGES)
async def test_the_graded_tree_is_the_agents(repository, tmp_path, image, change):
    where, made = IMAGES[image]
    repository.do(made)
    copy = tmp_path / "copy"
    shutil.copytree(repository.workdir, copy, symlinks=True)
    repository.workdir = repository.workdir / where
    await repository.boot()
    repository.do(CHANGES[change])
    patch, _ = await repository.patch()
    assert patch
    assert graded(patch, copy / where)[0] == 0
    assert tree(copy / where) == tree(repository.workdir)


def test_test_patches_and_base_patches_count_from_the_working_directory_too(repository, tmp_path):
    folder = repository.workdir / "packages/foo"
    (folder / TEST_PATCH_FILE).write_bytes(TESTS)
    assert bash(CHECK_TESTS, folder).returncode == 0
    (folder / TEST_PATCH_FILE).write_bytes(TESTS)
    assert bash(APPLY_TESTS, folder).returncode == 0
    assert (folder / "tests/t.py").read_text() == "import calc\n"
    repository.do(COMMIT)
    patch = tmp_path / BASE_PATCH
    patch.write_bytes(
        b"diff --git a/calc.py b/calc.py\n--- a/calc.py\n+++ b/calc.py\n@@ -1,2 +1,2 @@\n"
        b" def add(a, b):\n-    return a - b\n+    return 0\n"
    )
    script = Alteration("patch", ("tests/t.py",)).script()
    script = script.replace(f"patch=/{BASE_PATCH}", f"patch={patch}")
    done = bash(f"workdir={folder}\n{BEGIN}\n{script}", folder)
    assert done.stdout.strip().endswith(ALTERED), done.stdout
    assert "return 0" in (folder / "calc.py").read_text()
    assert "a - b" in (repository.workdir / "calc.py").read_text()
    assert not (folder / "tests").exists() and not patch.exists()
    assert repository.do("git status --short; git ls-files").split() == [
        ".gitignore",
        "calc.py",
        "packages/bar/b.py",
        "packages/foo/calc.py",
    ]


def test_a_file_that_git_skips_fails_the_patch(repository):
    patch = b"".join(
        b"diff --git a/%s b/%s\nnew file mode 100644\n--- /dev/null\n+++ b/%s\n@@ -0,0 +1 @@\n+x\n"
        % (name, name, name)
        for name in (b"one", b"two")
    )
    folder = repository.workdir / "packages/foo"
    assert graded(patch, folder) == (0, "")
    repository.do("rm packages/foo/one packages/foo/two; echo 'cd ../bar' >/dev/null")
    skipping = APPLY.replace('--directory="$below"', "")
    (folder / PATCH_FILE).write_bytes(patch)
    done = bash(f"tests=()\nfolders=(.)\n{skipping}", folder)
    assert done.returncode == 1 and "git leaves it out: Skipped patch 'one'." in done.stdout
