"""A program as those see it who read a rollout afterwards: its replies' tool calls as commands.

Invariant: it plays nothing; what it was told is in its stored requests. Made by `choice` where
`agent.kind` is a program; `asked_by` is for every reader of stored replies.
"""

import json
from collections.abc import Sequence

from mainspring.agents.conversation import ConversationAgent
from mainspring.agents.protocol import Agent, Command, FormatError, Message, commands_in
from mainspring.config.agents.agent import AgentConfig
from mainspring.programs.parsing.choice import parser_of
from mainspring.programs.reply import Reply
from mainspring.programs.request import ToolCall, ToolSpec
from mainspring.programs.starting import instruction
from mainspring.tasks.swe_task import SweTask
from mainspring.tasks.task import Task
from mainspring.trajectories.turns import Call, Execution

_SOME_TOOL = (ToolSpec(name="any"),)
"""Where no tool is offered, no call is read; which were offered is of no interest here."""
_COMMAND = ("command", "cmd", "script", "code")
"""Names that clients give to what a shell runs."""


class ProgramAgent(ConversationAgent):
    def __init__(self, config: AgentConfig) -> None:
        self._parse = parser_of(config.tool_parser)

    def opening(self, task: Task) -> tuple[Message, Message]:
        workdir = task.workdir if isinstance(task, SweTask) else "/"
        text = instruction(task.issue, workdir)
        return {"role": "system", "content": ""}, {"role": "user", "content": text}

    def parse(self, reply: Reply) -> tuple[Command, ...] | FormatError:
        """None where the reply calls no tool: that ends a program's work, and breaks no rule."""
        return commands_of(self._parse(reply.text, _SOME_TOOL, False))

    def after(self, reply: Call, executions: Sequence[Execution]) -> str:
        return ""

    def is_done(self, execution: Execution) -> bool:
        return False


def asked_by(agent: Agent, text: str, parts: Reply | None) -> tuple[Command, ...] | FormatError:
    """Commands that a stored reply asks for: `parts`, from a program's endpoint, need no parser."""
    if parts is not None and isinstance(agent, ProgramAgent):
        return commands_of(parts)
    return commands_in(agent, parts or Reply(text=text))


def commands_of(reply: Reply) -> tuple[Command, ...]:
    return tuple(map(_command, reply.tool_calls))


def _command(call: ToolCall) -> Command:
    try:
        arguments = json.loads(call.arguments)
    except (ValueError, RecursionError):
        arguments = None
    if isinstance(arguments, dict):
        for name in _COMMAND:
            value = arguments.get(name)
            if isinstance(value, str):
                return Command(value)
            if isinstance(value, list) and all(isinstance(word, str) for word in value):
                return Command(" ".join(value))
    return Command(f"{call.name} {call.arguments}")
