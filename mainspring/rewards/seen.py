"""A rollout as judges see it: its turns, played by an agent or a program. Pure.

Invariant: it holds what is stored, and nothing of the verdict. Made by the activity that asks, from
the store; filled into prompts by `judge_prompts`.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from mainspring.programs.reply import Reply
from mainspring.programs.request import ChatMessage, ModelRequest, Role, ToolCall


@dataclass(frozen=True, slots=True)
class SeenCommand:
    command: str
    returncode: int | None
    """None: a program ran it, which reports in words."""
    output: str
    timed_out: bool = False


@dataclass(frozen=True, slots=True)
class SeenTurn:
    number: int
    """From 1."""
    reply: str
    commands: tuple[SeenCommand, ...] = ()


@dataclass(frozen=True, slots=True)
class SeenRecord:
    """A rollout, or the part of it up to one of its turns."""

    issue: str
    turns: Sequence[SeenTurn]
    """For a judgement of a turn, that turn is the last one."""
    num_skipped: int = 0
    """Turns before these, which are not shown."""
    patch: str = ""
    """Patch of a rollout."""


def of_program(request: ModelRequest, reply: Reply) -> list[SeenTurn]:
    """The turns of a program, from its last request, which holds what was said before, and the
    reply to it."""
    last = ChatMessage(role=Role.ASSISTANT, text=reply.text, tool_calls=reply.tool_calls)
    messages = (*request.messages, last)
    said = [place for place, message in enumerate(messages) if message.role is Role.ASSISTANT]
    ends = [*said[1:], len(messages)]
    return [
        SeenTurn(number, messages[place].text, tuple(_ran(messages[place:end])))
        for number, (place, end) in enumerate(zip(said, ends, strict=True), 1)
    ]


def _ran(messages: Sequence[ChatMessage]) -> Iterator[SeenCommand]:
    """Tool calls of the first message, with what the others tell of them in their order."""
    told = [message.text for message in messages[1:] if message.role is not Role.ASSISTANT]
    for place, call in enumerate(messages[0].tool_calls):
        yield SeenCommand(_call(call), None, told[place] if place < len(told) else "")


def _call(call: ToolCall) -> str:
    return f"{call.name} {call.arguments}"
