"""head_tail: the first turns and the last ones stay whole, with a marker between them. Pure.

Of what the system's message, the task's and the marker leave of the budget, the first turns get the
share `head_ratio`, and the last turns what is left of it.
"""

from collections.abc import Sequence

from mainspring.agents.contexts.protocol import Count, History
from mainspring.config.agents.context import ContextConfig
from mainspring.programs.request import ChatMessage, Role


class HeadTail:
    def __init__(self, config: ContextConfig) -> None:
        self._config = config

    async def fit(
        self, history: History, budget: int, count: Count
    ) -> Sequence[ChatMessage] | None:
        turns = history.turns
        if len(turns) < 2:
            return None
        _, sizes = await history.sizes(count)
        marked = await count((*history.fixed, marker(len(turns))))
        available = int(budget * self._config.fill) - marked
        num_first, num_last = kept(sizes, available, self._config.head_ratio)
        while num_first + num_last < len(turns):
            messages = _between(history, num_first, num_last)
            # A turn may take another number of tokens between others than it does alone.
            if await count(messages) <= budget:
                return messages
            if not num_first + num_last:
                return None
            num_first, num_last = (num_first, num_last - 1) if num_last else (num_first - 1, 0)
        return None


def marker(num_turns: int) -> ChatMessage:
    noun = "turn was" if num_turns == 1 else "turns were"
    return ChatMessage(role=Role.USER, text=f"[{num_turns} {noun} left out here to save room]")


def kept(sizes: Sequence[int], available: int, head_ratio: float) -> tuple[int, int]:
    """Numbers of first and of last turns of `sizes` tokens that fit: each side ends at the first
    turn that does not."""
    num_first, used = 0, 0
    while num_first < len(sizes) and used + sizes[num_first] <= int(available * head_ratio):
        used += sizes[num_first]
        num_first += 1
    num_last = 0
    while num_first + num_last < len(sizes) and used + sizes[-1 - num_last] <= available:
        used += sizes[-1 - num_last]
        num_last += 1
    return num_first, num_last


def _between(history: History, num_first: int, num_last: int) -> list[ChatMessage]:
    turns, end = history.turns, len(history.turns) - num_last
    first = [message for turn in turns[:num_first] for message in turn]
    last = [message for turn in turns[end:] for message in turn]
    return [*history.fixed, *first, marker(end - num_first), *last]
