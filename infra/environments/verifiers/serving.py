"""The service: AgentGym's routes on one side, and on the other the model that environments ask.

Invariants: it listens only after the environment is loaded, so one that cannot be is known by the
end of its process; an error of an episode is HTTP 500 with its words, a task that can never be
played is {"error"}. Imports verifiers, by the players. Run by `start`.
"""

import asyncio
import itertools
import json
import logging
import os
import random
import sys
from typing import Any, NoReturn

from aiohttp import web

from infra.environments.verifiers.conversation import chunks, completion
from infra.environments.verifiers.loading import EnvironmentPlayer, load
from infra.environments.verifiers.world import (
    EpisodeEnd,
    EpisodeFailed,
    Left,
    Observed,
    PlayedWorld,
    Refused,
)

HOST = "127.0.0.1"
MAX_BYTES = 64 << 20
SESSION = "X-Session-ID"
SEED = 0


class Service:
    def __init__(self, player: EnvironmentPlayer) -> None:
        self._player = player
        self._worlds: dict[int, PlayedWorld] = {}
        self._numbers = itertools.count()
        self._ending: set[asyncio.Task[EpisodeEnd]] = set()

    def app(self) -> web.Application:
        app = web.Application(client_max_size=MAX_BYTES)
        app.router.add_get("/", self._here)
        for route in (self.create, self.reset, self.step, self.leave, self.close):
            app.router.add_post(f"/{route.__name__}", _answering(route))
        app.router.add_post("/model/chat/completions", self._model)
        app.router.add_post("/model/{route:.*}", self._no_model)
        return app

    async def create(self, asked: dict[str, Any]) -> Any:
        number = next(self._numbers)
        self._worlds[number] = PlayedWorld()
        return {"id": number}

    async def reset(self, asked: dict[str, Any]) -> Any:
        ident, number = asked["id"], asked["data_idx"]
        if ident not in self._worlds:
            return _unknown(ident)
        self._end(self._worlds[ident])
        world = self._worlds[ident] = PlayedWorld()
        try:
            seen = await world.begin(lambda world: self._player.play(number, world))
        except Refused as refused:
            return {"error": str(refused)}
        return {"id": ident, **_told(seen)}

    async def step(self, asked: dict[str, Any]) -> Any:
        ident = asked["id"]
        if ident not in self._worlds:
            return _unknown(ident)
        return {"id": ident, **_told(await self._worlds[ident].step(asked["action"]))}

    async def leave(self, asked: dict[str, Any]) -> Any:
        ident = asked["id"]
        if ident not in self._worlds:
            return _unknown(ident)
        return {"id": ident, **_told(Observed("", await self._worlds[ident].leave()))}

    async def close(self, asked: dict[str, Any]) -> Any:
        world = self._worlds.pop(asked["id"], None)
        if world is not None:
            self._end(world)
        return world is not None

    def _end(self, world: PlayedWorld) -> None:
        if (episode := world.close()) is not None:
            self._ending.add(episode)
            episode.add_done_callback(self._ended)

    def _ended(self, episode: "asyncio.Task[EpisodeEnd]") -> None:
        self._ending.discard(episode)
        if not episode.cancelled():
            episode.exception()  # its world is closed: nothing asks for it any more

    async def _here(self, request: web.Request) -> web.Response:
        return web.json_response({"worlds": len(self._worlds)})

    async def _model(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        session = request.headers.get(SESSION, "")
        world = self._player.worlds.get(session)
        if world is None:
            return _model_error(404, f"no world of this service has the session {session!r}")
        try:
            message = await world.ask(session, body["messages"], body.get("tools") or ())
        except Left:
            # In these words a model tells that its context is full: then environments score what
            # was done.
            return _model_error(400, "the agent has left; maximum context length is exceeded")
        whole = completion(message, world.num_replies)
        if not body.get("stream"):
            return web.json_response(whole)
        answer = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await answer.prepare(request)
        for event in [*map(json.dumps, chunks(whole)), "[DONE]"]:
            await answer.write(f"data: {event}\n\n".encode())
        return answer

    async def _no_model(self, request: web.Request) -> web.Response:
        route = request.match_info["route"]
        return _model_error(404, f"the model answers chat/completions alone, not {route}")


def serve(port: int, environment: str, args: dict[str, Any]) -> str:
    """Until the process ends. Why it can never start, if it cannot."""
    logging.basicConfig(level=logging.WARNING, stream=sys.stdout)
    random.seed(SEED)
    try:
        player = load(environment, args, f"http://{HOST}:{port}/model")
    except Refused as refused:
        return " ".join(str(refused).split())
    run(port, player)


def run(port: int, player: EnvironmentPlayer) -> NoReturn:
    try:
        asyncio.new_event_loop().run_until_complete(_serve(port, player))
    except SystemExit as error:
        # Of a task that the environment started: nothing catches it, and nothing waits for it.
        print(f"the environment called for the end of its process: {error}", flush=True)
    os._exit(1)


async def _serve(port: int, player: EnvironmentPlayer) -> None:
    async with player.serving():
        runner = web.AppRunner(Service(player).app(), access_log=None)
        await runner.setup()
        await web.TCPSite(runner, HOST, port).start()
        print(f"{player.name} at http://{HOST}:{port}", flush=True)
        await asyncio.Event().wait()


def _answering(route: Any) -> Any:
    async def answer(request: web.Request) -> web.Response:
        try:
            return web.json_response(await route(await request.json()))
        except EpisodeFailed as error:
            return web.Response(text=str(error), status=500)

    return answer


def _told(seen: Observed) -> dict[str, Any]:
    if seen.outcome is None:
        return {"observation": seen.observation, "reward": 0.0, "done": False}
    end = seen.outcome
    parts = {"rewards": dict(end.rewards), "metrics": dict(end.metrics)}
    return {"observation": seen.observation, "reward": end.reward, "done": True, "parts": parts}


def _unknown(ident: object) -> dict[str, str]:
    return {"error": f"The id {ident} is not valid."}


def _model_error(status: int, words: str) -> web.Response:
    body = {"error": {"message": words, "type": "invalid_request_error", "code": status}}
    return web.json_response(body, status=status)
