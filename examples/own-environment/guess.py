"""An environment of your own: guess a number, told only whether it is higher or lower."""

import json
import re
from collections.abc import Sequence
from typing import Any

from mainspring.agents.conversation import ConversationAgent
from mainspring.agents.protocol import Command, FormatError, Message
from mainspring.config.agents.agent import AgentConfig
from mainspring.environments.protocol import CommandResult, Finished, Judged, Place
from mainspring.programs.reply import Reply
from mainspring.status import Verdict
from mainspring.tasks.criterion import GradeReport
from mainspring.tasks.own_task import OwnTask
from mainspring.tasks.task import Task
from mainspring.trajectories.turns import Call, Execution

CORRECT = b"correct"
NUMBER = re.compile("[0-9]{1,9}")


class GuessWorld:
    """Depends on its task and its steps alone: steps taken again give the same."""

    def __init__(self, secret: int) -> None:
        self._secret = secret
        self._guesses: list[int] = []

    async def step(self, step_id: str, command: str, timeout_s: float) -> CommandResult:
        guess = int(command)
        self._guesses.append(guess)
        if guess == self._secret:
            return CommandResult(0, CORRECT)
        return CommandResult(1, b"higher" if guess < self._secret else b"lower")

    async def finish(self) -> Finished:
        return Finished(json.dumps(self._guesses).encode())

    async def close(self) -> None:
        pass


class GuessEnvironment:
    def __init__(self, backends: Any) -> None:
        """The node's sandbox backends, for environments that need sandboxes."""

    async def open(self, task: OwnTask, place: Place) -> GuessWorld:
        return GuessWorld(_secret(task))

    async def grade(self, task: OwnTask, result: bytes, place: Place) -> Judged:
        """Sees what the world left, which was stored: never the world itself."""
        guesses = json.loads(result)
        if not guesses or guesses[-1] != _secret(task):
            return Judged(Verdict.NOT_RESOLVED, f"guessed {guesses}", GradeReport(score=0.0))
        return Judged(Verdict.RESOLVED, report=GradeReport(score=1.0 / len(guesses)))


class GuessAgent(ConversationAgent):
    """Each reply is one whole number."""

    def __init__(self, config: AgentConfig) -> None:
        self._config = config

    def opening(self, task: Task) -> tuple[Message, Message]:
        rules = "Guess the number. Every reply is one whole number and nothing else."
        return {"role": "system", "content": rules}, {"role": "user", "content": task.issue}

    def parse(self, reply: Reply) -> tuple[Command, ...] | FormatError:
        guess = reply.text.strip()
        return (Command(guess),) if NUMBER.fullmatch(guess) else FormatError(num_commands=0)

    def after(self, reply: Call, executions: Sequence[Execution]) -> str:
        if not executions:
            return "Your reply was not a whole number."
        return f"The number is {executions[0].output.decode()}."

    def is_done(self, execution: Execution) -> bool:
        return execution.output == CORRECT


def _secret(task: OwnTask) -> int:
    secret = task.data["secret"]
    assert isinstance(secret, int)
    return secret
