"""Best of n: which rollout is counted on, worked out by hand."""

import pytest
from pydantic import ValidationError

from mainspring.config.campaign import CampaignConfig
from mainspring.config.evaluations.choosing import ChooseBy, ChooseConfig
from mainspring.config.evaluations.evaluation import EvaluationConfig
from mainspring.rewards.choosing import (
    Candidate,
    chosen,
    chosen_at_each_n,
    passes_tests,
    result_of,
)
from mainspring.rewards.passk import wilson

PATCH = b"""diff --git a/a.py b/a.py
index 111..222 100644
--- a/a.py
+++ b/a.py
@@ -1,2 +1,2 @@
 def f():
-    return 1
+    return 2
"""
BINARY = b"""diff --git a/a.bin b/a.bin
index 111..222
GIT binary patch
literal 3
KcmZQzWMT#Y01f~L

"""


def candidate(result: str, resolved: bool = False, **fields: object) -> Candidate:
    return Candidate(resolved, result, **fields)  # type: ignore[arg-type]


A, B = candidate("a", True), candidate("b")
NOTHING = candidate("")


@pytest.mark.parametrize(
    ("candidates", "by", "expected"),
    [
        ((B, A, A), ChooseBy.MAJORITY, 1),
        ((B, A), ChooseBy.MAJORITY, 0),
        ((NOTHING, NOTHING, A), ChooseBy.MAJORITY, 2),
        ((NOTHING, NOTHING), ChooseBy.MAJORITY, 0),
        ((candidate("a", score=0.1), candidate("b", score=0.5)), ChooseBy.JUDGE, 1),
        ((candidate("a", score=None), candidate("b", score=-1.0)), ChooseBy.JUDGE, 1),
        ((candidate("a"), candidate("b")), ChooseBy.JUDGE, 0),
        ((candidate("a", score=0.5), candidate("b", score=0.5)), ChooseBy.JUDGE, 0),
        ((candidate("a", passes=False), candidate("b")), ChooseBy.TESTS, 1),
        ((candidate("a"), candidate("b", passes=True), candidate("c")), ChooseBy.TESTS, 1),
        (
            (
                candidate("a", passes=False),
                candidate("a", passes=False),
                candidate("b", passes=True),
                candidate("c", passes=True),
                candidate("c", passes=True),
            ),
            ChooseBy.TESTS,
            3,
        ),
    ],
)
def test_the_one_that_is_counted_on(
    candidates: tuple[Candidate, ...], by: ChooseBy, expected: int
) -> None:
    assert chosen(candidates, by) is candidates[expected]


def test_the_share_of_tasks_at_each_n() -> None:
    tasks = [[B, A, A], [A, B], [B]]
    found = chosen_at_each_n(tasks, ChooseBy.MAJORITY)
    assert [(each.k, each.value, each.num_tasks) for each in found] == [
        (1, 1 / 3, 3),
        (2, 1 / 2, 2),  # of equal ones the first
        (3, 1.0, 1),
    ]
    assert (found[0].low, found[0].high) == wilson(1 / 3, 3)
    assert chosen_at_each_n([], ChooseBy.JUDGE) == []


def test_patches_are_the_same_that_change_the_same_lines() -> None:
    result = result_of(PATCH)
    assert result and result == result_of(PATCH.replace(b"index 111..222", b"index 1..3"))
    assert result == result_of(PATCH.replace(b"return 2", b"return  2 "))
    assert result == result_of(PATCH.replace(b"@@ -1,2 +1,2 @@", b"@@ -9,2 +9,2 @@"))
    assert result != result_of(PATCH.replace(b"return 2", b"return 3"))
    assert result != result_of(PATCH.replace(b"a.py", b"b.py"))
    other = PATCH.replace(b"a.py", b"b.py")
    assert result_of(PATCH + other) == result_of(other + PATCH) != result
    assert result_of(BINARY) != result_of(BINARY.replace(b"KcmZ", b"KcmY"))
    assert result_of(b"") == result_of(b" \n") == ""
    assert result_of(b"the answer: 4") == result_of(b"the answer:  4\n") != result_of(b"5")


@pytest.mark.parametrize(
    ("commands", "expected"),
    [
        ([("ls", 0), ("cat test_a.py", 0)], None),
        ([("pytest -q", 1), ("python -m pytest tests/test_a.py", 0)], True),
        ([("cd /testbed && python3 -m unittest", 0), ("go test ./...", 2), ("ls", 0)], False),
        ([("python repro_test.py", 0)], True),
        ([("npm run test", 1)], False),
        ([("grep pytest setup.cfg", 0)], True),  # by its name alone: it is no proof
        ([], None),
    ],
)
def test_the_last_command_that_ran_tests(
    commands: list[tuple[str, int]], expected: bool | None
) -> None:
    assert passes_tests(commands) is expected


def test_what_cannot_be_chosen_by_is_refused() -> None:
    with pytest.raises(ValidationError, match="belong together"):
        ChooseConfig(by=ChooseBy.JUDGE)
    with pytest.raises(ValidationError, match="belong together"):
        ChooseConfig(judge="q")
    judge = {"url": "http://judge:1/v1", "model": "m"}
    raw = {"name": "e", "judges": {"q": judge}, "choose": {"by": "judge", "judge": "q"}}
    with pytest.raises(ValidationError, match="judges no rollout: add a part"):
        EvaluationConfig.model_validate(raw)
    with pytest.raises(ValidationError, match="one rollout of each task"):
        CampaignConfig.model_validate({"name": "c", "evaluation": {"choose": {"by": "majority"}}})
    part = {"name": "judge", "judge": "q", "of": "rollout", "weight": 0.0}
    parts = {"parts": [{"name": "outcome"}, part]}
    assert EvaluationConfig.model_validate(raw | {"reward": parts}).choose is not None
