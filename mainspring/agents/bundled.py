"""The bash agent for the bundled model, whose context is a few hundred tokens.

It learned the rules in its warm start, so prompts are short and nothing reminds of turns.
"""

from mainspring.agents.bash import BashAgent
from mainspring.agents.protocol import Message
from mainspring.tasks.task import Task

SYSTEM = "Fix the bug. Write a THOUGHT and one bash block."


class BundledAgent(BashAgent):
    def opening(self, task: Task) -> tuple[Message, Message]:
        return {"role": "system", "content": SYSTEM}, {"role": "user", "content": task.issue}

    def turns_left(self, turn: int) -> int | None:
        return None
