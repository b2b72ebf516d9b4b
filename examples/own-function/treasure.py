"""A game as an HTTP environment with AgentGym's routes: walk through rooms, take the treasure.

POST /create, /reset {"id", "data_idx"}, /step {"id", "action"} and /close {"id"}; GET /observation.
An instance that is not used for `--idle-s` seconds is closed: a player that was killed could
not close its own.
"""

import argparse
import itertools
import random
import time
from dataclasses import dataclass, field

import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

NUM_ROOMS = 8
MAX_STEPS = 12


@dataclass
class Game:
    room: int = 1
    treasure: int = NUM_ROOMS
    num_steps: int = 0
    is_over: bool = False
    used_at: float = field(default_factory=time.monotonic)

    def begin(self, number: int) -> None:
        """The same number, the same game."""
        drawn = random.Random(number).sample(range(1, NUM_ROOMS + 1), 2)
        self.room, self.treasure = drawn
        self.num_steps, self.is_over = 0, False

    def observation(self) -> str:
        where = "left" if self.treasure < self.room else "right"
        if self.treasure == self.room:
            return f"You are in room {self.room}. The treasure is here."
        return f"You are in room {self.room} of {NUM_ROOMS}. The treasure is to the {where}."

    def step(self, action: str) -> tuple[str, float]:
        """The view after the action, and the reward."""
        self.num_steps += 1
        self.is_over = self.num_steps == MAX_STEPS
        moves = {"left": -1, "right": 1}
        if action in moves:
            self.room = min(NUM_ROOMS, max(1, self.room + moves[action]))
            return self.observation(), 0.0
        if action == "take" and self.room == self.treasure:
            self.is_over = True
            return "You have the treasure.", 1.0
        return f"That does nothing. {self.observation()}", 0.0


def make_app(idle_s: float) -> Starlette:
    games: dict[str, Game] = {}
    numbers = itertools.count()

    def of(ident: object) -> Game:
        game = games.get(str(ident))
        if game is None:
            raise HTTPException(404, f"no game {ident}: it was closed, or not used for long")
        game.used_at = time.monotonic()
        return game

    def forget_idle() -> None:
        before = time.monotonic() - idle_s
        for ident in [ident for ident, game in games.items() if game.used_at < before]:
            del games[ident]

    async def hello(request: Request) -> JSONResponse:
        forget_idle()
        return JSONResponse({"environment": "treasure", "games": sorted(games)})

    async def create(request: Request) -> JSONResponse:
        """With an id of the client's own: asked twice, there is one game."""
        forget_idle()
        asked = await request.json() if await request.body() else {}
        ident = str(asked.get("id", next(numbers)))
        games[ident] = Game()
        return JSONResponse({"id": ident})

    async def reset(request: Request) -> JSONResponse:
        asked = await request.json()
        game = of(asked["id"])
        game.begin(int(asked["data_idx"]))
        return JSONResponse({"observation": game.observation(), "reward": 0.0, "done": False})

    async def observation(request: Request) -> JSONResponse:
        return JSONResponse(of(request.query_params["id"]).observation())

    async def step(request: Request) -> JSONResponse:
        asked = await request.json()
        game = of(asked["id"])
        if game.is_over:
            raise HTTPException(400, "the game is over: reset it")
        seen, reward = game.step(str(asked["action"]).strip().lower())
        return JSONResponse({"observation": seen, "reward": reward, "done": game.is_over})

    async def close(request: Request) -> JSONResponse:
        asked = await request.json()
        return JSONResponse({"closed": games.pop(str(asked["id"]), None) is not None})

    return Starlette(
        routes=[
            Route("/", hello),
            Route("/create", create, methods=["POST"]),
            Route("/reset", reset, methods=["POST"]),
            Route("/observation", observation),
            Route("/step", step, methods=["POST"]),
            Route("/close", close, methods=["POST"]),
        ]
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, default=36001)
    parser.add_argument("--idle-s", type=float, default=900.0)
    given = parser.parse_args()
    uvicorn.run(make_app(given.idle_s), host="127.0.0.1", port=given.port, log_level="warning")
