"""An agent of your own: each reply is a JSON object with a thought and a command."""

import json
from collections.abc import Sequence

from mainspring.agents.bash import BashAgent
from mainspring.agents.protocol import Command, FormatError, Message
from mainspring.programs.reply import Reply
from mainspring.tasks.task import Task
from mainspring.trajectories.turns import Call, Execution

SYSTEM = """\
You are a software engineer who works on a machine through its shell, one command at a time.
Every reply is one JSON object: {"thought": "why", "command": "what to run"}.
When you are done, your command is: echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"""
WRONG_FORM = 'Your reply was not {"thought": ..., "command": ...}, so nothing was run.'


class JsonAgent(BashAgent):
    """Takes what it does not change from the bash agent: observations and the end."""

    def opening(self, task: Task) -> tuple[Message, Message]:
        about = f"Fix this issue in the repository that your commands run in:\n\n{task.issue}"
        return {"role": "system", "content": SYSTEM}, {"role": "user", "content": about}

    def parse(self, reply: Reply) -> tuple[Command, ...] | FormatError:
        try:
            command = json.loads(reply.text)["command"]
        except (ValueError, KeyError, TypeError):
            return FormatError(num_commands=0)
        return (Command(command),) if isinstance(command, str) else FormatError(num_commands=0)

    def after(self, reply: Call, executions: Sequence[Execution]) -> str:
        if isinstance(self.parse(reply.reply), FormatError):
            return WRONG_FORM
        return super().after(reply, executions)
