"""The context strategies that `agent.context.kind` names, and your own as paths."""

from collections.abc import Awaitable, Callable, Sequence

from mainspring.agents.asking import AgentBroken
from mainspring.agents.contexts.forget_outputs import ForgetOutputs
from mainspring.agents.contexts.head_tail import HeadTail
from mainspring.agents.contexts.protocol import ContextStrategy, Count, History, Summarising
from mainspring.agents.contexts.summarise import Summarise
from mainspring.config.agents.context import FAIL, ContextConfig
from mainspring.config.registry import Registry
from mainspring.errors import MainspringError
from mainspring.programs.request import ChatMessage

CONTEXTS: Registry[Callable[[ContextConfig], ContextStrategy]] = Registry(
    "context",
    (("head_tail", HeadTail), ("forget_outputs", ForgetOutputs), ("summarise", Summarise)),
    takes="config",
    methods=("fit",),
    also=(FAIL,),
)


def context_of(config: ContextConfig) -> ContextStrategy | None:
    """None where a rollout that is too long ends. Raises ConfigError."""
    return None if config.kind == FAIL else CONTEXTS.make(config.kind, config)


def sums_up(config: ContextConfig) -> bool:
    """Whether a request that is too long is followed by one for a summary."""
    return isinstance(context_of(config), Summarising)


async def fitted(
    config: ContextConfig, history: History, budget: int, count: Count
) -> tuple[ChatMessage, ...] | None:
    """Messages of a prompt of at most `budget` tokens; None where the strategy finds none. Raises
    AgentBroken for one of your own that fails."""
    strategy = context_of(config)
    return (
        None
        if strategy is None
        else await _made(config, history, strategy.fit(history, budget, count))
    )


async def opened(
    config: ContextConfig, history: History, summary: str, budget: int, count: Count
) -> tuple[ChatMessage, ...] | None:
    """Messages of the prompt that follows a summary; None where they do not fit. Raises
    AgentBroken likewise."""
    strategy = context_of(config)
    assert isinstance(strategy, Summarising), config.kind
    return await _made(config, history, strategy.open(history, summary, budget, count))


async def _made(
    config: ContextConfig,
    history: History,
    making: Awaitable[Sequence[ChatMessage] | None],
) -> tuple[ChatMessage, ...] | None:
    try:
        messages = await making
    except MainspringError:
        raise
    except Exception as error:
        raise _broken(config, f"raised {type(error).__name__}: {error}") from error
    if messages is None:
        return None
    messages = tuple(messages)
    if not all(isinstance(message, ChatMessage) for message in messages):
        raise _broken(config, "returned something else than messages")
    if messages[: len(history.fixed)] != history.fixed:
        raise _broken(config, "left out the system's message or the task's")
    return messages


def _broken(config: ContextConfig, what: str) -> AgentBroken:
    return AgentBroken(
        f"agent.context.kind = {config.kind!r} {what}",
        remedy="return messages that begin with those of `history.fixed`: see "
        "mainspring/agents/contexts/protocol.py",
    )
