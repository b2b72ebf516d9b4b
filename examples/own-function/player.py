"""A function that plays rollouts: it drives an HTTP environment, and asks the model what to do."""

from contextlib import asynccontextmanager

import httpx
from openai import AsyncOpenAI

from mainspring.environments.protocol import WorldLost

RULES = "Find the treasure. Answer with one word: left, right, or take when it is in your room."
HOUR_S = 3600.0
"""For one reply: a campaign may be paused, or wait for an engine."""


async def solve(task, model_url, key, options, rollout, life) -> float:
    """The reward: what the game gave."""
    transport = httpx.AsyncHTTPTransport(retries=3)
    service = httpx.AsyncClient(base_url=options["service"], transport=transport, timeout=60)
    model = AsyncOpenAI(base_url=model_url, api_key=key, timeout=HOUR_S, max_retries=8)
    async with service, model:
        if life:  # the life before was killed, and could not close its game
            await close(service, f"{rollout}.{life - 1}")
        async with game_of(service, f"{rollout}.{life}") as ident:
            return await play(service, ident, model, task)


@asynccontextmanager
async def game_of(service: httpx.AsyncClient, name: str):
    """A new game, while the block runs. The service may choose another id than `name`."""
    ident = (await ask(service, "/create", id=name))["id"]
    try:
        yield ident
    finally:
        await close(service, ident)


async def play(service: httpx.AsyncClient, ident: object, model: AsyncOpenAI, task) -> float:
    seen = await ask(service, "/reset", id=ident, data_idx=task.data["data_idx"])
    messages = [
        {"role": "system", "content": RULES},
        {"role": "user", "content": f"{task.issue}\n{seen['observation']}"},
    ]
    reward, is_over = 0.0, False
    while not is_over:
        reply = await model.chat.completions.create(model="any", messages=messages)
        action = reply.choices[0].message.content or ""
        seen = await ask(service, "/step", id=ident, action=action)
        reward, is_over = reward + seen["reward"], seen["done"]
        messages += [
            {"role": "assistant", "content": action},
            {"role": "user", "content": seen["observation"]},
        ]
    return reward


async def ask(service: httpx.AsyncClient, route: str, **fields: object) -> dict:
    answer = await service.post(route, json=fields)
    if answer.status_code == 404:
        raise WorldLost(answer.text)  # the service was restarted: play again from the start
    return answer.raise_for_status().json()


async def close(service: httpx.AsyncClient, ident: object) -> None:
    """Close it, or leave it to the service, which closes what is not used."""
    try:
        await service.post("/close", json={"id": ident})
    except httpx.HTTPError as error:
        print("the game is left to the service:", error)
