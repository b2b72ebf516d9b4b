"""Tests that rollouts wrote: which files, which commands, how many."""

import pytest
from pydantic import ValidationError

from mainspring.config.evaluations.choosing import ChooseBy, ChooseConfig
from mainspring.config.files.errors import explain
from mainspring.rewards.choosing import Candidate, chosen, chosen_at_each_n, cross_tests
from mainspring.rewards.written_tests import counting, written
from mainspring.tasks.patches import apart

PROGRAM = b"diff --git a/calc.py b/calc.py\n--- a/calc.py\n+++ b/calc.py\n@@ -1 +1 @@\n-a\n+b\n"


def new(path: str, line: str = "assert True") -> bytes:
    return (
        f"diff --git a/{path} b/{path}\nnew file mode 100644\n--- /dev/null\n+++ b/{path}\n"
        f"@@ -0,0 +1 @@\n+{line}\n"
    ).encode()


GONE = (
    b"diff --git a/tests/test_old.py b/tests/test_old.py\ndeleted file mode 100644\n"
    b"--- a/tests/test_old.py\n+++ /dev/null\n@@ -1 +0,0 @@\n-assert True\n"
)


def test_a_patch_comes_apart_by_what_is_known_without_hidden_tests() -> None:
    tests = new("tests/data.json", "{}") + new("tests/test_new.py")
    start = new("sitecustomize.py", "import os") + new(".github/workflows/a.yml", "on: push")
    parts = apart(PROGRAM + tests + GONE + start)
    assert parts.program == PROGRAM
    assert parts.tests == tests + GONE
    assert parts.test_files == ("tests/data.json", "tests/test_new.py")


@pytest.mark.parametrize(
    ("ran", "command"),
    [
        ("python3 tests/test_a.py", "python3 tests/test_a.py"),
        ("cd /testbed && python ./tests/test_a.py 2>&1 | tail -5", "python tests/test_a.py"),
        (
            "cd tests; PYTHONPATH=../src python -u test_a.py",
            "PYTHONPATH=../src python tests/test_a.py",
        ),
        ("A=b timeout 60 pytest -x -q tests/test_a.py::test_one", "A=b pytest tests/test_a.py"),
        ("uv run pytest /testbed/tests/test_a.py", "uv run pytest tests/test_a.py"),
        ("python3 -m unittest tests/test_a.py -v", "python3 -m unittest tests/test_a.py"),
        ("sed -i s/a/b/ calc.py && python3 -m pytest", "python3 -m pytest tests/test_a.py"),
        ("cat tests/test_a.py", None),
        ("python3 -c 'import a' tests/test_a.py", None),
        ("python3 run.py tests/test_a.py", None),
        ("python3 tests/test_a.py 'an open quote", None),
        ("rm -rf x; $(evil) tests/test_a.py", None),
    ],
)
def test_a_command_is_a_launcher_and_the_file(ran: str, command: str | None) -> None:
    seen = written(PROGRAM + new("tests/test_a.py"), [ran], "python3 hidden.py")
    assert [test.command for test in seen.tests] == ([] if command is None else [command])
    assert seen.num_without_command == (command is None)
    assert seen.program == PROGRAM


def test_the_last_command_counts_and_the_tasks_own_runner_is_a_last_resort() -> None:
    patch = new("test_a.py") + new("conftest.py")
    [test] = written(patch, ["python3 test_a.py", "pytest test_a.py", "ls"], "true").tests
    assert test.command == "pytest test_a.py"
    [test] = written(patch, [], "python -m pytest -rA hidden/test_b.py").tests
    assert test.command == "python -m pytest test_a.py"
    odd = written(new("tests/test_'a b.py"), [], "pytest").tests
    assert [each.command for each in odd] == ["pytest 'tests/test_'\"'\"'a b.py'"]


def test_bounds_keep_what_the_first_samples_gave() -> None:
    patches = [b"".join(new(f"test_{sample}{n}.py") for n in range(3)) for sample in range(3)]
    seen = [written(patch, [], "pytest") for patch in [*patches, patches[0]]]
    sizes = [len(tests) for tests in counting(seen, 2, 3)]
    assert sizes == [2, 1, 0, 2]
    assert counting(seen[:2], 2, 3) == counting(seen, 2, 3)[:2]


def candidate(result: str, codes: str, wrote: str = "", resolved: bool = False) -> Candidate:
    """`codes`: of tests a, b, ...: p passes, f fails, . is not compared; before: a passes."""
    exits = {
        test: {"p": 0, "f": 1, ".": None}[code] for test, code in zip("abcd", codes, strict=False)
    }
    before = {test: 0 if test == "a" else 1 for test in wrote}
    return Candidate(resolved, result, wrote=tuple(wrote), exits=exits, before=before)


@pytest.mark.parametrize(
    ("candidates", "expected"),
    [
        # b fails before: most of such decide, against a majority.
        ([("x", "pf", "ab"), ("y", "pp", ""), ("x", "pf", "")], 1),
        # They come before those that pass without a patch.
        ([("x", "pf", "ab"), ("y", "fp", "")], 1),
        # Of equals, the one that breaks nothing; then the majority; then the first.
        ([("x", "fp", "ab"), ("y", "pp", "")], 1),
        ([("x", "pp", "ab"), ("y", "pp", ""), ("y", "pp", "")], 1),
        ([("x", "pp", "ab"), ("y", "pp", "")], 0),
        # One that was not compared with all says nothing: neither a failure nor a success.
        ([("x", "pf", "ab"), ("y", "p.", ""), ("z", "pp", "")], 0),
        # One that always fails says nothing, and no tests leave the majority.
        ([("x", "pf", "ab"), ("y", "pf", ""), ("y", "pf", "")], 1),
        ([("x", "", ""), ("y", "", ""), ("y", "", "")], 1),
        ([("", "", ""), ("", "", ""), ("y", "", "")], 2),
    ],
)
def test_choices_worked_out_by_hand(candidates: list[tuple[str, str, str]], expected: int) -> None:
    among = [candidate(*each) for each in candidates]
    assert chosen(among, ChooseBy.CROSS_TESTS) is among[expected]


def test_tests_are_told_apart() -> None:
    told = cross_tests([candidate("x", "pff.", "abcd"), candidate("y", "pfpp")])
    assert told.regression == ("a",) and told.failing == ("b",)
    assert told.reproducing == ("c",) and told.not_compared == ("d",)


def test_a_later_samples_test_does_not_count_for_fewer() -> None:
    task = [candidate("x", "pf"), candidate("y", "pp", "", True), candidate("x", "pf", "ab")]
    values = [each.value for each in chosen_at_each_n([task], ChooseBy.CROSS_TESTS)]
    assert values == [0.0, 0.0, 1.0]


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"by": "cross_tests", "max_tests": 0}, "greater than or equal to 1"),
        ({"by": "cross_tests", "tests_per_rollout": -1}, "greater than or equal to 1"),
        ({"by": "cross_tests", "test_timeout_s": 0}, "greater than 0"),
        ({"by": "cross_tests", "test_timeout_s": 1e9}, "less than or equal to 3600"),
        ({"by": "majority", "max_tests": 3}, 'set by = "cross_tests"'),
    ],
)
def test_bounds_that_mean_nothing_are_refused(fields: dict[str, object], told: str) -> None:
    with pytest.raises(ValueError, match=told):
        ChooseConfig.model_validate(fields)
    assert ChooseConfig.model_validate({"by": "cross_tests"}).max_tests == 16


def test_an_unknown_way_is_named_with_the_nearest() -> None:
    with pytest.raises(ValidationError) as refused:
        ChooseConfig.model_validate({"by": "cross_test"})
    [line] = explain(refused.value, ChooseConfig)
    assert line.startswith("by: must be") and line.endswith("did you mean 'cross_tests'?")
