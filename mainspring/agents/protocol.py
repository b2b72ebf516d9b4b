"""The seam between a rollout and the agent that plays it.

- An agent is pure: it is made anew wherever it is needed, from its configuration alone, and the
  same record gives the same request after a crash.
- The workflow drives it: a request, its reply, the reply's commands, and the next request in turn.
- A request begins with what was said before, or rewrites it: then it begins a branch.
- A reply asks for one command or for several; they run in their order, one after the other.
- A reply that breaks the agent's rules is a FormatError value, never an exception: the policy is
  told, and it costs a turn.

Implemented beside this file (most simply as a `conversation.ConversationAgent`) and by agents of
your own (docs/extending.md); `choice` finds them.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, TypedDict

from mainspring.agents.record import Record
from mainspring.programs.reply import Reply
from mainspring.programs.request import ModelRequest, ToolSpec
from mainspring.tasks.task import Task
from mainspring.trajectories.turns import Execution


class Message(TypedDict):
    """One chat message, as chat templates take it."""

    role: Literal["system", "user", "assistant"]
    content: str


@dataclass(frozen=True, slots=True)
class Command:
    """Command that a reply asks the sandbox to run."""

    command: str


@dataclass(frozen=True, slots=True)
class FormatError:
    """A reply that does not hold what the agent takes."""

    num_commands: int
    """Commands that were found."""
    reason: str = ""
    """Fault in them; empty where their number tells it."""


class Agent(Protocol):
    @property
    def appends(self) -> bool:
        """Whether each request begins with the one before it and its reply: one that does not is
        refused. Else it begins a branch."""
        ...

    @property
    def tools(self) -> Sequence[ToolSpec]:
        """Those that its requests may offer; empty for an agent that reads its replies' text. A
        reply that calls another one is a FormatError, which no agent needs to look for."""
        ...

    def request(self, task: Task, record: Record) -> ModelRequest:
        """Next request to the policy, from the record alone; with an empty record what every
        rollout of the task begins with."""
        ...

    def parse(self, reply: Reply) -> tuple[Command, ...] | FormatError:
        """The commands that the reply asks for, at least one. Where no tools were offered it is
        one `text`, without special tokens."""
        ...

    def is_done(self, execution: Execution) -> bool:
        """Whether this command submits: the rollout ends, and what its tree holds is graded."""
        ...


def commands_in(agent: Agent, reply: Reply) -> tuple[Command, ...] | FormatError:
    """Commands that a reply asks for: `parse`, unless it calls a tool that the agent has not."""
    names = [tool.name for tool in agent.tools]
    for call in reply.tool_calls if names else ():
        if call.name not in names:
            reason = f"the tool {call.name!r} was not offered: the tools are {', '.join(names)}"
            return FormatError(len(reply.tool_calls), reason)
    return agent.parse(reply)
