"""Environments of `verifiers.v1`: a taskset, its one seat, and the agent of a rollout in it.

Invariants: the seat runs in the subprocess runtime, never in a sandbox of a vendor; what the agent
writes is never run as a command, as the seat's harness is a chat loop or the environment's own; an
environment's limits on the model's time do not count, as a rollout has its own; an episode that
failed or ran out of time has no score. Made by `loading`.
"""
# pyright: reportMissingImports=false

import random
import sys
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Any

import verifiers.v1 as vf
from pydantic import ValidationError

from infra.environments.verifiers.chat_loop import ChatLoop
from infra.environments.verifiers.world import EpisodeEnd, EpisodeFailed, PlayedWorld, Refused

CHAT_LOOP = "mainspring-chat-loop"
CHAT_LOOPS = ("null", CHAT_LOOP)
"""Harnesses that only ask the model: verifiers' own installs packages as it begins."""
SEED = 0
MODEL_TIME_S = 365 * 24 * 3600.0
KEY = "MAINSPRING_MODEL"
"""Variable of the key of the model here, which asks for none."""


class CurrentPlayer:
    def __init__(self, environment: str, args: Mapping[str, Any], model_url: str) -> None:
        """Raises Refused, and whatever the environment raises."""
        self.name = environment
        self.worlds: dict[str, PlayedWorld] = {}
        # A harness is found by the name of its module.
        sys.modules[CHAT_LOOP.replace("-", "_")] = sys.modules[ChatLoop.__module__]
        config_type = vf.env_config_type(environment)
        seats = {
            name: each.default
            for name, each in config_type.model_fields.items()
            if isinstance(each.default, vf.AgentConfig)
        }
        if len(seats) != 1:
            raise Refused(
                f"environment {environment!r} has the seats {', '.join(seats)}; one with a single "
                "seat can be played"
            )
        [(name, given)] = seats.items()
        seat = {
            "runtime": {"type": "subprocess"},
            "timeout": {"rollout": MODEL_TIME_S},
            "retries": {"max_retries": 0},
        } | _harness(environment, given.harness)
        try:
            config = config_type(taskset={**args, "id": environment}, **{name: seat})
        except ValidationError as error:
            raise Refused(f"environment {environment!r}: {_wrong_fields(error)}") from error
        self._env = vf.load_environment(config)
        self._tasks = _Tasks(self._env.taskset)
        client = vf.EvalClientConfig(base_url=model_url, api_key_var=KEY)
        self._context = vf.ModelContext(model="mainspring", client=client)

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[None]:
        # A data set may take long to load, longer than a request may. What is wrong is told when a
        # task is asked for.
        with suppress(Refused, EpisodeFailed):
            self._tasks.at(0)
        async with self._env.serving():
            yield

    async def play(self, number: int, world: PlayedWorld) -> EpisodeEnd:
        task = self._tasks.at(number)
        if task.data.image is not None or type(task).NEEDS_CONTAINER:
            raise Refused(
                f"task {number} of environment {self.name!r} needs a container, and its world is "
                "a process of the node"
            )
        mine: list[Any] = []

        def begun(trace: Any) -> None:
            mine.append(trace)
            self.worlds[trace.id] = world

        def stop() -> None:
            for trace in mine:
                if not trace.is_completed:
                    trace.stop("agent_left")

        world.stop = stop
        try:
            episode = await self._env.run_episode(task, self._context, on_trace=begun)
        finally:
            for trace in mine:
                del self.worlds[trace.id]
        return _outcome(episode)


def _harness(environment: str, pinned: Any) -> dict[str, Any]:
    """Fields of the seat. Raises Refused."""
    own = vf.default_harness_id(environment)
    if pinned is not None and pinned.id not in {own, *CHAT_LOOPS} - {"bash"}:
        raise Refused(
            f"environment {environment!r} asks for the harness {pinned.id!r}, a program that would "
            "run what the policy writes on the node; one of its own, or none, can be played"
        )
    is_own = own != "bash" and (pinned is None or pinned.id == own)
    return {} if is_own else {"harness": {"id": CHAT_LOOP}}


class _Tasks:
    """The taskset's tasks by number, loaded as far as they were asked for."""

    def __init__(self, taskset: Any) -> None:
        self._taskset = taskset
        self._loaded: list[Any] = []
        self._rest: Iterator[Any] | None = None
        self._state = random.Random(SEED).getstate()

    def at(self, number: int) -> Any:
        """Raises Refused, and EpisodeFailed for a taskset that cannot be loaded."""
        if number >= len(self._loaded):
            # What is drawn while tasks are loaded depends on their numbers alone.
            outside = random.getstate()
            random.setstate(self._state)
            try:
                self._load(number)
            finally:
                self._state = random.getstate()
                random.setstate(outside)
        if number >= len(self._loaded):
            raise Refused(f"the taskset has {len(self._loaded)} tasks, with the numbers from 0")
        return self._loaded[number]

    def _load(self, number: int) -> None:
        try:
            if self._rest is None:
                self._rest = iter(self._taskset)
            while number >= len(self._loaded):
                self._loaded.append(next(self._rest))
        except StopIteration:
            return
        except (Exception, SystemExit) as error:
            self._rest = None
            self._loaded.clear()
            random.seed(SEED)
            words = f"{type(error).__name__}: {error}"
            raise EpisodeFailed(f"the taskset cannot be loaded: {words}") from error


def _wrong_fields(error: ValidationError) -> str:
    """Fields of `args`, which verifiers calls the taskset, and what is wrong with each."""
    return "; ".join(
        f"args.{'.'.join(map(str, each['loc'][1:]))}: {each['msg']}"
        if each["loc"][:1] == ("taskset",)
        else f"{'.'.join(map(str, each['loc']))}: {each['msg']}"
        for each in error.errors()
    )


def _outcome(episode: Any) -> EpisodeEnd:
    """Raises EpisodeFailed."""
    traces = episode.traces
    errors = [*episode.errors, *(error for trace in traces for error in trace.errors)]
    if not episode.ok:
        told = [f"{error.type}: {error.message}" for error in errors]
        raise EpisodeFailed("; ".join(told) or "the episode failed, and no error is told")
    if any(each.is_timeout for each in (episode, *traces)):
        stage = ", ".join(str(trace.stop_condition) for trace in traces)
        raise EpisodeFailed(f"the environment ran out of its time: {stage}")
    missing = [name for trace in traces for name, part in trace.rewards.items() if part is None]
    if missing:
        raise EpisodeFailed(f"the environment gave no reward {', '.join(missing)}")
    share = 1.0 / len(traces)
    rewards: dict[str, float] = {}
    metrics: dict[str, float] = {}
    for trace in traces:
        for name, part in trace.rewards.items():
            rewards[name] = rewards.get(name, 0.0) + share * part.value
        for name, value in trace.metrics.items():
            if value is not None:
                metrics[name] = metrics.get(name, 0.0) + share * value
    return EpisodeEnd(share * sum(trace.reward for trace in traces), rewards, metrics)
