"""Which files that are named like tests can be the program's: new Python files without a test."""

import pytest

from mainspring.integrity.named_like_tests import may_be_programs
from mainspring.tasks.swe_task import SweTask

TASK = SweTask.model_validate(
    {
        "id": "t",
        "source": "t",
        "split": "train",
        "issue": "x",
        "files": {"a.py": ""},
        "tests": {"app/tests/test_hidden.py": "", "hidden/check_test.py": ""},
        "test_command": "pytest",
    }
)


def new(path: str, text: str = "x = 1\n", mode: str = "100644") -> str:
    lines = [f"+{line}" for line in text.splitlines()]
    hunk = [f"--- /dev/null\n+++ b/{path}", f"@@ -0,0 +1,{len(lines)} @@", *lines] if lines else []
    return "\n".join([f"diff --git a/{path} b/{path}", f"new file mode {mode}", *hunk, ""])


@pytest.mark.parametrize(
    "path",
    [
        *("load_test.py", "test_utils.py", "x/tests/helper.py", "app/tests/helper.py", "test/a.py"),
        *("x/tests/__init__.py", "test_with space.py", "tests/contest.py"),
    ],
)
def test_a_new_file_without_a_test(path: str) -> None:
    patch = new("a.py") + new(path)
    assert may_be_programs(patch.encode(), TASK) == (path,)
    assert may_be_programs(new(path, "").encode(), TASK) == (path,)


@pytest.mark.parametrize(
    "path",
    [
        *("contest.py", "app/testing/a.py"),  # they count anyway
        *("conftest.py", "x/tests/conftest.py", "pytest.ini", "tests/noxfile.py", "tests/tox.ini"),
        *("app/tests/__init__.py", "app/tests/test_hidden.py", "hidden/check_test.py/a_test.py"),
        *("tests/sitecustomize.py", ".circleci/tests/a.py", "a_test.go", "a.test.ts", "tests/a.sh"),
        *("tests/\udce9.py", "tests/a.pyc", "tests/pyproject.toml"),
    ],
)
def test_what_steers_or_belongs_to_the_hidden_tests_is_not(path: str) -> None:
    patch = new("a.py") + new(path)
    assert may_be_programs(patch.encode(errors="surrogateescape"), TASK) == ()


HOLDS = "class T:\n    async def test_a(self):\n        pass\n"


@pytest.mark.parametrize(
    "patch",
    [
        new("load_test.py", "def test_a():\n    pass\n"),
        new("load_test.py", HOLDS),
        new("load_test.py", "no python\n"),
        new("load_test.py", "a.py", mode="120000"),
        new("load_test.py").replace("new file mode 100644\n", "index 1..2 100644\n"),
        new("load_test.py") + new("load_test.py", HOLDS),
        "diff --git a/load_test.py b/load_test.py\ndeleted file mode 100644\n",
        "diff --git a/tests/a.py b/tests/b.py\nsimilarity index 100%\n"
        "rename from tests/a.py\nrename to tests/b.py\n",
    ],
)
def test_what_holds_a_test_or_is_no_new_file_is_not(patch: str) -> None:
    assert may_be_programs(patch.encode(), TASK) == ()
