"""Draws of several task sets: shares that follow the weights, whatever was drawn before."""

from fractions import Fraction

from hypothesis import given, settings
from hypothesis import strategies as st

from mainspring.algorithms.set_draws import draw_of

WEIGHTS = st.lists(
    st.one_of(st.integers(1, 20).map(float), st.integers(5, 300).map(lambda n: n / 100)),
    min_size=1,
    max_size=6,
)


@settings(deadline=None)
@given(WEIGHTS, st.integers(1, 60))
def test_after_any_number_of_draws_each_set_has_its_share_to_less_than_one(
    weights: list[float], num_draws: int
) -> None:
    written = [Fraction(str(weight)) for weight in weights]
    counts = [0] * len(weights)
    for draw in range(num_draws):
        place, own = draw_of(weights, draw)
        assert own == counts[place]  # each set numbers its own draws without a gap
        counts[place] += 1
        for weight, count in zip(written, counts, strict=True):
            assert abs(count - weight * (draw + 1) / sum(written)) < 1


@settings(deadline=None)
@given(WEIGHTS, st.integers(0, 10_000), st.integers(1, 4))
def test_a_draw_follows_from_its_number_and_the_proportion_of_weights(
    weights: list[float], draw: int, factor: int
) -> None:
    exact = [round(weight * 100) for weight in weights]
    assert draw_of(weights, draw) == draw_of([factor * each for each in exact], draw)


def test_far_draws_are_found_without_those_between() -> None:
    assert draw_of([3, 1], 4 * 10**12 + 3) == (1, 10**12)


def test_equal_weights_take_turns_in_the_order_of_the_file() -> None:
    assert [draw_of([1, 1, 1], draw)[0] for draw in range(6)] == [0, 1, 2, 0, 1, 2]
