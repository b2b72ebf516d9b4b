"""Services in AgentGym's eight forms, and broken ones, over real HTTP.

Each plays the same game: three times "hit" wins; the task's number stands in the observation. What
is answered follows the table of the services' routes, written here a second time.
"""

import json
import math
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from tests.web_server import Answer, serving

HITS = 3


@dataclass
class World:
    number: int = -1
    hits: int = 0

    @property
    def done(self) -> bool:
        return self.hits >= HITS

    @property
    def text(self) -> str:
        return f"task {self.number}: {self.hits} hits"


@dataclass
class FakeService:
    """State of one, and what a test changes about it."""

    family: str
    worlds: dict[Any, World] = field(default_factory=dict)
    closed: list[Any] = field(default_factory=list)
    asked: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    most: int | None = None
    """Worlds that it has; the next create gives the first one again."""
    spoil: Callable[[str, Any], Any] = lambda route, answer: answer
    """What becomes of an answer: another one, an HTTP status as an int below 0, or None for a
    connection that is closed."""
    url: str = ""
    lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def ident(self) -> str:
        named_id = ("textcraft", "babyai", "sciworld", "alfworld")
        return "id" if self.family in named_id else "env_idx"

    def answer(self, route: str, body: dict[str, Any]) -> Any:
        self.asked.append((route, body))
        if route == "/create":
            return self._create(body)
        world = self.worlds.get(body[self.ident])
        if world is None:
            return {"error": f"The id {body[self.ident]} is not valid."}
        return getattr(self, route[1:])(body, world)

    def _create(self, body: dict[str, Any]) -> Any:
        if self.family in ("searchqa", "tools"):
            assert isinstance(body["id"], int)
        number = len(self.worlds) + len(self.closed)
        if self.most is not None:
            number %= self.most
        self.worlds[number] = World()
        if self.family == "textcraft":
            return {"id": number, "observation": "", "done": False, "reward": 0}
        return {"id": number} if self.ident == "id" else number

    def reset(self, body: dict[str, Any], world: World) -> Any:
        name = {
            **{"alfworld": "game", "webshop": "session_id", "sqlgym": "item_id"},
            **{"searchqa": "id", "tools": "id"},
        }.get(self.family, "data_idx")
        if self.family == "alfworld":
            assert body["world_type"] == "Text"
        if body[name] > 1000:
            return {"error": "list index out of range"}
        world.number, world.hits = body[name], 0
        if self.family in ("webshop", "sqlgym"):
            return [world.text, None]
        if self.family in ("searchqa", "tools"):
            return world.text
        if self.family == "alfworld":
            actions = ["hit", "wait"]
            return {"id": body["id"], "observation": world.text, "available_actions": actions}
        told = {"observation": world.text, "reward": 0, "done": False}
        if self.family == "textcraft":
            return {"id": body["id"], **told}
        told = {**told, "score": 0, "deleted": False}
        if self.family == "sciworld":
            return {"task_name": "t", "var_num": 1, "task_description": "Hit thrice.", **told}
        return told

    def step(self, body: dict[str, Any], world: World) -> Any:
        if body["action"] == "hit":
            world.hits += 1
        won = float(world.done)
        if self.family in ("webshop", "sqlgym"):
            return {"state": world.text, "reward": won, "done": world.done, "info": None}
        if self.family == "searchqa":
            return {"observation": world.text, "reward": won, "done": world.done, "info": {}}
        if self.family == "tools":
            share = 1.0 if world.hits else 0.0  # the state of its goal, repeated
            return {"observation": world.text, "reward": share, "done": world.done}
        if self.family == "alfworld":
            actions = [] if world.done else ["hit", "wait"]
            told = {"observation": world.text, "available_actions": actions}
            return {**told, "reward": won, "done": world.done}
        told = {"observation": world.text, "done": world.done}
        if self.family == "textcraft":
            return {**told, "reward": won}
        whole = 99 if self.family == "sciworld" else HITS
        return {**told, "score": whole * world.hits / HITS, "reward": whole / HITS}

    def close(self, body: dict[str, Any], world: World) -> Any:
        if self.family in ("alfworld", "webshop", "sqlgym", "tools"):
            return -404
        del self.worlds[body[self.ident]]
        self.closed.append(body[self.ident])
        return True


@contextmanager
def gym(family: str, **changed: Any) -> Iterator[FakeService]:
    fake = FakeService(family, **changed)

    class Handler(Answer):
        def do_GET(self) -> None:
            self.answer(b'"ok"')

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            with fake.lock:
                given = fake.answer(self.path, body)
            told = fake.spoil(self.path, given)
            if told is None:
                self.close_connection = True
                return self.connection.shutdown(socket.SHUT_RDWR)
            if isinstance(told, bytes):
                return self.answer(told)
            if isinstance(told, int) and not isinstance(told, bool) and told < 0:
                self.send_response(-told)
                self.send_header("Content-Length", "4")
                self.end_headers()
                self.wfile.write(b"oops")
                return
            self.answer(json.dumps(told).encode())

        def handle(self) -> None:
            try:
                super().handle()
            except (OSError, ValueError):
                self.close_connection = True  # the test closed it

    with serving(Handler) as address:
        fake.url = f"http://{address}"
        yield fake


def on_step(change: Callable[[Any], Any]) -> Callable[[str, Any], Any]:
    """Spoil what steps are answered."""
    return lambda route, answer: change(answer) if route == "/step" else answer


def hanging(seconds: float) -> Callable[[Any], Any]:
    def wait(answer: Any) -> Any:
        time.sleep(seconds)
        return answer

    return wait


BROKEN: dict[str, tuple[Callable[[Any], Any], str]] = {
    "nan": (lambda answer: {**answer, "reward": math.nan}, r"reward = nan, which is no reward"),
    "infinite": (lambda answer: {**answer, "reward": math.inf}, r"reward = inf, which is no"),
    "too large": (lambda answer: {**answer, "reward": 10**400}, r"reward = 10+.*which is no"),
    "text": (lambda answer: {**answer, "reward": "1"}, r"reward = 1, expected a number"),
    "truth": (lambda answer: {**answer, "reward": True}, r"reward = True, expected a number"),
    "no reward": (
        lambda answer: {name: answer[name] for name in answer if name != "reward"},
        r"gave no reward; it has observation, done",
    ),
    "no observation": (
        lambda answer: {name: answer[name] for name in answer if name != "observation"},
        r"gave no observation; it has done, reward",
    ),
    "observation no text": (
        lambda answer: {**answer, "observation": ["a"]},
        r"observation = \['a'\], expected text",
    ),
    "done no truth": (lambda answer: {**answer, "done": 1}, r"done = 1, expected true or false"),
    "another id": (
        lambda answer: {**answer, "id": 77},
        r"was asked for world 0 and answered for 77",
    ),
    "no object": (lambda answer: [1, 2], r"gave \[1, 2\], expected an object"),
    "no json": (lambda answer: b"<html>", r"answered no JSON: <html>"),
    "empty": (lambda answer: b"", r"answered no JSON: ''"),
    "redirect": (lambda answer: -302, r"answered HTTP 302: oops"),
    "refused": (lambda answer: -422, r"answered HTTP 422: oops"),
}
"""By name: what becomes of a step's answer, and what is told. Another try would not help."""
LOST: dict[str, tuple[Callable[[Any], Any], str]] = {
    "HTTP 500": (lambda answer: -500, r"answered HTTP 500: oops"),
    "HTTP 503": (lambda answer: -503, r"answered HTTP 503: oops"),
    "closed": (lambda answer: None, r"no answer"),
    "unknown": (
        lambda answer: {"error": "The id 0 is not valid."},
        r"has lost its world 0: The id 0 is not valid\.",
    ),
    "hang": (hanging(1.5), r"did not answer within 0\.5 s"),
}
"""Likewise, where another world may do."""
