"""An agent that runs elsewhere, written with httpx and the official client of OpenAI: it takes a
session, works in a folder of its own, and hands in what it made."""

import asyncio
import json
import subprocess
import tempfile
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
from openai import AsyncOpenAI
from program_cluster import ProgramCluster

from infra.db.programs import campaign_keys
from mainspring.ids import CampaignId, GroupId, RolloutId

BASH: Any = {
    "type": "function",
    "function": {
        "name": "bash",
        "description": "Run a command.",
        "parameters": {"type": "object", "properties": {"command": {"type": "string"}}},
    },
}


def remote(**options: Any) -> dict[str, Any]:
    """Fields of [agent]."""
    return {"kind": "remote", "options": options}


class Outside:
    """One that has the campaign's key."""

    def __init__(self, http: httpx.AsyncClient, key: str) -> None:
        self.http = http
        self.key = key

    async def claim(self, token: str | None = None, **body: Any) -> httpx.Response:
        headers = _bearer(self.key) | ({"idempotency-key": token} if token else {})
        return await self.http.post("/sessions", headers=headers, json=body)

    async def take(self, token: str | None = None, **body: Any) -> dict[str, Any]:
        """The next session, as soon as one is offered."""
        while (answer := await self.claim(token, **body)).status_code == 429:
            await asyncio.sleep(0.05)
        assert answer.status_code == 200, answer.text
        return answer.json()

    async def finish(self, session: Mapping[str, Any], **result: Any) -> httpx.Response:
        path = f"/sessions/{session['id']}/finish"
        return await self.http.post(path, headers=_bearer(session["key"]), json=result)

    async def ask(self, session: Mapping[str, Any], method: str, path: str = "") -> httpx.Response:
        headers = _bearer(session["key"])
        return await self.http.request(method, f"/sessions/{session['id']}{path}", headers=headers)


@asynccontextmanager
async def outside(programs: ProgramCluster, campaign: CampaignId) -> AsyncIterator[Outside]:
    key = await campaign_keys.make(programs.workers.db, campaign)
    assert key is not None
    async with httpx.AsyncClient(base_url=programs.url, timeout=60.0) as http:
        yield Outside(http, key)


async def started(
    programs: ProgramCluster, size: int = 1, options: Mapping[str, Any] | None = None, **more: Any
) -> tuple[CampaignId, GroupId, list[RolloutId], list[Any]]:
    """A campaign whose rollouts wait for agents."""
    campaign, group, rollouts = await programs.workers.make_rollouts(
        size, program=remote(**(options or {})), **more
    )
    handles = [await programs.workers.start(each, campaign, group) for each in rollouts]
    return campaign, group, rollouts, handles


def client_of(session: Mapping[str, Any], **more: Any) -> AsyncOpenAI:
    return AsyncOpenAI(base_url=session["base_urls"]["openai"], api_key=session["key"], **more)


async def work(session: Mapping[str, Any], *, calls: int = 50, **client_options: Any) -> str:
    """The patch, once a reply calls no tool or after this number of calls."""
    messages: list[Any] = [{"role": "user", "content": session["instruction"]}]
    with tempfile.TemporaryDirectory() as folder:
        for path, text in session["task"]["files"].items():
            (Path(folder) / path).write_text(text)
        _run(
            "git init -q . && git add -A && git -c user.name=a -c user.email=a commit -qm a", folder
        )
        async with client_of(session, **client_options) as client:
            for _ in range(calls):
                made = await client.chat.completions.create(
                    model=session["model"], messages=messages, tools=[BASH]
                )
                reply = made.choices[0].message
                messages.append(reply.model_dump(exclude_none=True))
                for call in reply.tool_calls or ():
                    assert call.type == "function"
                    command = json.loads(call.function.arguments)["command"]
                    result = _run(command, folder)
                    messages.append({"role": "tool", "tool_call_id": call.id, "content": result})
                if not reply.tool_calls:
                    break
        return _run("git diff", folder)


def _run(command: str, folder: str) -> str:
    done = subprocess.run(["bash", "-c", command], cwd=folder, capture_output=True, check=False)
    return (done.stdout + done.stderr).decode()


def _bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}
