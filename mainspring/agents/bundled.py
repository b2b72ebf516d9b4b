"""The bash agent for the bundled model, whose context is a few hundred tokens.

It learned the rules in its warm start, so prompts are short and nothing reminds of turns.
"""

from mainspring.agents.bash import BashAgent
from mainspring.agents.prompts import Prompts
from mainspring.agents.protocol import Message
from mainspring.tasks.task import Task


class BundledAgent(BashAgent):
    texts = Prompts("Fix the bug. Write a THOUGHT and one bash block.", "{{ issue }}")

    def opening(self, task: Task) -> tuple[Message, Message]:
        return self._prompts.opening(task, self._config)

    def turns_left(self, turn: int) -> int | None:
        return None
