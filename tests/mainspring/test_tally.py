"""What ends a rollout's turns, counted turn by turn; and the tally travels as it is."""

import pytest

from mainspring.status import StopReason
from mainspring.trajectories.tally import Tally, TurnLimits


def tally(
    step_limit: int = 5, max_format_errors: int = 2, rollout_timeout_s: float = 10.0
) -> Tally:
    return Tally(
        limits=TurnLimits(
            step_limit=step_limit,
            max_format_errors=max_format_errors,
            rollout_timeout_s=rollout_timeout_s,
        )
    )


def play(it: Tally, turns: str, spent_s: float = 1.0) -> Tally:
    """A turn a letter: c a command, e a format error, s a submission, f a full context; a reply and
    a command take `spent_s` each."""
    for letter in turns:
        assert it.stop is None, f"{turns}: stopped before {letter}"
        if letter == "f":
            it.context_is_full()
            continue
        it.replied(spent_s, in_format=letter != "e")
        if letter in "cs":
            it.ran(spent_s, submitted=letter == "s")
        it.end_turn()
    return it


@pytest.mark.parametrize(
    ("turns", "stop", "num_turns"),
    [
        ("ccs", StopReason.SUBMITTED, 3),
        ("ccccc", StopReason.STEP_LIMIT, 5),
        ("cccc", None, 4),
        ("cee", StopReason.FORMAT_ERRORS, 3),
        ("ecec", None, 4),
        ("ccf", StopReason.CONTEXT_FULL, 2),
        ("f", StopReason.CONTEXT_FULL, 0),
        ("ccces", StopReason.SUBMITTED, 5),
        ("cccee", StopReason.FORMAT_ERRORS, 5),
    ],
)
def test_what_ends_the_turns(turns: str, stop: StopReason | None, num_turns: int) -> None:
    played = play(tally(), turns)
    assert (played.stop, played.num_turns) == (stop, num_turns)


def test_time_beyond_the_limit_ends_after_a_whole_turn() -> None:
    assert play(tally(), "ccc", spent_s=5 / 3).stop is None
    assert play(tally(), "cc", spent_s=2.6).stop is StopReason.WALL_TIME
    # Its last limits meet: the time comes first, as it always did; a submission before both.
    assert play(tally(step_limit=2), "cc", spent_s=2.6).stop is StopReason.WALL_TIME
    assert play(tally(step_limit=2), "cs", spent_s=2.6).stop is StopReason.SUBMITTED


def test_a_straggler_ends_after_the_turn_that_uses_up_its_time() -> None:
    it = play(tally(), "c")
    it.limits.straggler_at_s = 5.0
    assert play(it, "c").stop is None
    assert play(it, "c").stop is StopReason.STRAGGLER
    late = tally()
    late.limits.straggler_at_s = 1.0
    assert play(late, "s").stop is StopReason.SUBMITTED


def test_dollars_beyond_the_limit_end_after_a_whole_turn() -> None:
    def spend(it: Tally, *costs: float, submitted: bool = False) -> Tally:
        for cost in costs:
            it.replied(1.0, in_format=True, cost=cost)
            it.ran(1.0, submitted=submitted)
            it.end_turn()
        return it

    it = tally()
    it.limits.cost_limit = 0.75
    assert spend(it, 0.25, 0.25).stop is None
    assert spend(it, 0.25).stop is StopReason.COST_LIMIT and it.num_turns == 3
    both = tally(step_limit=1)
    both.limits.cost_limit = 0.5
    assert spend(both, 0.5).stop is StopReason.COST_LIMIT
    assert spend(tally(step_limit=1), 0.5, submitted=True).stop is StopReason.SUBMITTED
    # A tally of a workflow that began before there was such a limit.
    before = {"limits": {"step_limit": 2, "max_format_errors": 1, "rollout_timeout_s": 9.0}}
    assert spend(Tally.model_validate(before), 0.5, 0.5).stop is StopReason.STEP_LIMIT


@pytest.mark.parametrize("turns", ["cecs", "cee", "ccccc", "ecf"])
@pytest.mark.parametrize("cut", [1, 2])
def test_a_tally_that_travelled_between_two_turns_ends_alike(turns: str, cut: int) -> None:
    earlier = play(tally(), turns[:cut], spent_s=0.1)
    travelled = Tally.model_validate_json(earlier.model_dump_json())
    assert play(travelled, turns[cut:], spent_s=0.1) == play(tally(), turns, spent_s=0.1)
