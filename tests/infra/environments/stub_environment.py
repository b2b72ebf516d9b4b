"""An environment without verifiers, for the service's own part: it asks its model over HTTP.

`stub_environment.py --port N`. The task's number tells what it does.
"""

import argparse
import asyncio
import json
import os
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp

sys.path.insert(0, str(Path(__file__).parents[3]))

from infra.environments.verifiers.serving import run
from infra.environments.verifiers.world import EpisodeEnd, EpisodeFailed, PlayedWorld, Refused

PLAYS, FAILS, DIES, HANGS, NAN, IMAGE, NO_SCORE, STREAMS, ASKS_TWICE = range(9)
TOOL = {"type": "function", "function": {"name": "count", "parameters": {"type": "object"}}}


class StubPlayer:
    name = "stub"

    def __init__(self, port: int) -> None:
        self.worlds: dict[str, PlayedWorld] = {}
        self._url = f"http://127.0.0.1:{port}/model"

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[None]:
        yield

    async def play(self, number: int, world: PlayedWorld) -> EpisodeEnd:
        if number > ASKS_TWICE:
            raise Refused(f"there are {ASKS_TWICE + 1} tasks")
        session = str(id(world))
        self.worlds[session] = world
        try:
            async with aiohttp.ClientSession(headers={"X-Session-ID": session}) as http:
                return await self._play(number, http)
        finally:
            del self.worlds[session]

    async def _play(self, number: int, http: aiohttp.ClientSession) -> EpisodeEnd:
        messages: list[Any] = [
            {"role": "system", "content": f"Task {number}."},
            {"role": "user", "content": [{"type": "text", "text": "Count to three."}]},
        ]
        if number == IMAGE:
            messages[1]["content"] = [{"type": "image_url", "image_url": {"url": "data:"}}]
        said: list[str] = []
        while len(said) < 3:
            asking = self._ask(http, messages, number == STREAMS)
            if number == ASKS_TWICE:
                again = self._ask(http, messages, False)
                both = await asyncio.gather(asking, again)
                assert both[0] == both[1]
                message = both[0]
            else:
                message = await asking
            if message is None:
                break
            messages.append(message)
            if message.get("tool_calls"):
                [call] = message["tool_calls"]
                said.append(call["function"]["arguments"])
                messages.append({"role": "tool", "tool_call_id": call["id"], "content": "Counted."})
            else:
                said.append(message["content"])
                messages.append({"role": "user", "content": f"You said {said[-1]}."})
            if said[-1] == "act":
                self._act(number)
        if number == NO_SCORE:
            raise EpisodeFailed("TaskError: no answer is known")
        metrics = {"num_said": float(len(said))}
        return EpisodeEnd(len(said) / 4, {"counted": len(said) / 4}, metrics)

    def _act(self, number: int) -> None:
        if number == FAILS:
            raise OSError("the table is gone")
        if number == DIES:
            print("out of tables", flush=True)
            os._exit(3)
        if number == HANGS:
            time.sleep(60)
        if number == NAN:
            raise _Nan

    async def _ask(self, http: aiohttp.ClientSession, messages: list[Any], stream: bool) -> Any:
        body = {"messages": messages, "tools": [TOOL], "stream": stream}
        async with http.post(f"{self._url}/chat/completions", json=body) as answer:
            if answer.status == 400:
                return None
            assert answer.status == 200, await answer.text()
            if not stream:
                return (await answer.json())["choices"][0]["message"]
            lines = (await answer.text()).split("\n\n")
            assert lines[-2:] == ["data: [DONE]", ""]
            first, second, _ = (json.loads(line.removeprefix("data: ")) for line in lines[:-2])
            assert second["choices"][0]["finish_reason"] in ("stop", "tool_calls")
            return first["choices"][0]["delta"]


class _Nan(Exception):
    """The episode's score is none."""


class WithNan(StubPlayer):
    async def play(self, number: int, world: PlayedWorld) -> EpisodeEnd:
        try:
            return await super().play(number, world)
        except _Nan:
            return EpisodeEnd(float("nan"))


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    port = parser.parse_args().port
    run(port, WithNan(port))
