"""The react agent: a thought, an action and its input a reply, under tags that are fields.

With `agent.react.memory` it is shown its last steps alone, and in the place of older ones what it
wrote under the tag of the summary: then each request begins a branch. Pure.
"""

import json
import re
from collections.abc import Sequence

from mainspring.agents.bash import CUT_OFF, has_submitted
from mainspring.agents.conversation import ConversationAgent
from mainspring.agents.prompts import Prompts
from mainspring.agents.protocol import Command, FormatError, Message
from mainspring.agents.record import Record
from mainspring.agents.tools.choice import tools_of
from mainspring.agents.tools.protocol import Misused, Tool, command_of, only_text
from mainspring.config.agents.agent import AgentConfig
from mainspring.errors import ConfigError
from mainspring.programs.parsing.reasoning import split_reasoning
from mainspring.programs.reply import Reply
from mainspring.programs.request import ChatMessage, ModelRequest, Role, ToolCall
from mainspring.tasks.swe_task import SweTask
from mainspring.tasks.task import Task
from mainspring.trajectories.turns import Call, Execution

SYSTEM = """\
You are a software engineer who works on a machine step by step. Every reply is one step, in this \
form:

{{ tags.thought }} what you know, what you do next and why
{% if tags.summary -%}
{{ tags.summary }} what you will need later: of your earlier steps you are shown this alone
{% endif -%}
{{ tags.action }} the name of one action
{{ tags.action_input }} what it takes

The actions:
{%- for tool in tools %}
- {{ tool.name }}: {{ tool.description }} It takes {{ tool.takes }}.
{%- endfor %}"""

TASK = """\
Please fix this issue in the repository at {{ workdir }}:

<issue>
{{ issue }}
</issue>

Change the sources so that the issue is fixed in general. Hidden tests will judge the result. When \
you are done, take the action submit: nothing can be changed after it."""

ACT_SYSTEM = """\
You act in an environment, one action at a time. Every reply is one step, in this form:

{{ tags.thought }} what you see, what you do next and why
{% if tags.summary -%}
{{ tags.summary }} what you will need later: of your earlier steps you are shown this alone
{% endif -%}
{% if tags.action_input -%}
{{ tags.action }} the name of one action
{{ tags.action_input }} what it takes

The actions:
{%- for tool in tools %}
- {{ tool.name }}: {{ tool.description }} It takes {{ tool.takes }}.
{%- endfor %}
{%- else -%}
{{ tags.action }} the action, as the environment takes it
{%- endif %}"""

REFUSED = """\
{% if cut_off %}\
Your reply reached the longest length allowed before its step was complete, so nothing was run. Be \
brief.\
{% elif reason %}\
Nothing was run: {{ reason }}.\
{% else %}\
Your reply had {{ num_found }} actions; it must have exactly one, so nothing was run.\
{% endif %}"""


class ReactAgent(ConversationAgent):
    texts = Prompts(SYSTEM, TASK, format_error=REFUSED)
    texts_elsewhere = Prompts(ACT_SYSTEM, "{{ issue }}", format_error=REFUSED)
    """For tasks without a repository."""

    def __init__(self, config: AgentConfig) -> None:
        self._config = config
        self._tags = config.react
        self._prompts = self.texts.changed_by(config.prompts)
        self._elsewhere = self.texts_elsewhere.changed_by(config.prompts)
        self._tools = tools_of(config.tools)
        self._only = self._only_tool()
        self.appends = config.react.memory is None
        # The longest first: one tag may begin with another.
        tags = sorted(filter(None, self._tags.tags.values()), key=len, reverse=True)
        self._tag = re.compile(rf"^[ \t]*({'|'.join(map(re.escape, tags))})", re.MULTILINE)

    def opening(self, task: Task) -> tuple[Message, Message]:
        specs = [tool.spec for tool in self._tools.values()]
        prompts = self._prompts if isinstance(task, SweTask) else self._elsewhere
        return prompts.opening(task, self._config, specs, self._tags.tags)

    def _only_tool(self) -> Tool | None:
        """Tool whose input stands under the action's tag, where there is no tag of the input.
        Raises ConfigError."""
        if self._tags.action_input:
            return None
        tool = next(iter(self._tools.values()))
        if len(self._tools) == 1 and only_text(tool.spec):
            return tool
        raise ConfigError(
            'agent.react.action_input = "" puts the whole input under the action\'s tag, and '
            f"agent.tools names {', '.join(self._tools)}",
            remedy='name one tool that takes one text, as in agent.tools = ["act"]',
        )

    def request(self, task: Task, record: Record) -> ModelRequest:
        memory = self._tags.memory
        if memory is None or len(record.calls) <= memory:
            return super().request(task, Record(record.calls, record.executions))
        first = len(record.calls) - memory
        system, user = self.opening(task)
        past = f"{first} earlier steps are left out."
        if summary := self._newest_summary(record.calls[:first]):
            past = f"Summary of your first {first} steps:\n{summary}"
        messages = [
            ChatMessage(role=Role.SYSTEM, text=system["content"]),
            ChatMessage(role=Role.USER, text=f"{user['content']}\n\n{past}"),
        ]
        for call in record.calls[first:]:
            messages += self.turn(call, record.ran(call.number))
        return ModelRequest(messages=tuple(messages))

    def parse(self, reply: Reply) -> tuple[Command, ...] | FormatError:
        fields = self._fields(reply.text)
        actions = [text for tag, text in fields if tag == self._tags.action]
        if len(actions) != 1:
            return FormatError(len(actions))
        given = [text for tag, text in fields if tag == self._tags.action_input]
        name = actions[0]
        if self._only is not None:
            name, given = self._only.spec.name, actions
        if name not in self._tools:
            return FormatError(1, f"there is no action {name!r}: they are {', '.join(self._tools)}")
        tool = self._tools[name]
        try:
            arguments = _arguments(given[0] if given else "", only_text(tool.spec))
            return (Command(command_of(tool, ToolCall(name=name, arguments=arguments))),)
        except Misused as misused:
            return FormatError(1, str(misused))

    def after(self, reply: Call, executions: Sequence[Execution]) -> str:
        if executions:
            turns_left = self._config.step_limit - reply.number - 1
            return self._prompts.observed(executions[0], self._config, turns_left=turns_left)
        parsed = self.parse(reply.reply)
        found = parsed if isinstance(parsed, FormatError) else FormatError(len(parsed))
        cut_off = reply.finish_reason in CUT_OFF
        return self._prompts.refused(found.num_commands, cut_off=cut_off, reason=found.reason)

    def is_done(self, execution: Execution) -> bool:
        return has_submitted(execution)

    def _fields(self, text: str) -> list[tuple[str, str]]:
        """Tags at the beginning of a line, each with the text up to the next one."""
        _, said = split_reasoning(text)
        pieces = self._tag.split(said)
        return [(tag, piece.strip()) for tag, piece in zip(pieces[1::2], pieces[2::2], strict=True)]

    def _newest_summary(self, calls: Sequence[Call]) -> str:
        for call in reversed(calls):
            for tag, text in self._fields(call.reply.text):
                if tag == self._tags.summary and text:
                    return text
        return ""


def _arguments(given: str, only: str | None) -> str:
    """The input of an action as JSON; `only`: the one argument that a plain text stands for."""
    given = given.strip()
    if only is None or (given.startswith("{") and _is_object(given)):
        return given
    return json.dumps({only: given})


def _is_object(text: str) -> bool:
    try:
        return isinstance(json.loads(text), dict)
    except (ValueError, RecursionError):
        return False
