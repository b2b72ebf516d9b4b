"""A function that plays rollouts: it drives an HTTP environment, and asks the model what to do."""

import httpx
from openai import AsyncOpenAI

from mainspring.environments.protocol import WorldLost

RULES = "Find the treasure. Answer with one word: left, right, or take when it is in your room."
HOUR_S = 3600.0
"""For one reply: a campaign may be paused, or wait for an engine."""


class Game:
    def __init__(self, service: httpx.AsyncClient, ident: str) -> None:
        self._service = service
        self._ident = ident

    async def ask(self, route: str, **fields: object) -> dict:
        answer = await self._service.post(route, json={"id": self._ident, **fields})
        if answer.status_code == 404:
            raise WorldLost(answer.text)  # the service was restarted: play again from the start
        return answer.raise_for_status().json()


async def solve(task, model_url, key, options, rollout, life) -> float:
    """The reward: what the game gave."""
    service = httpx.AsyncClient(
        base_url=options["service"], transport=httpx.AsyncHTTPTransport(retries=3)
    )
    model = AsyncOpenAI(base_url=model_url, api_key=key, timeout=HOUR_S, max_retries=8)
    async with service, model:
        if life:  # the life before was killed, and could not close its game
            await Game(service, f"{rollout}.{life - 1}").ask("/close")
        game = Game(service, f"{rollout}.{life}")
        await game.ask("/create")
        try:
            return await play(game, model, task)
        finally:
            await game.ask("/close")


async def play(game: Game, model: AsyncOpenAI, task) -> float:
    seen = await game.ask("/reset", data_idx=task.data["data_idx"])
    messages = [
        {"role": "system", "content": RULES},
        {"role": "user", "content": f"{task.issue}\n{seen['observation']}"},
    ]
    reward = 0.0
    while not seen["done"]:
        reply = await model.chat.completions.create(model="any", messages=messages)
        action = reply.choices[0].message.content or ""
        seen = await game.ask("/step", action=action)
        reward += seen["reward"]
        messages += [
            {"role": "assistant", "content": action},
            {"role": "user", "content": seen["observation"]},
        ]
    return reward
