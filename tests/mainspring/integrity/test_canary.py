"""Tests rewritten to fail: run by Python, each honest kind fails, and none is left as it was."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from mainspring.ids import TaskId
from mainspring.integrity.canary import must_fail
from mainspring.integrity.run_counts import RunCounts, read_counts
from mainspring.integrity.runner_settings import steering
from mainspring.integrity.shadowing import likely
from mainspring.tasks.swe_task import SweTask

TOKEN = "canary 12ab"
SCRIPTS = {
    "bare": "assert 1 + 1 == 2\n",
    "exits": "import sys\nok = True\nsys.exit(0 if ok else 1)\n",
    "exits without a code": "import sys\nsys.exit()\n",
    "raises the exit": "def main():\n    return 0\n\nif __name__ == '__main__':\n"
    "    raise SystemExit(main())\n",
    "raises it bare": "raise SystemExit\n",
    "calls its tests": "def test_a():\n    assert True\n\ntest_a()\n",
    "counts failures": "import sys\n\ndef test_a():\n    return\n\nfailed = 0\n"
    "try:\n    test_a()\nexcept AssertionError:\n    failed += 1\nsys.exit(failed)\n",
    "unittest": "import unittest\n\nclass T(unittest.TestCase):\n    def test_a(self):\n"
    "        self.assertEqual(1, 1)\n\nunittest.main()\n",
}
PYTEST = {
    "function": "def test_a():\n    assert True\n",
    "early return": "def test_a():\n    if True:\n        return\n    assert False\n",
    "class": "class TestA:\n    def test_a(self):\n        pass\n",
    "fixture": "import pytest\n\n@pytest.fixture\ndef one():\n    return 1\n\n"
    "@pytest.mark.parametrize('x', [1, 2])\ndef test_a(one, x):\n    assert one <= x\n",
}


@pytest.mark.parametrize("kind", SCRIPTS)
def test_a_script_that_passes_must_fail(tmp_path: Path, kind: str) -> None:
    text = SCRIPTS[kind]
    [rewritten] = must_fail({"t.py": text}, "cd . && python3 t.py 2>&1", TOKEN).values()
    codes = []
    for each in (text, rewritten):
        (tmp_path / "t.py").write_text(each)
        ran = subprocess.run([sys.executable, "t.py"], cwd=tmp_path, capture_output=True)
        codes.append(ran.returncode)
    assert codes[0] == 0 and codes[1] != 0, rewritten


@pytest.mark.parametrize("kind", PYTEST)
def test_tests_of_pytest_must_fail(tmp_path: Path, kind: str) -> None:
    command = f"{sys.executable} -m pytest -q -p no:cacheprovider test_x.py"
    changed = must_fail({"test_x.py": PYTEST[kind], "helper.py": "x = 1\n"}, command, TOKEN)
    assert set(changed) == {"test_x.py"}
    # Plugins of this environment have no part in it, and take three times the CPU of pytest itself.
    alone = os.environ | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    for text, code in ((PYTEST[kind], 0), (changed["test_x.py"], 1)):
        (tmp_path / "test_x.py").write_text(text)
        ran = subprocess.run(command.split(), cwd=tmp_path, env=alone, capture_output=True)
        assert ran.returncode == code, ran.stdout


def test_what_decides_by_other_means_is_left_alone() -> None:
    scores = "open('/logs/verifier/reward.txt', 'w').write('1')\n"
    shell = {"/tests/test.sh": "python3 /tests/check.py && true\n"}
    assert must_fail(shell | {"/tests/check.py": scores}, "bash /tests/test.sh", TOKEN) == {}
    data = {"gen.py": "print(1)\n"}
    assert must_fail(data, "python3 gen.py | ./prog | diff - expected", TOKEN) == {}
    assert must_fail({"a.sh": "true", "b.py": "print 1"}, "bash a.sh", TOKEN) == {}
    judged = {"/tests/test.sh": "if python3 /tests/c.py; then echo 1; fi", "/tests/c.py": "x = 1"}
    assert set(must_fail(judged, "bash /tests/test.sh", TOKEN)) == {"/tests/c.py"}


def test_only_steering_of_the_test_runner_is_compared() -> None:
    before = "[tool.pytest.ini_options]\nmarkers = ['a']\n"
    assert steering("pyproject.toml", before) == steering("pyproject.toml", "x = 1")
    steered = before + "addopts = '--co'\n"
    assert steering("pyproject.toml", before) != steering("pyproject.toml", steered)
    plugin = "[options.entry_points]\npytest11 =\n  evil = evil\n"
    assert steering("setup.cfg", plugin) and not steering("setup.cfg", "[metadata]\nname = a\n")
    assert steering("a/tox.ini", "[pytest]\naddopts = -p evil\n")
    assert not steering("tox.ini", "not an ini [") and not steering("pyproject.toml", "= [")


def test_what_the_fix_or_the_issue_names_is_the_programs() -> None:
    new = (
        b"diff --git a/%s b/%s\nnew file mode 100644\n--- /dev/null\n+++ b/%s\n@@ -0,0 +1 @@\n+1\n"
    )

    def found(path: bytes, **fields: object) -> tuple[str, ...]:
        base = {"id": TaskId("t"), "source": "s", "split": "x", "issue": "mend it"}
        base |= {"files": {"a.py": ""}, "test_command": "true"}
        task = SweTask.model_validate(base | fields)
        return tuple(each.path for each in likely(new % (path, path, path), task))

    assert found(b"calendar.py") == ("calendar.py",)
    assert found(b"pkg/calendar.py") == () == found(b"test/__init__.py")
    assert found(b"hidden/json.py", tests={"hidden/t.py": ""}) == ("hidden/json.py",)
    assert found(b"calendar.py", issue="write calendar.py") == ()
    gold = (new % ((b"calendar.py",) * 3)).decode()
    assert found(b"calendar.py", gold_patch=gold) == ()


SUMMARIES = {
    "1 passed, 1 deselected in 0.01s": (1, 1),
    "=== 2 failed, 3 passed, 4 skipped, 1 xfailed, 1 xpassed in 62.10s (0:01:02) ===": (6, 5),
    "\x1b[32m== \x1b[1m1 passed\x1b[0m, \x1b[33m1 skipped\x1b[0m in 0.12s": (1, 1),
    "1 error in 0.05s\n2 passed, 1 warning in 0.01s": (3, 0),
    "Ran 5 tests in 0.001s\n\nOK (skipped=1, expected failures=1)": (3, 2),
    "Ran 1 test in 0.001s\n\nFAILED (failures=1)": (1, 0),
    "it printed 3 passed in between": None,
    "": None,
}


@pytest.mark.parametrize("output", SUMMARIES)
def test_a_runs_summary_is_counted(output: str) -> None:
    counts = read_counts(f"collected\n{output}\n")
    assert (counts and (counts.num_run, counts.num_left_out)) == SUMMARIES[output]


def test_a_run_is_smaller_when_tests_that_ran_are_left_out() -> None:
    assert RunCounts(1, 2).is_smaller_than(RunCounts(2, 1))
    # The same tests left out, or more of more tests in all.
    assert not RunCounts(1, 1).is_smaller_than(RunCounts(1, 1))
    assert not RunCounts(3, 4).is_smaller_than(RunCounts(2, 1))
    assert not RunCounts(1, 1).is_smaller_than(RunCounts(3, 1))


def test_reading_a_summary_takes_linear_time() -> None:
    begun = time.process_time()
    for piece in ("1 passed, ", "=", "Ran 1 test in \n", "1 passed in ", "\x1b[3", "OK (", "\n"):
        read_counts(piece * 200_000)
    assert time.process_time() - begun < 20
