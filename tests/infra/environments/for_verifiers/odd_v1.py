"""An environment for verifiers 0.4 that is wrong in the way that its `how` tells."""

import random

import verifiers.v1 as vf

__all__ = ["OddTaskset"]


class OddConfig(vf.TasksetConfig):
    how: str = "echo"
    num_tasks: int = 3


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
        if how == "reward ends the process":
            raise SystemExit("not logged in")
        if how == "reward is NaN":
            return float("nan")
        return float("yes" in (trace.last_reply or ""))

    @vf.metric
    async def num_chars(self, trace) -> float:
        return float(len(trace.last_reply or ""))


class OddTaskset(vf.Taskset[OddTask, OddConfig]):
    INFINITE = True

    def load(self):
        how, number = self.config.how, 0
        if how == "load raises":
            raise FileNotFoundError("questions.jsonl")
        if how == "load ends the process":
            raise SystemExit("not logged in")
        while how == "endless" or number < self.config.num_tasks:
            drawn = f" {random.random()}" if how == "draws" else ""
            image = "ubuntu" if how == "container" else None
            prompt = f"Question {number}{drawn}: yes or no?"
            yield OddTask(OddData(prompt=prompt, how=how, image=image), self.config.task)
            number += 1
