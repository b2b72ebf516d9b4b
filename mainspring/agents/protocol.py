"""The seam between a rollout and the agent that plays it.

- An agent is pure: it is made anew wherever it is needed, from its configuration alone, and the
  same record gives the same messages after a crash.
- The workflow drives it: opening messages, then reply, commands and next message in turn.
- A reply asks for one command or for several; they run in their order, one after the other.
- A reply that breaks the agent's rules is a FormatError value, never an exception: the policy is
  told, and it costs a turn.

Implemented beside this file and by agents of your own (docs/extending.md); `choice` finds them.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, TypedDict

from mainspring.tasks.task import Task
from mainspring.trajectories.turns import Call, Execution


class Message(TypedDict):
    """One chat message, as chat templates take it."""

    role: Literal["system", "user", "assistant"]
    content: str


@dataclass(frozen=True, slots=True)
class Command:
    """What a reply asks the sandbox to run."""

    command: str


@dataclass(frozen=True, slots=True)
class FormatError:
    """A reply that does not hold what the agent takes."""

    num_commands: int
    """Commands that were found."""
    reason: str = ""
    """What was not clear of them; empty where their number tells it."""


class Agent(Protocol):
    def opening(self, task: Task) -> tuple[Message, Message]:
        """What every rollout of a task begins with: the system's message and the user's."""
        ...

    def parse(self, reply: str) -> tuple[Command, ...] | FormatError:
        """The commands that the reply asks for, at least one. `reply` is its text, without special
        tokens."""
        ...

    def after(self, reply: Call, executions: Sequence[Execution]) -> str:
        """The user's message after `reply`: what its commands did, in their order, or how to form a
        reply. Without `executions` nothing was run."""
        ...

    def is_done(self, execution: Execution) -> bool:
        """Whether this command submits: the rollout ends, and what its tree holds is graded."""
        ...
