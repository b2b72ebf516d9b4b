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


USES = new(
    "a.py",
    "import load_test, test_utils, x.tests.helper, test.a, contest, conftest, noxfile\n"
    "import sitecustomize, app.testing.a, test_hidden, a_test, b, test_space\n"
    "# tests/tox pytest pyproject\n",
)


@pytest.mark.parametrize(
    "path",
    [
        *("load_test.py", "test_utils.py", "x/tests/helper.py", "app/tests/helper.py", "test/a.py"),
        *("x/tests/__init__.py", "b c/test_space.py", "tests/contest.py"),
    ],
)
def test_a_new_file_without_a_test(path: str) -> None:
    patch = USES + new(path)
    assert may_be_programs(patch.encode(), TASK) == (path,)


@pytest.mark.parametrize("path", ["load_test.py", "x/tests/__init__.py"])
def test_a_file_that_nothing_names_is_not_used(path: str) -> None:
    patch = new("a.py") + new(path, "print('load_test')\n")
    assert may_be_programs(patch.encode(), TASK) == ()
    empty = new("a.py", "import tests\n") + new("x/tests/__init__.py", "")
    assert may_be_programs(empty.encode(), TASK) == ()


def test_an_issue_and_another_file_of_such_a_name_can_name_it() -> None:
    patch = new("test_two.py", "import test_one\n") + new("test_one.py") + new("test_three.py")
    assert may_be_programs(patch.encode(), TASK) == ("test_one.py",)
    issue = TASK.model_copy(update={"issue": "There is no test_two."})
    assert may_be_programs(patch.encode(), issue) == ("test_two.py", "test_one.py")


def test_a_package_comes_with_what_it_holds() -> None:
    init, helper = new("x/tests/__init__.py", ""), new("x/tests/helper.py")
    found = may_be_programs((USES + init + helper).encode(), TASK)
    assert found == ("x/tests/__init__.py", "x/tests/helper.py")


def test_a_flood_of_files_is_left_out() -> None:
    patch = "".join(new(f"tests/helper{number}.py") for number in range(201))
    uses = new("a.py", "\n".join(f"import helper{number}" for number in range(201)))
    assert may_be_programs((uses + patch).encode(), TASK) == ()


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
    patch = USES + new(path)
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
    assert may_be_programs((USES + patch).encode(), TASK) == ()
