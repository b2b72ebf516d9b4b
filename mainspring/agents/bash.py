"""The bash agent: a THOUGHT and one bash block a reply, until the submit command ran."""

from collections.abc import Sequence

from mainspring.agents.bash_block import SUBMIT_SENTINEL, parse_bash_block
from mainspring.agents.bash_prompts import SYSTEM, TASK
from mainspring.agents.conversation import ConversationAgent
from mainspring.agents.prompts import Prompts
from mainspring.agents.protocol import Command, FormatError, Message
from mainspring.config.agents.agent import AgentConfig
from mainspring.errors import ConfigError
from mainspring.programs.reply import Reply
from mainspring.tasks.swe_task import SweTask
from mainspring.tasks.task import Task
from mainspring.trajectories.turns import Call, Execution

CUT_OFF = frozenset({"length", "max_tokens"})
"""Finish reasons of a reply that reached its longest length: SGLang's and OpenAI's, and others'."""


class BashAgent(ConversationAgent):
    texts = Prompts(SYSTEM, TASK)
    """Its own; [agent.prompts] may have others."""

    def __init__(self, config: AgentConfig) -> None:
        self._config = config
        self._prompts = self.texts.changed_by(config.prompts)

    def opening(self, task: Task) -> tuple[Message, Message]:
        if not isinstance(task, SweTask):
            raise ConfigError(
                f"the bash agent fixes issues in repositories, and task {task.id} has none",
                remedy="name an agent of your own in agent.kind: see docs/extending.md",
            )
        return self._prompts.opening(task, self._config)

    def parse(self, reply: Reply) -> tuple[Command, ...] | FormatError:
        parsed = parse_bash_block(reply.text)
        return (parsed,) if isinstance(parsed, Command) else parsed

    def after(self, reply: Call, executions: Sequence[Execution]) -> str:
        action = self.parse(reply.reply)
        if isinstance(action, FormatError):
            cut_off = reply.finish_reason in CUT_OFF
            return self._prompts.refused(action.num_commands, cut_off=cut_off, reason=action.reason)
        if not executions:  # an earlier version read several blocks in it
            return self._prompts.refused(2, cut_off=False)
        return self._prompts.observed(
            executions[0], self._config, turns_left=self.turns_left(reply.number)
        )

    def turns_left(self, turn: int) -> int | None:
        """Turns left that this turn's observation reminds of; None leaves the reminder out."""
        return self._config.step_limit - turn - 1

    def is_done(self, execution: Execution) -> bool:
        return has_submitted(execution)


def has_submitted(execution: Execution) -> bool:
    """The submit command succeeded: the sentinel is the first line that it printed."""
    first = execution.output.lstrip().split(b"\n", 1)[0].strip()
    return execution.returncode == 0 and first == SUBMIT_SENTINEL.encode()
