"""The seam between a rollout's whole history and a request that fits the context.

- A strategy is pure: the same history, budget and counts give the same messages after a crash. What
  it made is stored with the reply, so nothing that was asked is ever made again.
- It is asked only when the prompt has more tokens than `policy.max_context -
  policy.max_new_tokens`. The request that it makes begins a branch, or forks from an earlier call
  whose history it begins with; later turns are added to it until it is too long again.
- Tokens of calls that it leaves out stay trained in the branch that they were sampled in.
- A strategy that is `Summarising` asks the policy for a summary first: a call of the rollout,
  trained like any other. Such calls are no turns of the agent's, which never sees them.

Implemented beside this file and by classes of your own (docs/extending.md); `choice` finds them.
"""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from mainspring.programs.request import ChatMessage, Role

Count = Callable[[Sequence[ChatMessage]], Awaitable[int]]
"""Tokens of a prompt with these messages, rendered with the agent's tools."""


@dataclass(frozen=True, slots=True)
class History:
    """All messages of a rollout."""

    fixed: tuple[ChatMessage, ...]
    """The system's and the task's: every request begins with them."""
    turns: tuple[tuple[ChatMessage, ...], ...]
    """Each reply with the messages that followed it."""

    @classmethod
    def of(cls, messages: Sequence[ChatMessage]) -> "History":
        """Messages that begin with the fixed ones, cut before each reply."""
        starts = [place for place, message in enumerate(messages) if message.role is Role.ASSISTANT]
        ends = [*starts, len(messages)][1:]
        turns = (tuple(messages[start:end]) for start, end in zip(starts, ends, strict=True))
        return cls(tuple(messages[: starts[0]] if starts else messages), tuple(turns))

    async def sizes(self, count: Count) -> tuple[int, list[int]]:
        """Tokens of the fixed messages alone, and what each turn adds to them."""
        fixed = await count(self.fixed)
        return fixed, [await count((*self.fixed, *turn)) - fixed for turn in self.turns]


class ContextStrategy(Protocol):
    async def fit(
        self, history: History, budget: int, count: Count
    ) -> Sequence[ChatMessage] | None:
        """Messages of a prompt with at most `budget` tokens, which begin with `history.fixed`. None
        where nothing can be left out: then the rollout ends when no reply fits any more."""
        ...


@runtime_checkable
class Summarising(ContextStrategy, Protocol):
    """Its `fit` makes the request for a summary, from the history of the branch that is too long;
    an earlier summary is one of the branch's fixed messages."""

    async def open(
        self, history: History, summary: str, budget: int, count: Count
    ) -> Sequence[ChatMessage] | None:
        """Messages that begin the next branch: `history.fixed` first. `history.turns`: those that
        were not summed up. None where they do not fit."""
        ...
