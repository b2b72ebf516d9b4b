"""An environment for verifiers 0.4 whose tasks are wrong, each in its own way; it has no end."""

import random

import verifiers.v1 as vf

__all__ = ["OddTaskset"]

HOWS = ("echo", "setup raises", "reward raises", "reward is NaN", "container", "reward ends it")


class OddConfig(vf.TasksetConfig):
    fails: str = ""
    highest: int = 10


class OddData(vf.TaskData):
    how: str


class OddTask(vf.Task[OddData]):
    async def setup(self, trace, runtime) -> None:
        if self.data.how == "setup raises":
            raise OSError("no table")

    @vf.reward
    async def said_yes(self, trace) -> float:
        how = self.data.how
        if how == "reward raises":
            raise KeyError("answer")
        if how == "reward ends it":
            raise SystemExit("not logged in")
        if how == "reward is NaN":
            return float("nan")
        return float("yes" in (trace.last_reply or ""))


class OddTaskset(vf.Taskset[OddTask, OddConfig]):
    INFINITE = True

    def load(self):
        if self.config.fails == "raises":
            raise FileNotFoundError("questions.jsonl")
        if self.config.fails == "ends":
            raise SystemExit("not logged in")
        number = 0
        while True:
            how = HOWS[number] if number < len(HOWS) else "draws"
            drawn = f" {random.random()}" if how == "draws" else ""
            image = "ubuntu" if how == "container" else None
            prompt = f"Question {number}{drawn}: yes or no?"
            yield OddTask(OddData(prompt=prompt, how=how, image=image), self.config.task)
            number += 1
