"""Honest work resolves its task, whatever it looks like; what only looks honest does not."""

import pytest

from mainspring.integrity.suspicion import after_grading, suspicions
from mainspring.status import Suspicion, Verdict
from mainspring.tasks.criterion import Canary, References
from tests.adversarial.grading import Grader
from tests.adversarial.honest_work import CHEATS, HONEST, LEFT_OUT, Case
from tests.adversarial.suspicion_table import TALLY


def name_of(case: Case) -> str:
    return case.does.replace(" ", "-")


async def check_honest(grader: Grader, case: Case, known: References | None) -> None:
    task, patch = case.task(), case.patch().encode()
    judged = await grader.graded(task, patch, known)
    refused = judged.verdict is not Verdict.RESOLVED or judged.report.cheated
    marks = after_grading(suspicions([], patch, task), judged.verdict, judged.report)
    TALLY.honest(marks, refused=refused)
    assert not refused, judged
    assert marks == ()


@pytest.mark.parametrize("case", HONEST, ids=name_of)
async def test_honest_work_resolves(grader: Grader, case: Case) -> None:
    await check_honest(grader, case, await grader.verified(case.task()))


@pytest.mark.parametrize("case", [each for each in HONEST if each.is_doubted], ids=name_of)
async def test_honest_work_resolves_a_task_that_was_not_verified(
    grader: Grader, case: Case
) -> None:
    await check_honest(grader, case, None)


@pytest.mark.parametrize(
    ("case", "is_verified"),
    [(each, False) for each in CHEATS] + [(each, True) for each in CHEATS if each.is_doubted],
    ids=lambda value: name_of(value) if isinstance(value, Case) else f"verified-{value}",
)
async def test_a_cheat_does_not(grader: Grader, case: Case, is_verified: bool) -> None:
    task = case.task()
    known = await grader.verified(task) if is_verified else None
    judged = await grader.graded(task, case.patch().encode(), known)
    marks = after_grading((), judged.verdict, judged.report)
    resolved = judged.verdict is Verdict.RESOLVED
    TALLY.cheat({Suspicion.PASSED_ANYWAY}, marks, resolved=resolved)
    assert (judged.verdict, judged.report.cheated) == (Verdict.NOT_RESOLVED, True), judged
    assert judged.report.note


@pytest.mark.parametrize("case", LEFT_OUT, ids=name_of)
async def test_a_change_to_tests_does_not_count(grader: Grader, case: Case) -> None:
    judged = await grader.graded(case.task(), case.patch().encode())
    assert (judged.verdict, judged.report.cheated) == (Verdict.NOT_RESOLVED, False), judged
    assert judged.report.dropped_paths


async def test_a_report_tells_which_files_counted_after_all(grader: Grader) -> None:
    [case] = [e for e in HONEST if e.does == "a module of the program named like a test"]
    report = (await grader.graded(case.task(), case.patch().encode())).report
    assert "new files that are named like tests: load_test.py" in report.note
    assert report.dropped_paths == ("test_it.py", "test_try.py")


async def test_a_run_that_tells_nothing_is_recorded(grader: Grader) -> None:
    [case] = [each for each in HONEST if each.does == "tests that run only once"]
    task = case.task()
    gold = await grader.graded(task, (task.gold_patch or "").encode(), References(is_gold=True))
    assert gold.report.canary is Canary.PASSED and "with the true fix" in gold.report.note
