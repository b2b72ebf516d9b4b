"""The single agent: one reply, which is a patch, or the answer to a task of another kind.

A reply without a patch is told so and costs a turn; `agent.step_limit` is 1 unless it is set. A
task with chat messages of its own is asked with these, unless `[agent.prompts]` has other texts.
Pure.
"""

import re
from collections.abc import Sequence

from mainspring.agents.bash import CUT_OFF
from mainspring.agents.conversation import ConversationAgent
from mainspring.agents.prompts import Prompts
from mainspring.agents.protocol import Command, FormatError, Message
from mainspring.config.agents.agent import AgentConfig, SingleAnswer
from mainspring.errors import ConfigError
from mainspring.programs.parsing.reasoning import split_reasoning
from mainspring.programs.reply import Reply
from mainspring.tasks.answer import prompt_of
from mainspring.tasks.swe_task import SweTask
from mainspring.tasks.task import Task
from mainspring.trajectories.turns import Call, Execution

SYSTEM = """\
You are a software engineer. Answer in one reply: think, then write one fenced block marked diff \
with the change as a unified diff, with paths from the top of the repository."""
ANSWER_SYSTEM = "Answer the question. Your whole reply is taken as the answer."

TASK = """\
Please fix this issue in the repository at {{ workdir }}:

<issue>
{{ issue }}
</issue>

Hidden tests will judge the result."""

REFUSED = """\
{% if cut_off %}\
Your reply reached the longest length allowed before its patch was complete.\
{% else %}\
Your reply had {{ num_found }} blocks marked diff; it must have exactly one.\
{% endif %}"""
_BLOCK = re.compile(r"^```(?:diff|patch)[ \t]*\n(.*?)^```[ \t]*$", re.DOTALL | re.MULTILINE)
_END = "END_OF_THE_PATCH"


class SingleAgent(ConversationAgent):
    def __init__(self, config: AgentConfig) -> None:
        self._config = config
        is_patch = config.single is SingleAnswer.PATCH
        own = Prompts(SYSTEM, TASK) if is_patch else Prompts(ANSWER_SYSTEM, "{{ issue }}")
        texts = Prompts(own.system, own.task, format_error=REFUSED)
        self._prompts = texts.changed_by(config.prompts)

    def opening(self, task: Task) -> Sequence[Message]:
        wants_patch = self._config.single is SingleAnswer.PATCH
        if wants_patch is not isinstance(task, SweTask):
            word = SingleAnswer.PATCH if isinstance(task, SweTask) else SingleAnswer.TEXT
            raise ConfigError(
                f"the single agent cannot play task {task.id} with agent.single = "
                f'"{self._config.single}"',
                remedy=f'set agent.single = "{word}" for tasks of this kind',
            )
        texts = self._config.prompts
        if texts.system is None and texts.task is None and (messages := prompt_of(task)):
            return messages
        return self._prompts.opening(task, self._config)

    def parse(self, reply: Reply) -> tuple[Command, ...] | FormatError:
        _, said = split_reasoning(reply.text)
        if self._config.single is SingleAnswer.TEXT:
            return (Command(said.strip()),) if said.strip() else FormatError(0)
        patches = _BLOCK.findall(said.replace("\r\n", "\n").replace("\0", ""))
        if len(patches) != 1 or not patches[0].strip():
            return FormatError(len(patches))
        end = _END
        while end in patches[0]:
            end += "_"
        return (Command(f"git apply --recount --whitespace=nowarn - <<'{end}'\n{patches[0]}{end}"),)

    def after(self, reply: Call, executions: Sequence[Execution]) -> str:
        if executions:
            return self._prompts.observed(executions[0], self._config, turns_left=None)
        parsed = self.parse(reply.reply)
        number = parsed.num_commands if isinstance(parsed, FormatError) else len(parsed)
        return self._prompts.refused(number, cut_off=reply.finish_reason in CUT_OFF)

    def is_done(self, execution: Execution) -> bool:
        """Whatever came of it: a patch that does not apply changes nothing, and that is graded."""
        return True
