"""The final answer of a reply, and which answers are the same."""

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mainspring.errors import ConfigError
from mainspring.ids import TaskId
from mainspring.tasks.answer import answers_of, final_answer, is_same, prompt_of
from mainspring.tasks.own_task import OwnTask


@pytest.mark.parametrize(
    ("reply", "answer"),
    [
        ("72", "72"),
        ("She sold 48 + 24 = 72 clips.\n#### 72", "72"),
        ("#### 12\nNo: #### 1,072 \nThat is all.", "1,072"),
        (r"So $x$ is \boxed{\frac{1}{2}}.", r"\frac{1}{2}"),
        (r"\boxed{1} or rather \boxed{2}", "2"),
        (r"#### \boxed{3}", "3"),
        (r"\boxed{4} and an open \boxed{5", "4"),
        ("<answer> Paris </answer>", "Paris"),
        ("I think.\n**Final Answer:** 34", "34"),
        ("The answer is 8.", "8."),
        ("Answer: 7\n#### ", "7"),
        ("My answer to this is not found by a mark", "My answer to this is not found by a mark"),
    ],
)
def test_the_answer_after_the_last_mark_counts(reply: str, answer: str) -> None:
    assert final_answer(reply).answer == answer


@pytest.mark.parametrize(
    ("given_", "accepted"),
    [
        ("72", "72"),
        ("$1,072", "1072"),
        ("72.0", "72"),
        (r"\$1,072.00", "1072"),
        ("72.", "72"),
        ("-0.5", r"-\frac{1}{2}"),
        (r"\dfrac{1}{2}", "0.5"),
        ("1/2", r"\frac{1}{2}"),
        (r"50\%", "50"),
        (r"\text{Paris}", "paris"),
        (r"\left( 1, 2 \right)", "(1,2)"),
    ],
)
def test_notation_makes_no_difference(given_: str, accepted: str) -> None:
    assert is_same(given_, accepted)


@pytest.mark.parametrize(
    ("given_", "accepted"),
    [("", "72"), ("7", "72"), ("72 or 73", "72"), ("1,2", "12"), ("1/0", "1"), ("-72", "72")],
)
def test_other_answers_are_not_the_same(given_: str, accepted: str) -> None:
    assert not is_same(given_, accepted)


@settings(max_examples=200, deadline=None)
@given(st.text(alphabet="0123456789./,-\\boxed{}# answer:is<>\n$%fract\u00b2", max_size=80))
def test_no_reply_raises(reply: str) -> None:
    is_same(final_answer(reply).answer, "72")


@pytest.mark.parametrize(
    "piece", [r"\boxed{", "#### ", "<answer>", "the answer is ", "9,999,", "{"]
)
def test_no_reply_makes_it_slow(piece: str) -> None:
    began = time.monotonic()
    is_same(final_answer(piece * 20_000).answer, "72")
    assert time.monotonic() - began < 5.0


@pytest.mark.parametrize("answers", [None, [], "72", [72], [" "]])
def test_a_task_without_answers_is_named(answers: object) -> None:
    task = OwnTask.model_validate(
        {
            "id": "t",
            "kind": "answer",
            "source": "s",
            "split": "train",
            "issue": "1 + 1?",
            "data": {"answers": answers, "prompt": [{"role": "policeman", "content": "x"}]},
        }
    )
    with pytest.raises(ConfigError, match=r"task t of the kind 'answer': data\.answers"):
        answers_of(task)
    with pytest.raises(ConfigError, match=r"task t: data\.prompt must be a list of messages"):
        prompt_of(task)
    assert prompt_of(task.model_copy(update={"id": TaskId("u"), "kind": "guess"})) == ()
