"""Dollars of calls: of tokens as served, as an endpoint counts them, and of those not counted."""

import pytest

from mainspring.config.agents.prices import PriceConfig
from mainspring.trajectories.costs import cost, cost_of_all
from mainspring.trajectories.turns import Call

PRICE = PriceConfig(input=2.0, output=10.0)
CACHED = PriceConfig(input=2.0, output=10.0, cached_input=0.5)
MILLIONTH = 1e-6


def in_tokens(number: int, start: int, num_new: int, num_reply: int) -> Call:
    parent = number - 1 if number else None
    tokens = tuple(range(num_new)), tuple(range(num_reply)), (-0.5,) * num_reply
    return Call(number, parent, start, *tokens, (), "text", "stop")


def in_text(number: int, parent: int | None, *counted: int | None) -> Call:
    return Call(number, parent, 0, (), (), (), (), "text", "stop", 0.1, *counted)


def test_a_prompt_is_paid_whole_at_each_call() -> None:
    calls = [in_tokens(0, 0, 100, 10), in_tokens(1, 110, 20, 5)]
    assert cost(calls[0], None, PRICE) == pytest.approx((100 * 2 + 10 * 10) * MILLIONTH)
    assert cost(calls[1], calls[0], PRICE) == pytest.approx((130 * 2 + 5 * 10) * MILLIONTH)
    cached = 110 * 0.5 + 20 * 2 + 5 * 10
    assert cost(calls[1], calls[0], CACHED) == pytest.approx(cached * MILLIONTH)
    both = (100 * 2 + 10 * 10 + cached) * MILLIONTH
    assert cost_of_all(calls, CACHED) == pytest.approx(both)


def test_an_endpoint_counts_by_itself() -> None:
    first, second, branch = (
        in_text(0, None, 100, 10),
        in_text(1, 0, 125, 5),
        in_text(2, None, 40, 1),
    )
    assert cost(second, first, PRICE) == pytest.approx((125 * 2 + 50) * MILLIONTH)
    assert cost(second, first, CACHED) == pytest.approx((110 * 0.5 + 15 * 2 + 50) * MILLIONTH)
    # Another branch holds nothing of what was sent before.
    assert cost(branch, None, CACHED) == pytest.approx((40 * 2 + 10) * MILLIONTH)
    # Its own count may be below what it had before: then all of it was held.
    shorter = in_text(1, 0, 90, 5)
    assert cost(shorter, first, CACHED) == pytest.approx((90 * 0.5 + 50) * MILLIONTH)


def test_what_is_not_counted_has_no_cost() -> None:
    calls = [in_text(0, None, 100, 10), in_text(1, 0, None, None)]
    assert cost(calls[1], calls[0], PRICE) is None and cost_of_all(calls, PRICE) is None
    assert cost_of_all(calls, None) is None
    assert cost_of_all([], PRICE) == 0.0
