"""The form of a written reply: a bash block, a tool call, or a step under react's tags.

Invariant: a form is chosen by trying: the agent itself reads a reply in it as exactly the command
that was meant. One that reads none of them cannot be taught, and is refused before a campaign is
stored. A program asks for itself: its replies have the bash block. Pure.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from mainspring.agents.bash_block import SUBMIT_SENTINEL
from mainspring.agents.choice import AGENTS
from mainspring.agents.protocol import Agent, Command, commands_in
from mainspring.config.agents.agent import AgentConfig, ReactConfig
from mainspring.errors import ConfigError
from mainspring.programs.parsing.choice import parser_of
from mainspring.programs.profiles.choice import is_program
from mainspring.programs.reply import Reply

BUNDLED_AGENT = AgentConfig(kind="bundled")
SUBMIT = f"echo {SUBMIT_SENTINEL}"


class CannotBeTaught(ConfigError):
    """An agent that reads no form of the warm start."""


class ReplyForm(Protocol):
    strings: tuple[str, ...]
    """Texts of replies in this form: a token each, so that a reply is mostly decisions."""

    def reply(self, thought: str, command: str, notes: str) -> str:
        """Text of a reply that asks for `command`. `notes`: what was done so far."""
        ...


class BlockForm:
    strings: tuple[str, ...] = ("THOUGHT:", "\n\n```bash\n", "\n```", SUBMIT)

    def reply(self, thought: str, command: str, notes: str) -> str:
        return f"THOUGHT: {thought}\n\n```bash\n{command}\n```"


class CallForm:
    """As Hermes models write calls."""

    strings: tuple[str, ...] = (
        '\n<tool_call>\n{"name": "bash", "arguments": {"command": "',
        '"}}\n</tool_call>',
        '\n<tool_call>\n{"name": "submit", "arguments": {}}\n</tool_call>',
        "<tool_response>\n",
        "\n</tool_response>",
    )

    def reply(self, thought: str, command: str, notes: str) -> str:
        name, arguments = ("submit", {}) if command == SUBMIT else ("bash", {"command": command})
        call = json.dumps({"name": name, "arguments": arguments}, ensure_ascii=False)
        return f"{thought}\n<tool_call>\n{call}\n</tool_call>"


class ReactForm:
    def __init__(self, tags: ReactConfig) -> None:
        self._tags = tags
        self.strings: tuple[str, ...] = (
            tags.thought,
            f"\n{tags.action} bash\n{tags.action_input}",
            f"\n{tags.action} submit",
            *((f"\n{tags.summary}",) if tags.summary else ()),
        )

    def reply(self, thought: str, command: str, notes: str) -> str:
        tags = self._tags
        lines = [f"{tags.thought} {thought}"]
        if tags.summary:
            lines.append(f"{tags.summary} {notes}")
        if command == SUBMIT:
            lines.append(f"{tags.action} submit")
        else:
            lines += [f"{tags.action} bash", f"{tags.action_input} {command}"]
        return "\n".join(lines)


@dataclass(frozen=True, slots=True)
class Speech:
    """An agent, and how the policy talks to it."""

    agent: Agent
    form: ReplyForm
    read: Callable[[str], Reply]
    """A reply's text as the agent gets it."""


def taught_agent(config: AgentConfig) -> AgentConfig:
    """The section that the warm start plays with in a campaign that has this one."""
    return BUNDLED_AGENT if is_program(config) else config


def speech_of(config: AgentConfig) -> Speech:
    """An agent that plays, and the form that it reads. Raises CannotBeTaught, and ConfigError for
    one that cannot be made."""
    agent = AGENTS.make(config.kind, config)
    parse = parser_of(config.tool_parser)

    def read(text: str) -> Reply:
        return parse(text, agent.tools, False) if agent.tools else Reply(text=text)

    forms: list[ReplyForm] = [BlockForm(), ReactForm(config.react)]
    if agent.tools:
        forms = [CallForm()]
    for form in forms:
        speech = Speech(agent, form, read)
        if all(_is_read(speech, command) for command in ("cat a.py", SUBMIT)):
            return speech
    raise CannotBeTaught(
        f"the bundled model cannot be taught the agent {config.kind!r}: its warm start writes bash "
        "blocks, steps of react, and calls of the tools bash and submit in the form of hermes, and "
        "the agent as it is configured reads none of them",
        remedy='set agent.kind = "bundled", or agent.tools and agent.tool_parser to these, or '
        "train a model of your own (policy.model)",
    )


def _is_read(speech: Speech, command: str) -> bool:
    reply = speech.read(speech.form.reply("I read a.py.", command, "I read a.py."))
    return commands_in(speech.agent, reply) == (Command(command),)
