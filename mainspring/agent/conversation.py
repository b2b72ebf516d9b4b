"""A rollout as chat messages, made from its recorded turns. Pure and deterministic.

The same turns give the same messages, so an endpoint that takes text is asked the same again after
a crash, and an exported trajectory says what the policy was told. Used by the policy's activities
and by exports.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from mainspring.agent.action import FormatError, parse_action
from mainspring.agent.observation import render_format_error, render_observation
from mainspring.agent.prompt import Message, opening_messages
from mainspring.config import AgentConfig
from mainspring.tasks import Task
from mainspring.turns import Execution, Generation

CUT_OFF = frozenset({"length", "max_tokens"})
"""Finish reasons of a reply that reached its longest length: SGLang's and OpenAI's, and others'."""


@dataclass(frozen=True, slots=True)
class Conversation:
    """What was said up to the reply that is asked for."""

    agent: AgentConfig
    task: Task
    replies: Sequence[Generation]
    """Those before it, in order."""
    executions: Sequence[Execution]
    """Of their commands, in order."""

    def opening(self) -> list[Message]:
        return opening_messages(self.task.issue, self.task.workdir, self.agent.short_prompts)

    def newest(self) -> str:
        """The user's message after the last reply, which there must be."""
        last = self.executions[-1] if self.executions else None
        return message_after(self.agent, self.replies[-1], last)

    def messages(self) -> list[Message]:
        return messages_before_reply(self.agent, self.task, self.replies, self.executions)


def message_after(agent: AgentConfig, reply: Generation, execution: Execution | None) -> str:
    """What the agent is told after `reply`: its command's output, or how to format a reply."""
    action = parse_action(reply.text)
    if isinstance(action, FormatError):
        return message_after_format_error(action, reply)
    assert execution is not None, f"turn {reply.turn}: its command has not run"
    return render_observation(
        execution.returncode,
        execution.output,
        timed_out=execution.timed_out,
        timeout_s=agent.command_timeout_s,
        limit_chars=agent.observation_chars,
        turns_left=None if agent.short_prompts else agent.step_limit - reply.turn - 1,
    )


def message_after_format_error(error: FormatError, reply: Generation) -> str:
    return render_format_error(error.num_blocks, cut_off=reply.finish_reason in CUT_OFF)


def messages_before_reply(
    agent: AgentConfig, task: Task, replies: Sequence[Generation], executions: Iterable[Execution]
) -> list[Message]:
    """Everything said when the reply after `replies` is asked for."""
    results = {execution.turn: execution for execution in executions}
    messages = opening_messages(task.issue, task.workdir, agent.short_prompts)
    for reply in replies:
        told = message_after(agent, reply, results.get(reply.turn))
        messages.append({"role": "assistant", "content": reply.text})
        messages.append({"role": "user", "content": told})
    return messages
