"""An environment for verifiers 0.4: guess a number within seven turns.

A taskset, its task with a reward and a metric, and an environment that takes the player's turns. It
is what `vf-eval guess-v1` would run, and knows nothing of Mainspring.
"""

import random
import re
from collections.abc import Iterator

import verifiers.v1 as vf

MAX_GUESSES = 7

__all__ = ["GuessEnv", "GuessTaskset"]


class GuessData(vf.TaskData):
    secret: int
    highest: int


class GuessState(vf.State):
    num_guesses: int = 0
    has_won: bool = False


class GuessTask(vf.Task[GuessData, GuessState]):
    @vf.reward(weight=1.0)
    async def guessed(self, trace) -> float:
        return float(trace.state.has_won)

    @vf.metric
    async def num_guesses(self, trace) -> float:
        return float(trace.state.num_guesses)


class GuessConfig(vf.TasksetConfig):
    num_tasks: int = 64
    highest: int = 100


class GuessTaskset(vf.Taskset[GuessTask, GuessConfig]):
    def load(self) -> Iterator[GuessTask]:
        highest = self.config.highest
        for number in range(self.config.num_tasks):
            secret = random.Random(f"guess/{number}").randint(1, highest)
            yield GuessTask(GuessData(secret=secret, highest=highest), self.config.task)


class GuessEnvConfig(vf.EnvConfig):
    player: vf.AgentConfig = vf.AgentConfig()


class GuessEnv(vf.Env[GuessEnvConfig]):
    async def run(self, task, agents) -> None:
        secret = task.data.secret
        says = f"I think of a number from 1 to {task.data.highest}. Which one is it?"
        async with agents.player.interaction(task) as player:
            state = player.trace.state
            while state.num_guesses < MAX_GUESSES and not state.has_won:
                turn = await player.turn(says)
                if turn.terminated:
                    return
                state.num_guesses += 1
                found = re.search(r"\d+", turn.last_reply)
                guess = int(found[0]) if found else None
                if guess is None:
                    says = "That is no number."
                elif guess == secret:
                    state.has_won = True
                else:
                    says = f"It is {'higher' if guess < secret else 'lower'} than {guess}."
