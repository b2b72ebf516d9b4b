"""A rollout as chat messages, made from its recorded turns. Pure and deterministic.

The same turns give the same messages, so an endpoint that takes text is asked the same again after
a crash, and an exported trajectory has what the policy was told. Imported by policies and exports.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from mainspring.agents.protocol import Agent, Message
from mainspring.tasks.task import Task
from mainspring.trajectories.turns import Call, Execution, by_call


@dataclass(frozen=True, slots=True)
class Conversation:
    """What was said in one branch up to the reply that is asked for."""

    agent: Agent
    task: Task
    replies: Sequence[Call]
    """Those before it on its branch, in order."""
    executions: Sequence[Execution]
    """Of their commands, in order; those of other branches are not looked at."""

    def opening(self) -> tuple[Message, Message]:
        return self.agent.opening(self.task)

    def newest(self) -> str:
        """The user's message after the last reply, which there must be."""
        last = self.replies[-1]
        return self.agent.after(last, [ran for ran in self.executions if ran.call == last.number])

    def messages(self) -> list[Message]:
        ran = by_call(self.executions)
        messages = list(self.opening())
        for reply in self.replies:
            messages.append({"role": "assistant", "content": reply.text})
            told = self.agent.after(reply, ran[reply.number])
            messages.append({"role": "user", "content": told})
        return messages
