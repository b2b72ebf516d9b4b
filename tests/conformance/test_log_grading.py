"""Test logs: our whole path gives the verdict that the official library gives of the same log.

Whatever a program printed: results, none, half of them, lies.
"""

import dataclasses

import pytest
from sandbox_backend import Reset, cleared, make_backend, make_spec, output

from infra.environments.grader import MachineBroken, TaskBroken, for_grading, judge
from infra.verdicts import swebench
from infra.verdicts.swebench import UnknownParser
from mainspring.ids import TaskId
from mainspring.status import Verdict
from mainspring.tasks.criterion import EvalType, GradeReport, TestLog
from mainspring.tasks.swe_task import SweTask

pytest.importorskip("swebench", reason="the swe extra is not installed")

START, END = "+ : '>>>>> Start Test Output'\n", "+ : '>>>>> End Test Output'\n"
NEW, KEPT = "tests/test_a.py::test_new", "tests/test_a.py::test_kept"
PYTEST = TestLog(parser="parse_log_pytest", fail_to_pass=(NEW,), pass_to_pass=(KEPT,))
DJANGO = TestLog(
    parser="parse_log_django",
    fail_to_pass=("test_new (app.tests.Cases)", "A docstring's first line"),
    pass_to_pass=("test_kept (app.tests.Cases)",),
)
SYMPY = TestLog(parser="parse_log_sympy", fail_to_pass=("test_new",), pass_to_pass=("test_kept",))
FAIL_ONLY = PYTEST.model_copy(update={"eval_type": EvalType.FAIL_ONLY})
GOOD = f"PASSED {NEW}\nPASSED {KEPT}\n"


def truncated(name: str) -> TestLog:
    return PYTEST.model_copy(update={"fail_to_pass": (name,)})


def log(results: str, code: int = 0) -> str:
    return f"+ pytest -rA\n{START}{results}{END}+ : '>>>>> Test Exit Code: {code}'\n"


R, N = Verdict.RESOLVED, Verdict.NOT_RESOLVED
LOGS = {
    "pytest: all pass": (PYTEST, log(GOOD), R),
    "pytest: one fails": (PYTEST, log(f"FAILED {NEW} - boom\nPASSED {KEPT}\n", 1), N),
    "pytest: one is missing": (PYTEST, log(f"PASSED {KEPT}\n"), N),
    "pytest: another breaks": (PYTEST, log(f"PASSED {NEW}\nERROR {KEPT} - boom\n", 1), N),
    "pytest: expected to fail": (PYTEST, log(GOOD.replace(f"PASSED {NEW}", f"XFAIL {NEW}")), R),
    "pytest: the new one is skipped": (PYTEST, log(f"SKIPPED {NEW}\nPASSED {KEPT}\n"), N),
    "pytest: a kept one is skipped": (PYTEST, log(f"PASSED {NEW}\nSKIPPED {KEPT}\n"), R),
    "pytest: skips are counted": (PYTEST, log(f"{GOOD}SKIPPED [2] tests/test_a.py:3: no\n"), R),
    "pytest: no start marker": (PYTEST, GOOD + END, N),
    "pytest: no end marker": (PYTEST, START + GOOD, N),
    "pytest: results outside the markers": (PYTEST, GOOD + START + END, R),
    "pytest: nothing ran": (PYTEST, log("no tests ran in 0.01s\n", 5), N),
    "pytest: passes and a non-zero exit": (PYTEST, log(GOOD, 1), N),
    "pytest: timed out, it says": (PYTEST, log(GOOD) + ">>>>> Tests Timed Out\n", N),
    "pytest: the patch failed, it says": (PYTEST, ">>>>> Patch Apply Failed\n" + log(GOOD), N),
    "pytest: a cut parameter": (
        truncated("t.py::test_p[log(photon"),
        log(f"PASSED t.py::test_p[log(photon/s)]\nPASSED {KEPT}\n"),
        R,
    ),
    "pytest: a cut parameter of two minds": (
        truncated("t.py::test_p[a"),
        log(f"PASSED t.py::test_p[a-1]\nFAILED t.py::test_p[a-2]\nPASSED {KEPT}\n", 1),
        N,
    ),
    "pytest: a whole parameter is exact": (
        truncated("t.py::test_p[a]"),
        log(f"PASSED t.py::test_p[a]b\nPASSED {KEPT}\n"),
        N,
    ),
    "pytest: strange bytes": (PYTEST, log("\0\ud800\x1b[31m\r\n" + GOOD.replace("\n", "\r\n")), R),
    "pytest: nothing at all": (PYTEST, "", N),
    "fail only: silence is success": (FAIL_ONLY, log("3 passing\n"), R),
    "fail only: it never ran": (FAIL_ONLY, log("cannot find a browser\n"), N),
    "fail only: one fails": (FAIL_ONLY, log(f"3 passing\nFAILED {KEPT}\n", 1), N),
    "django: all pass": (
        DJANGO,
        log(
            "test_new (app.tests.Cases) ... ok\nA docstring's first line ... ok\n"
            "test_kept (app.tests.Cases) ... System check identified no issues (0 silenced)\nok\n"
        ),
        R,
    ),
    "django: one fails": (
        DJANGO,
        log(
            "test_new (app.tests.Cases) ... FAIL\nA docstring's first line ... ok\n"
            "test_kept (app.tests.Cases) ... ok\nFAIL: test_new (app.tests.Cases)\n",
            1,
        ),
        N,
    ),
    "sympy: all pass": (SYMPY, log("test_new ok\ntest_kept ok   [OK]\n".replace("   [OK]", "")), R),
    "sympy: one fails": (
        SYMPY,
        log("test_new F\ntest_kept ok\n____ sympy/core/tests/test_x.py:test_new ____\n", 1),
        N,
    ),
}


def make_task(judging: TestLog, printed: str = "", **fields) -> SweTask:
    """Its tests print what `printed` holds, and fail."""
    spec = make_spec("bwrap", "log")
    return SweTask(
        id=TaskId("logs/1"),
        source="t",
        split="test",
        issue="x",
        files=dict(spec.files),
        workdir=spec.workdir,
        **{
            "tests": {"/tests/log": printed.replace("\ud800", "\ufffd")},
            "test_command": "cat /tests/log; false",
            "test_timeout_s": 60,
            **fields,
        },
        judge=judging,
    )


@pytest.fixture(scope="module")
async def opened(tmp_path_factory):
    backend = make_backend("bwrap", tmp_path_factory.mktemp("logs"))
    async with cleared(backend):
        spec = for_grading(make_spec("bwrap", "log"), make_task(PYTEST))
        yield await backend.open(spec)


@pytest.fixture
async def sandbox(opened):
    await output(opened, "git checkout -qf && git clean -qfdx && rm -rf /tests/* /logs/verifier/*")
    return Reset(opened)


@pytest.mark.parametrize("kind", LOGS)
async def test_the_verdict_is_the_official_one(sandbox, tmp_path, kind):
    from swebench.harness.grading import get_eval_report
    from swebench.types import TestSpec

    judging, printed, verdict = LOGS[kind]
    task = make_task(judging, printed)
    judged = await judge(sandbox, task, b"", run_empty=True)
    file = tmp_path / "log.txt"
    file.write_bytes(task.tests["/tests/log"].encode())
    spec = TestSpec(
        "logs/1",
        "",
        [],
        "",
        "",
        [*judging.fail_to_pass],
        [*judging.pass_to_pass],
        judging.parser,
        judging.eval_type,
    )
    prediction = {"instance_id": "logs/1", "model_patch": "x"}
    official = get_eval_report(spec, prediction, str(file), True)["logs/1"]
    assert judged.verdict is verdict
    assert official["resolved"] is (verdict is R)
    report = judged.report
    assert (report.judge, report.returncode) == ("test_log", 1)
    if "tests_status" not in official:
        assert report.note and not report.fail_to_pass_passed + report.fail_to_pass_failed
        return
    of = official["tests_status"]
    assert [*report.fail_to_pass_passed] == of["FAIL_TO_PASS"]["success"]
    assert [*report.fail_to_pass_failed] == of["FAIL_TO_PASS"]["failure"]
    assert [*report.pass_to_pass_passed] == of["PASS_TO_PASS"]["success"]
    assert [*report.pass_to_pass_failed] == of["PASS_TO_PASS"]["failure"]


async def test_a_long_log_keeps_its_end(sandbox):
    task = make_task(
        PYTEST,
        START,
        test_command="cat /tests/log; yes $(printf %0999d 0) | head -c 20000000; echo; "
        f"echo '{GOOD}'; echo \"{END}\"",
    )
    judged = await judge(sandbox, task, b"", run_empty=True)
    assert (judged.verdict, judged.report.note) == (R, "")


async def test_a_log_no_parser_gets_through_holds_nothing_up(sandbox, monkeypatch):
    monkeypatch.setattr(swebench, "PARSE_TIMEOUT_S", 5)
    monkeypatch.setattr(swebench, "_process", swebench._Process())
    endless = log("test_x ... Testing against Django installed in " * 2000 + "x\n" * 2_000_000)
    judged = await judge(sandbox, make_task(DJANGO, endless), b"", run_empty=True)
    assert (judged.verdict, judged.report.note) == (N, "the log parser did not end in time")
    judged = await judge(sandbox, make_task(SYMPY, LOGS["sympy: all pass"][1]), b"", run_empty=True)
    assert judged.verdict is R


async def test_a_broken_machine_is_no_verdict(sandbox):
    broken = log("fatal: unable to access: Could not resolve host: example.org\n", 1)
    with pytest.raises(MachineBroken, match="network_unreachable"):
        await judge(sandbox, make_task(PYTEST, broken), b"", run_empty=True)


async def test_results_count_whatever_the_machine_said(sandbox):
    judged = await judge(
        sandbox, make_task(PYTEST, log(GOOD + "Cannot allocate memory\n")), b"", run_empty=True
    )
    assert judged.verdict is R


async def test_tests_that_do_not_end_are_timed_out(sandbox):
    task = make_task(PYTEST, log(GOOD), test_command="cat /tests/log; sleep 60", test_timeout_s=0.5)
    judged = await judge(sandbox, task, b"", run_empty=True)
    assert judged.verdict is Verdict.TESTS_TIMED_OUT


async def test_an_unknown_parser_is_the_tasks_fault(sandbox):
    task = make_task(PYTEST.model_copy(update={"parser": "parse_tea_leaves"}))
    with pytest.raises(UnknownParser, match=r"logs/1.*parse_tea_leaves"):
        await judge(sandbox, task, b"x")


TEST_PATCH = """\
diff --git a/README.md b/README.md
--- a/README.md
+++ b/README.md
@@ -1,3 +1,3 @@
 one
-two
+hidden
 three
diff --git a/checks/it.sh b/checks/it.sh
new file mode 100644
--- /dev/null
+++ b/checks/it.sh
@@ -0,0 +1 @@
+grep -q hidden README.md
"""


async def test_a_test_patch_lies_over_the_agents_patch(sandbox):
    task = make_task(
        PYTEST,
        test_patch=TEST_PATCH,
        test_command=f'bash checks/it.sh && cat pkg/new.py && printf %s "{log(GOOD)}"',
    )
    agents = (
        "diff --git a/README.md b/README.md\n--- a/README.md\n+++ b/README.md\n"
        "@@ -1 +1 @@\n-one\n+1\n"
        "diff --git a/pkg/new.py b/pkg/new.py\nnew file mode 100644\n"
        "--- /dev/null\n+++ b/pkg/new.py\n@@ -0,0 +1 @@\n+x = 1\n"
        "diff --git a/checks b/checks\nnew file mode 120000\n"
        "--- /dev/null\n+++ b/checks\n@@ -0,0 +1 @@\n+/tmp\n\\ No newline at end of file\n"
    )
    judged = await judge(sandbox, task, agents.encode())
    assert (judged.verdict, judged.report.dropped_paths) == (R, ("README.md",)), judged
    assert await output(sandbox._sandbox, "cat README.md") == b"one\nhidden\nthree\n"


async def test_a_test_patch_that_does_not_fit_is_the_tasks_fault(sandbox):
    task = make_task(PYTEST, test_patch=TEST_PATCH.replace("-two", "-zwei"))
    with pytest.raises(TaskBroken, match="logs/1"):
        await judge(sandbox, task, b"not even a patch")


async def test_a_patch_of_nothing_that_counts_is_no_patch(sandbox):
    task = make_task(PYTEST, log(GOOD), test_patch=TEST_PATCH)
    judged = await judge(sandbox, task, TEST_PATCH.encode())
    report = GradeReport(
        dropped_paths=("README.md", "checks/it.sh"),
        note="only changes to tests, CI configuration and start files",
    )
    assert judged == (Verdict.NO_PATCH, "", report)


def test_only_graders_have_the_graders_folders():
    task = make_task(PYTEST)
    spec = make_spec("bwrap", "agent")
    graders = for_grading(spec, task)
    assert not spec.writable_dirs and graders.writable_dirs == ("/tests", "/logs/verifier")
    plain = task.model_copy(update={"tests": {}})
    assert for_grading(spec, plain) == dataclasses.replace(spec, limits=graders.limits)
