"""Tokens of a call as an endpoint bills them, and their price. Pure.

Invariants: a call's prompt is counted whole, as each request sends it; tokens that were not
counted have no cost, and a sum with such a part has none either: a part is no total.
"""

from collections.abc import Iterable, Mapping, Sequence

from mainspring.config.agents.prices import PriceConfig
from mainspring.trajectories.turns import Call


def num_prompt_tokens(call: Call) -> int | None:
    """Tokens of the whole prompt of one turn; None: from an endpoint that does not count."""
    return call.num_prompt_tokens if _in_text(call) else call.prompt_start + len(call.prompt_ids)


def num_completion_tokens(call: Call) -> int | None:
    return call.num_completion_tokens if _in_text(call) else len(call.completion_ids)


def num_cached_tokens(call: Call, parent: Call | None) -> int:
    """Tokens of the prompt that the call which it extends had: its prompt and its reply."""
    if not _in_text(call):
        return call.prompt_start
    if parent is None:
        return 0
    held = (num_prompt_tokens(parent) or 0) + (num_completion_tokens(parent) or 0)
    return min(held, num_prompt_tokens(call) or 0)


def cost(call: Call, parent: Call | None, price: PriceConfig) -> float | None:
    """Dollars of one call; None: its tokens were not counted. `parent`: the call that it
    extends."""
    prompt, completion = num_prompt_tokens(call), num_completion_tokens(call)
    if prompt is None or completion is None:
        return None
    return price.dollars(prompt, num_cached_tokens(call, parent), completion)


def cost_of_all(calls: Sequence[Call], price: PriceConfig | None) -> float | None:
    """Dollars of a rollout's calls; None: no price, or not all tokens were counted."""
    if price is None:
        return None
    by_number: Mapping[int, Call] = {call.number: call for call in calls}
    return total(
        cost(call, None if call.parent is None else by_number.get(call.parent), price)
        for call in calls
    )


def total(parts: Iterable[float | None]) -> float | None:
    """None where one of them is not known."""
    known = list(parts)
    return None if None in known else float(sum(part or 0.0 for part in known))


def _in_text(call: Call) -> bool:
    return not (call.prompt_ids or call.completion_ids)
