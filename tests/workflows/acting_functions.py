"""Functions that play rollouts of tests: they ask the model with the official client."""

import asyncio
import json
import os
import signal
from pathlib import Path

from openai import AsyncOpenAI

from mainspring.environments.protocol import Judged, Place, WorldLost
from mainspring.status import Verdict
from mainspring.tasks.criterion import GradeReport
from mainspring.tasks.own_task import OwnTask


def client(model_url: str, key: str) -> AsyncOpenAI:
    return AsyncOpenAI(base_url=model_url, api_key=key, timeout=600, max_retries=8)


async def said(model: AsyncOpenAI, messages: list) -> str:
    reply = await model.chat.completions.create(model="any", messages=messages)
    text = reply.choices[0].message.content or ""
    messages.append({"role": "assistant", "content": text})
    return text


async def fix(task, model_url, key, sandbox) -> None:
    """Each reply that begins with `$` is a command."""
    messages = [{"role": "user", "content": task.issue}]
    async with client(model_url, key) as model:
        while (text := await said(model, messages)).startswith("$ "):
            ran = await sandbox.run(text[2:])
            messages.append({"role": "user", "content": f"{ran.returncode}: {ran.output}"})


async def count(task, model_url, key, options) -> float:
    """As many calls as its options tell; then the number that the last reply is."""
    _note(options)
    if "leaves" in options:
        words, null = options["leaves"].split(), asyncio.subprocess.DEVNULL
        await asyncio.create_subprocess_exec(
            *words, stdout=null, stderr=null, start_new_session=True
        )
    messages = [{"role": "user", "content": task.issue}]
    async with client(model_url, key) as model:
        for _ in range(options.get("num_calls", 3)):
            text = await said(model, messages)
            messages.append({"role": "user", "content": "and then?"})
    return float(text)


def _note(options) -> None:
    """That it was called, and in which process."""
    if "noted" in options:
        with Path(options["noted"]).open("a") as file:
            file.write(f"{os.getpid()}\n")


async def never_ends(task, model_url, key, options) -> float:
    _note(options)
    async with client(model_url, key) as model:
        await said(model, [{"role": "user", "content": task.issue}])
    await asyncio.create_subprocess_exec("sleep", "3600", start_new_session=True)
    await asyncio.sleep(3600)
    return 1.0


async def raises_then(task, model_url, key) -> float:
    async with client(model_url, key) as model:
        text = await said(model, [{"role": "user", "content": task.issue}])
    raise KeyError(text)


async def raises_at_once() -> float:
    raise RuntimeError("no such game")


async def dies(task, model_url, key) -> float:
    async with client(model_url, key) as model:
        await said(model, [{"role": "user", "content": task.issue}])
    os.kill(os.getpid(), signal.SIGKILL)
    return 1.0


async def leaves_a_command(task, model_url, key, sandbox) -> None:
    """Two, of which one waits for the other; both would spoil the tree."""
    async with client(model_url, key) as model:
        await said(model, [{"role": "user", "content": task.issue}])
    await sandbox.run("sed -i 's/a - b/a + b/' calc.py")
    slow = asyncio.create_task(sandbox.run("sleep 3; echo broken > calc.py"))
    late = asyncio.create_task(sandbox.run("echo broken > calc.py"))
    await asyncio.wait((slow, late), timeout=0.5)


async def never_asks() -> float:
    return 1.0


async def gives_words(task, model_url, key) -> str:
    async with client(model_url, key) as model:
        return await said(model, [{"role": "user", "content": task.issue}])


async def lost_once(task, model_url, key, life) -> float:
    async with client(model_url, key) as model:
        text = await said(model, [{"role": "user", "content": task.issue}])
    if life == 0:
        raise WorldLost("the game was closed")
    return float(text)


async def without_end(task, model_url, key) -> float:
    """Until its prompt is too long, which it does not catch."""
    messages = [{"role": "user", "content": task.issue}]
    async with client(model_url, key) as model:
        while True:
            await said(model, messages)
            messages.append({"role": "user", "content": "and then? " * 200})


class ByLength:
    """Judges what a function returned, whatever that is."""

    def __init__(self, backends) -> None: ...

    async def grade(self, task: OwnTask, result: bytes, place: Place) -> Judged:
        verdict = Verdict.RESOLVED if json.loads(result)["words"] else Verdict.NOT_RESOLVED
        return Judged(verdict, report=GradeReport(score=len(result) / 100))


async def gives_json(task, model_url, key) -> dict:
    async with client(model_url, key) as model:
        text = await said(model, [{"role": "user", "content": task.issue}])
    return {"words": text.split()}
