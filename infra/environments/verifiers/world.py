"""A world: one episode of an environment, whose model is the agent of a rollout.

Invariants: each request of the environment is shown once and answered once, in the order in which
they came; a request that is asked a second time while it waits is answered with the first; what an
episode fails with is told, and is no score. Of the standard library alone. Used by `serving` and by
the players.
"""

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from infra.environments.verifiers.conversation import NotShown, observation, reply_message


class Refused(Exception):
    """The environment, or a task of it, cannot be played: asking again does not help."""


class EpisodeFailed(Exception):
    """An episode ended with an error, which is no score."""


class Left(Exception):
    """The agent has left the world: its open request gets no reply."""


@dataclass(frozen=True, slots=True)
class EpisodeEnd:
    """End of an episode."""

    reward: float
    rewards: Mapping[str, float] = field(default_factory=dict)
    """Parts of the reward by name, each times its weight."""
    metrics: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Observed:
    observation: str
    outcome: EpisodeEnd | None = None
    """None: the episode has not ended."""


@dataclass(frozen=True, slots=True)
class _Asked:
    key: str
    messages: Sequence[Mapping[str, Any]]
    tools: Sequence[Mapping[str, Any]]
    reply: "asyncio.Future[Mapping[str, Any]]"


class PlayedWorld:
    def __init__(self) -> None:
        self._episode: asyncio.Task[EpisodeEnd] | None = None
        self._asked: asyncio.Queue[_Asked] = asyncio.Queue()
        self._waiting: dict[str, _Asked] = {}
        """Requests without a reply, by what they ask."""
        self._current: _Asked | None = None
        """The request that the agent was shown last."""
        self._before: _Asked | None = None
        self._has_left = False
        self.num_replies = 0
        self.stop: Callable[[], None] = lambda: None
        """Tells the environment that the agent leaves; set by the player."""

    async def begin(self, play: Callable[["PlayedWorld"], Awaitable[EpisodeEnd]]) -> Observed:
        """Raises Refused and EpisodeFailed."""
        self._episode = asyncio.create_task(_played(play, self))
        return await self._next()

    async def step(self, action: str) -> Observed:
        """Answer the request that was shown last. Raises EpisodeFailed."""
        asked = self._current
        if asked is None:
            raise EpisodeFailed("the episode has ended, or has not begun")
        self._current, self._before = None, asked
        self.num_replies += 1
        self._waiting.pop(asked.key, None)
        asked.reply.set_result(reply_message(action, asked.tools, self.num_replies))
        return await self._next()

    async def leave(self) -> EpisodeEnd:
        """End the episode as it stands: the environment scores what was done. Raises
        EpisodeFailed."""
        if self._episode is None:
            raise EpisodeFailed("the episode has not begun")
        self._has_left = True
        self.stop()
        for asked in self._waiting.values():
            asked.reply.set_exception(Left())
        self._waiting.clear()
        return await self._episode

    async def ask(
        self,
        session: str,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]],
    ) -> Mapping[str, Any]:
        """The reply to a request of the environment. Raises Left."""
        if self._has_left:
            raise Left
        key = json.dumps([session, messages, tools], sort_keys=True)
        if key not in self._waiting:
            reply = asyncio.get_running_loop().create_future()
            reply.add_done_callback(lambda done: done.cancelled() or done.exception())
            self._waiting[key] = _Asked(key, messages, tools, reply)
            self._asked.put_nowait(self._waiting[key])
        return await asyncio.shield(self._waiting[key].reply)

    def close(self) -> "asyncio.Task[EpisodeEnd] | None":
        """The episode, which may need a while to end."""
        if self._episode is not None:
            self._episode.cancel()
        return self._episode

    async def _next(self) -> Observed:
        assert self._episode is not None, "a world is asked before it has begun"
        asking = asyncio.ensure_future(self._asked.get())
        await asyncio.wait((asking, self._episode), return_when=asyncio.FIRST_COMPLETED)
        if self._episode.done():
            asking.cancel()
            return Observed("", self._episode.result())
        self._current = asked = asking.result()
        before = self._before
        try:
            text = observation(
                asked.messages,
                asked.tools,
                before.messages if before else (),
                before.tools if before else (),
            )
        except NotShown as error:
            raise EpisodeFailed(f"{error}, and an agent here is shown text alone") from error
        return Observed(text)


async def _played(
    play: Callable[[PlayedWorld], Awaitable[EpisodeEnd]], world: PlayedWorld
) -> EpisodeEnd:
    try:
        return await play(world)
    except (Refused, EpisodeFailed):
        raise
    except SystemExit as error:  # it would end the whole service
        raise EpisodeFailed(f"the environment called for the end of its process: {error}") from None
    except Exception as error:
        raise EpisodeFailed(f"{type(error).__name__}: {error}") from error
