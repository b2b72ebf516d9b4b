"""forget_outputs: old outputs are shortened to their first and last lines, the oldest first. Pure.

Replies stay whole, and so does what followed the last one. No more turns are shortened than it
takes to reach the share `fill` of the budget.
"""

from collections.abc import Sequence

from mainspring.agents.contexts.protocol import Count, History
from mainspring.config.agents.context import ContextConfig
from mainspring.programs.request import ChatMessage, Role


class ForgetOutputs:
    def __init__(self, config: ContextConfig) -> None:
        self._config = config

    async def fit(
        self, history: History, budget: int, count: Count
    ) -> Sequence[ChatMessage] | None:
        fixed, sizes = await history.sizes(count)
        turns, total = list(history.turns), fixed + sum(sizes)
        for place in range(len(turns) - 1):
            if total <= int(budget * self._config.fill):
                break
            turns[place] = tuple(shortened(each, self._config.lines) for each in turns[place])
            total += await count((*history.fixed, *turns[place])) - fixed - sizes[place]
        messages = [*history.fixed, *(message for turn in turns for message in turn)]
        return messages if await count(messages) <= budget else None


def shortened(message: ChatMessage, num_lines: int) -> ChatMessage:
    """An output with `num_lines` lines of each end; a reply stays whole."""
    if message.role is Role.ASSISTANT:
        return message
    return message.model_copy(update={"text": first_and_last(message.text, num_lines)})


def first_and_last(text: str, num_lines: int) -> str:
    """`num_lines` lines of each end, and how many were between; a text that is no longer stays."""
    lines = text.split("\n")
    left_out = len(lines) - 2 * num_lines
    if left_out < 2:
        return text
    head, tail = lines[:num_lines], lines[len(lines) - num_lines :]
    return "\n".join([*head, f"[{left_out} lines of this output were left out]", *tail])
