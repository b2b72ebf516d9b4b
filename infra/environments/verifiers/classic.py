"""Environments in the form from before verifiers 0.4: `load_environment`, a data set and a rubric.

Invariants: the training rows have the numbers from 0; an environment's limits on the model's time
do not count, as a rollout has its own; an episode that failed has no score. What verifiers itself
makes of a reward function that raises stays as it is: 0, and a line in the log. Made by `loading`.
"""
# pyright: reportMissingImports=false

import asyncio
import itertools
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Any

import verifiers.legacy as vf
from verifiers.legacy.clients import resolve_client
from verifiers.legacy.types import ClientConfig

from infra.environments.verifiers.world import EpisodeEnd, EpisodeFailed, PlayedWorld, Refused

MODEL_TIME_S = 365 * 24 * 3600.0
KEY = "MAINSPRING_MODEL"
"""Variable of the key of the model here, which asks for none."""
SESSION = "X-Session-ID"
TIMED_OUT = "timeout_reached"


class ClassicPlayer:
    def __init__(self, environment: str, args: Mapping[str, Any], model_url: str) -> None:
        """Raises Refused, and whatever the environment raises."""
        self.name = environment
        self.worlds: dict[str, PlayedWorld] = {}
        self._model_url = model_url
        self._sessions = itertools.count()
        self._env = vf.load_environment(environment, **args)
        if getattr(self._env, "requires_group_rollouts", False):
            raise Refused(
                f"environment {environment!r} has a reward over a group of rollouts; one whose "
                "rollouts are scored one by one can be played"
            )
        if getattr(self._env, "timeout_seconds", None) is not None:
            self._env.timeout_seconds = None

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[None]:
        # A data set may take long to load, longer than a request may. What is wrong is told when a
        # row is asked for.
        with suppress(Refused, EpisodeFailed):
            await asyncio.to_thread(self._row, 0)
        yield

    async def play(self, number: int, world: PlayedWorld) -> EpisodeEnd:
        row = await asyncio.to_thread(self._row, number)
        session = str(next(self._sessions))
        config = ClientConfig(
            client_type="openai_chat_completions",
            api_base_url=self._model_url,
            api_key_var=KEY,
            timeout=MODEL_TIME_S,
            max_retries=0,
            extra_headers={SESSION: session},
        )
        client = resolve_client(config)
        self.worlds[session] = world
        try:
            # What it leaves by is the model's context, which verifiers knows as full.
            end = await self._env.run_rollout(row, client, "mainspring", {})
        finally:
            del self.worlds[session]
            await client.close()
        return self._outcome(end)

    def _row(self, number: int) -> dict[str, Any]:
        """Raises Refused, and EpisodeFailed for a data set that cannot be loaded."""
        try:
            rows = self._env.get_dataset()
        except (Exception, SystemExit) as error:
            words = f"{type(error).__name__}: {error}"
            raise EpisodeFailed(f"the data set cannot be loaded: {words}") from error
        if number >= len(rows):
            raise Refused(f"the data set has {len(rows)} rows, with the numbers from 0")
        return dict(rows[number])

    def _outcome(self, end: Mapping[str, Any]) -> EpisodeEnd:
        """Raises EpisodeFailed."""
        if (error := end.get("error")) is not None:
            told = error.get("error_chain_repr") or error if isinstance(error, Mapping) else error
            raise EpisodeFailed(str(told))
        if end.get("stop_condition") == TIMED_OUT:
            raise EpisodeFailed("the environment ran out of its time")
        metrics = {name: float(value) for name, value in (end.get("metrics") or {}).items()}
        return EpisodeEnd(float(end["reward"]), metrics=metrics)
