"""The bash agent: a THOUGHT and one bash block a reply, until the submit command ran."""

from collections.abc import Sequence

from mainspring.agents.bash_block import SUBMIT_SENTINEL, parse_bash_block
from mainspring.agents.bash_prompts import SYSTEM, TASK
from mainspring.agents.conversation import ConversationAgent
from mainspring.agents.observation import render_format_error, render_observation
from mainspring.agents.protocol import Command, FormatError, Message
from mainspring.agents.templates import render
from mainspring.config.agent import AgentConfig
from mainspring.errors import ConfigError
from mainspring.programs.reply import Reply
from mainspring.tasks.swe_task import SweTask
from mainspring.tasks.task import Task
from mainspring.trajectories.turns import Call, Execution

CUT_OFF = frozenset({"length", "max_tokens"})
"""Finish reasons of a reply that reached its longest length: SGLang's and OpenAI's, and others'."""


class BashAgent(ConversationAgent):
    def __init__(self, config: AgentConfig) -> None:
        self._config = config

    def opening(self, task: Task) -> tuple[Message, Message]:
        if not isinstance(task, SweTask):
            raise ConfigError(
                f"the bash agent fixes issues in repositories, and task {task.id} has none",
                remedy="name an agent of your own in agent.kind: see docs/extending.md",
            )
        about = render(TASK, issue=task.issue, workdir=task.workdir)
        return {"role": "system", "content": render(SYSTEM)}, {"role": "user", "content": about}

    def parse(self, reply: Reply) -> tuple[Command, ...] | FormatError:
        parsed = parse_bash_block(reply.text)
        return (parsed,) if isinstance(parsed, Command) else parsed

    def after(self, reply: Call, executions: Sequence[Execution]) -> str:
        action = self.parse(reply.reply)
        if isinstance(action, FormatError):
            cut_off = reply.finish_reason in CUT_OFF
            return render_format_error(action.num_commands, cut_off=cut_off, reason=action.reason)
        if not executions:  # an earlier version read several blocks in it
            return render_format_error(2, cut_off=False)
        execution = executions[0]
        return render_observation(
            execution.returncode,
            execution.output,
            timed_out=execution.timed_out,
            timeout_s=self._config.command_timeout_s,
            limit_chars=self._config.observation_chars,
            turns_left=self.turns_left(reply.number),
        )

    def turns_left(self, turn: int) -> int | None:
        """Turns left that this turn's observation reminds of; None leaves the reminder out."""
        return self._config.step_limit - turn - 1

    def is_done(self, execution: Execution) -> bool:
        """The submit command succeeded: the sentinel is the first line that it printed."""
        first = execution.output.lstrip().split(b"\n", 1)[0].strip()
        return execution.returncode == 0 and first == SUBMIT_SENTINEL.encode()
