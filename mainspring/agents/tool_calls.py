"""The tools agent: it offers tools, and a reply calls one of them or several.

The reply's calls are read as `agent.tool_parser` names, or come apart from an endpoint. A call that
cannot be read, or whose arguments its tool does not take, is told to the policy and costs a turn;
none of that reply's calls runs then. Pure.
"""

from collections.abc import Sequence

from mainspring.agents.bash import CUT_OFF, has_submitted
from mainspring.agents.conversation import ConversationAgent
from mainspring.agents.prompts import Prompts
from mainspring.agents.protocol import Command, FormatError, Message
from mainspring.agents.tools.choice import tools_of
from mainspring.agents.tools.protocol import Misused, command_of
from mainspring.config.agents.agent import AgentConfig
from mainspring.programs.reply import Reply
from mainspring.programs.request import ToolCall
from mainspring.tasks.swe_task import SweTask
from mainspring.tasks.task import Task
from mainspring.trajectories.turns import Call, Execution

SYSTEM = """\
You are a software engineer who works on a machine through tools. In each reply, think briefly, \
then call a tool, or several that do not depend on each other."""

TASK = """\
Please fix this issue in the repository at {{ workdir }}:

<issue>
{{ issue }}
</issue>

Change the sources so that the issue is fixed in general, in the style of the code around it. \
Hidden tests will judge the result. Leave tests and configuration files as they are: changes there \
do not count.

Find and read the code concerned, reproduce the fault, change the sources, check the change, then \
call submit. Nothing can be changed after that."""

ACT_SYSTEM = """\
You act in an environment through tools. In each reply, think briefly, then call a tool."""

REFUSED = """\
{% if cut_off %}\
Your reply reached the longest length allowed before its call was complete, so nothing was run. Be \
brief: think shortly, then call a tool.\
{% elif reason %}\
Nothing was run: {{ reason }}. Call a tool with a JSON object of its arguments.\
{% else %}\
Your reply called no tool, so nothing was run. Call a tool; when you are done, call submit.\
{% endif %}"""
_OPENINGS = ("<tool_call>", "<function=", "<|python_tag|>")
"""Beginnings of calls: one that is still in a reply's text could not be read."""


class ToolsAgent(ConversationAgent):
    texts = Prompts(SYSTEM, TASK, format_error=REFUSED)
    texts_elsewhere = Prompts(ACT_SYSTEM, "{{ issue }}", format_error=REFUSED)
    """For tasks without a repository."""

    def __init__(self, config: AgentConfig) -> None:
        self._config = config
        self._prompts = self.texts.changed_by(config.prompts)
        self._elsewhere = self.texts_elsewhere.changed_by(config.prompts)
        self._tools = tools_of(config.tools)
        self.tools = tuple(tool.spec for tool in self._tools.values())

    def opening(self, task: Task) -> tuple[Message, Message]:
        prompts = self._prompts if isinstance(task, SweTask) else self._elsewhere
        return prompts.opening(task, self._config, self.tools)

    def parse(self, reply: Reply) -> tuple[Command, ...] | FormatError:
        if not reply.tool_calls:
            is_broken = any(mark in reply.text for mark in _OPENINGS)
            return FormatError(0, "its tool call cannot be read" if is_broken else "")
        try:
            return tuple(map(self._command, reply.tool_calls))
        except Misused as misused:
            return FormatError(len(reply.tool_calls), str(misused))

    def _command(self, call: ToolCall) -> Command:
        if call.name not in self._tools:
            raise Misused(f"there is no tool {call.name!r}: the tools are {', '.join(self._tools)}")
        return Command(command_of(self._tools[call.name], call))

    def after(self, reply: Call, executions: Sequence[Execution]) -> str:
        if executions:
            turns_left = self._config.step_limit - reply.number - 1
            return self._prompts.observed(executions[0], self._config, turns_left=turns_left)
        parsed = self.parse(reply.reply)
        if isinstance(parsed, FormatError):
            cut_off = reply.finish_reason in CUT_OFF
            return self._prompts.refused(parsed.num_commands, cut_off=cut_off, reason=parsed.reason)
        return "Nothing was run: an earlier call of the reply ended the work."

    def is_done(self, execution: Execution) -> bool:
        return has_submitted(execution)
