"""summarise: the policy sums up what it did, and its summary opens the next branch. Pure.

It is asked within the branch: the turns so far, all but the newest ones that leave no room, and a
request to sum them up. The next branch has the system's message and the task's, the summary, and
the turns that are not in it, if need be with shortened outputs.
"""

from collections.abc import Sequence

from mainspring.agents.contexts.forget_outputs import shortened
from mainspring.agents.contexts.protocol import Count, History
from mainspring.config.agents.context import ContextConfig
from mainspring.programs.request import ChatMessage, Role

OPENING = "Summary of the work so far:\n"
NOTHING = "(nothing was written)"


class Summarise:
    """Implements `protocol.Summarising`."""

    def __init__(self, config: ContextConfig) -> None:
        self._config = config

    async def fit(
        self, history: History, budget: int, count: Count
    ) -> Sequence[ChatMessage] | None:
        wanted = ChatMessage(role=Role.USER, text=self._config.summary_prompt)
        for num_turns in range(len(history.turns) - 1, 0, -1):
            turns = [message for turn in history.turns[:num_turns] for message in turn]
            messages = [*history.fixed, *turns, wanted]
            if await count(messages) <= budget:
                return messages
        return None

    async def open(
        self, history: History, summary: str, budget: int, count: Count
    ) -> Sequence[ChatMessage] | None:
        told = ChatMessage(role=Role.USER, text=f"{OPENING}{summary.strip() or NOTHING}")
        newest = [message for turn in history.turns for message in turn]
        for turns in (newest, [shortened(each, self._config.lines) for each in newest], []):
            messages = [*history.fixed, told, *turns]
            if await count(messages) <= budget:
                return messages
        return None
