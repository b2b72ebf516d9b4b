"""The request that is asked where the agent's own leaves a reply no room. Pure.

Invariant: it follows from the calls so far and from counts of tokens alone. What was asked is
stored with its reply, so it is never made again. Imported by the activity of replies.
"""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from mainspring.agents.asking import NextRequest
from mainspring.agents.contexts.choice import fitted, opened, sums_up
from mainspring.agents.contexts.protocol import Count, History
from mainspring.config.agents.context import FAIL, ContextConfig
from mainspring.programs.request import ChatMessage, ModelRequest
from mainspring.trajectories.turns import Call


@dataclass(frozen=True, slots=True)
class Rewrite:
    """A request in the place of the agent's."""

    request: ModelRequest
    is_summary: bool = False
    """It asks for a summary, and what it takes the place of comes after it."""


def with_messages(
    request: ModelRequest, messages: Sequence[ChatMessage], max_tokens: int | None = None
) -> ModelRequest:
    return request.model_copy(update={"messages": tuple(messages), "max_tokens": max_tokens})


async def rewrite(
    config: ContextConfig,
    asked: NextRequest,
    budget: int,
    count_asked: Callable[[], Awaitable[int]],
    count: Count,
) -> Rewrite | None:
    """A shorter request, or one for a summary; None: `asked` is asked as it is. `count_asked`:
    tokens of its prompt, with those of the branch that it continues. Raises AgentBroken."""
    if config.kind == FAIL or not asked.stored:
        return None
    newest = asked.stored[-1].call
    if newest.is_summary:
        messages = await opened(config, _rest(asked, newest), newest.reply.text, budget, count)
        return None if messages is None else Rewrite(with_messages(asked.request, messages))
    if await count_asked() <= budget:
        return None
    of_branch = sums_up(config)
    history = History.of((asked.request if of_branch else asked.of_agent).messages)
    messages = await fitted(config, history, budget, count)
    if messages is None:
        return None
    if not of_branch:
        return Rewrite(with_messages(asked.request, messages))
    return Rewrite(with_messages(asked.request, messages, config.summary_tokens), is_summary=True)


def _rest(asked: NextRequest, summary: Call) -> History:
    """The system's message and the task's, and the turns that the summary does not tell of."""
    assert summary.rewritten is not None, "a summary is stored with what asked for it"
    num_told = len(History.of(summary.rewritten.messages).turns)
    fixed = History.of(asked.of_agent.messages).fixed
    return History(fixed, History.of(asked.request.messages).turns[num_told:])
