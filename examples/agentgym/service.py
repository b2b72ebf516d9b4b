"""A game as an HTTP service in the form of AgentGym's TextCraft: find the key, then the door.

POST /create, /reset {"id", "data_idx"}, /step {"id", "action"} and /close {"id"}; GET /observation.
Each answer has id, observation, done and reward, which is the score so far: 0.5 with the key, 1 at
the door. What is wrong is HTTP 200 with {"error"}, as in AgentGym. The same number and the same
actions give the same answers, in every process. It needs the standard library alone.
"""

import argparse
import itertools
import json
import random
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Protocol
from urllib.parse import parse_qs, urlsplit

NUM_ROOMS = 6
MAX_STEPS = 12


class Game(Protocol):
    def reset(self, number: int) -> str:
        """Begin the task of this number; the first observation."""
        ...

    def step(self, action: str) -> tuple[str, float, bool]:
        """Observation, score so far, and whether the game is over."""
        ...


class Rooms:
    """Rooms in a row: a key lies in one, a door is in another."""

    def reset(self, number: int) -> str:
        self.room, self.key, self.door = random.Random(number).sample(range(1, NUM_ROOMS + 1), 3)
        self.num_steps, self.has_key = 0, False
        return (
            f"There are {NUM_ROOMS} rooms in a row. Take the key, then open the door. You can go "
            f"left, go right, take the key and open the door.\n{self._view()}"
        )

    def step(self, action: str) -> tuple[str, float, bool]:
        self.num_steps += 1
        said = " ".join(action.lower().split()).rstrip(".")
        left = self.num_steps >= MAX_STEPS
        if said in ("go left", "go right"):
            self.room += 1 if said == "go right" else -1
            self.room = min(max(self.room, 1), NUM_ROOMS)
        elif said == "take the key" and self.room == self.key and not self.has_key:
            self.has_key = True
        elif said == "open the door" and self.room == self.door and self.has_key:
            return "The door opens.", 1.0, True
        else:
            return f"That does nothing. {self._view()}", self._score(), left
        return self._view(), self._score(), left

    def _score(self) -> float:
        return 0.5 if self.has_key else 0.0

    def _view(self) -> str:
        wanted, what = (self.door, "door") if self.has_key else (self.key, "key")
        here = f"You are in room {self.room}."
        if wanted == self.room:
            return f"{here} The {what} is here."
        return f"{here} The {what} is to the {'left' if wanted < self.room else 'right'}."


def serve(make_game: type[Game], port: int) -> None:
    games: dict[int, Game] = {}
    numbers = itertools.count()
    lock = threading.Lock()

    def answer(route: str, asked: dict) -> object:
        ident = asked.get("id")
        if route == "/create":
            ident = next(numbers)
            games[ident] = make_game()
            seen = {"observation": games[ident].reset(0), "reward": 0.0, "done": False}
            return {"id": ident, **seen}
        if ident not in games:
            return {"error": f"The id {ident} is not valid."}
        if route == "/reset":
            seen = games[ident].reset(int(asked["data_idx"]))
            return {"id": ident, "observation": seen, "reward": 0.0, "done": False}
        if route == "/step":
            observation, score, done = games[ident].step(str(asked["action"]))
            return {"observation": observation, "reward": score, "done": done}
        if route == "/close":
            del games[ident]
            return True
        return {"error": f"There is no route {route}."}

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        wbufsize = -1  # head and body in one packet: apart, each answer takes 40 ms longer

        def do_GET(self) -> None:
            parts = urlsplit(self.path)
            if parts.path == "/":
                return self.say({"games": len(games)})
            ident = parse_qs(parts.query).get("id", [""])[0]
            self.say({"known": ident.isdigit() and int(ident) in games})

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            with lock:
                self.say(answer(self.path, json.loads(body or b"{}")))

        def say(self, fields: object) -> None:
            content = json.dumps(fields).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, format: str, *args: object) -> None:
            """A line for each request would fill the log."""

    class Server(ThreadingHTTPServer):
        daemon_threads = True
        request_queue_size = 128

    print(f"{make_game.__name__} at http://127.0.0.1:{port}", flush=True)
    Server(("127.0.0.1", port), Handler).serve_forever()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    serve(Rooms, parser.parse_args().port)
