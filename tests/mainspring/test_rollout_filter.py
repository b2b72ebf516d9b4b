"""The filter of `rollout retry --where`."""

import pytest

from mainspring.errors import UsageError
from mainspring.trajectories.rollout_filter import Condition, Field, Op, parse


def test_conditions() -> None:
    assert parse("fault is not null") == [Condition(Field.FAULT, Op.IS_NOT_NULL)]
    assert parse("Verdict = no_patch AND split='test set' and task contains \"a and b\"") == [
        Condition(Field.VERDICT, Op.EQUALS, "no_patch"),
        Condition(Field.SPLIT, Op.EQUALS, "test set"),
        Condition(Field.TASK, Op.CONTAINS, "a and b"),
    ]
    assert parse("stop != 'wall_time'") == [Condition(Field.STOP, Op.DIFFERS, "wall_time")]
    assert parse("fault is null") == [Condition(Field.FAULT, Op.IS_NULL)]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "no condition"),
        ("fault", "no condition"),
        ("fault is not null or split = a", "expected `and`"),
        ("reward = 1", "'reward' is not a field"),
        ("verdict = solved", "'solved' is not a verdict"),
        ("split = a and", "no condition"),
        ("split = a; drop table rollouts", "expected `and`"),
    ],
)
def test_what_is_wrong_is_named(text: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        parse(text)
