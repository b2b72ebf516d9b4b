"""A coding agent outside: it takes sessions of a gateway, works in folders here, hands in patches.

GATEWAY is the gateway's URL, KEY the campaign's key. It runs the policy's commands on this machine:
start it in a container.
"""

import asyncio
import os
import re
import subprocess
import sys
import tempfile
import uuid
from pathlib import Path
from typing import Any

import httpx

SYSTEM = "Fix the bug. Write a THOUGHT and one bash block."
BLOCK = re.compile(r"^```bash[ \t]*\n(.*?)^```[ \t]*$", re.DOTALL | re.MULTILINE)
COMMIT = "git init -q && git add -A && git -c user.name=a -c user.email=a@b commit -qm base"


async def send(http: httpx.AsyncClient, key: str, url: str, body: dict, claim: str = "") -> Any:
    """Ask until there is an answer: the same again has the same effect."""
    headers = {"authorization": f"Bearer {key}"} | ({"idempotency-key": claim} if claim else {})
    while True:
        try:
            answer = await http.post(url, json=body, headers=headers)
        except httpx.TransportError:
            await asyncio.sleep(1.0)
            continue
        if answer.status_code not in (429, 500, 503):
            return answer
        await asyncio.sleep(float(answer.headers.get("retry-after", 1)))


def run(command: str, folder: str) -> str:
    try:
        done = subprocess.run(["bash", "-c", command], cwd=folder, capture_output=True, timeout=30)
    except subprocess.TimeoutExpired:
        return "<returncode>-1</returncode>\n<output>\nit took longer than 30 s\n</output>"
    text = (done.stdout + done.stderr).decode(errors="replace")
    end = "" if not text or text.endswith("\n") else "\n"
    return f"<returncode>{done.returncode}</returncode>\n<output>\n{text}{end}</output>"


def diff(folder: str) -> str:
    command = ["bash", "-c", "git add -A && git diff --cached --binary"]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True).stdout


async def work(http: httpx.AsyncClient, session: dict[str, Any], folder: str) -> str:
    for path, text in session["task"]["files"].items():
        (Path(folder) / path).parent.mkdir(parents=True, exist_ok=True)
        (Path(folder) / path).write_text(text)
    run(COMMIT, folder)
    issue = session["task"]["issue"]
    messages = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": issue}]
    while True:
        url = f"{session['base_urls']['openai']}/chat/completions"
        answer = await send(http, session["key"], url, {"model": "m", "messages": messages})
        if answer.status_code != 200:
            break  # no more calls, or no room: hand in what there is
        reply = answer.json()["choices"][0]["message"]["content"]
        blocks = BLOCK.findall(reply)
        if len(blocks) != 1 or "COMPLETE_TASK" in blocks[0]:
            break
        shown = await asyncio.to_thread(run, blocks[0].strip(), folder)
        messages += [{"role": "assistant", "content": reply}, {"role": "user", "content": shown}]
    return await asyncio.to_thread(diff, folder)


async def play(gateway: str, key: str) -> None:
    async with httpx.AsyncClient(timeout=None) as http:
        while True:
            body = {"name": "remote-agent"}
            taken = await send(http, key, f"{gateway}/sessions", body, claim=uuid.uuid4().hex)
            if taken.status_code != 200:
                return print(taken.json()["error"]["message"], file=sys.stderr)
            session = taken.json()
            with tempfile.TemporaryDirectory() as folder:
                try:
                    result = {"patch": await work(http, session, folder)}
                except Exception as error:
                    result = {"error": repr(error)}
            await send(http, session["key"], f"{session['session_url']}/finish", result)


async def main() -> None:
    agents = int(sys.argv[1]) if len(sys.argv) > 1 else 8
    await asyncio.gather(*(play(os.environ["GATEWAY"], os.environ["KEY"]) for _ in range(agents)))


if __name__ == "__main__":
    asyncio.run(main())
