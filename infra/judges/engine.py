"""A judge on engines of one's own: each vote is one reply to a chat of one message.

Prompts are rendered by the judge model's own chat template, and engines are asked as the policy's
are. Invariant: a vote is seeded by its prompt and its number, so engines that are reproducible give
the same votes again.
"""

import asyncio
import hashlib
import os
from pathlib import Path

from infra.judges.judge import JudgeFailing, JudgeRefused
from infra.policy.engines.client import EngineClient
from infra.policy.model.tokenizer import ChatTokenizer
from infra.policy.protocol import MalformedReply, SamplingParams
from mainspring.config.agents.judges import JudgeConfig
from mainspring.config.sampling import SamplingConfig
from mainspring.errors import EngineError, ModelError
from mainspring.ids import RolloutId


class EngineJudge:
    def __init__(self, config: JudgeConfig) -> None:
        self._config = config
        key = os.environ.get(config.api_key_env, "") if config.api_key_env else ""
        self._engines = EngineClient(
            config.engines, timeout_s=config.request_timeout_s, api_key=key, any_weights=True
        )
        self._loading: asyncio.Task[ChatTokenizer] | None = None

    async def aclose(self) -> None:
        await self._engines.aclose()

    async def vote(self, prompt: str, rollout: RolloutId, number: int) -> str:
        config, tokenizer = self._config, await self._tokenizer()
        # A judge's prompts are long: rendering one stops the event loop.
        input_ids = await asyncio.to_thread(tokenizer.prompt_ids, "", prompt)
        params = SamplingParams(
            max_new_tokens=config.max_new_tokens,
            temperature=config.temperature,
            stop_token_ids=tokenizer.stop_token_ids,
            seed=_seed(prompt, number),
            sampling=SamplingConfig(top_p=config.top_p),
        )
        try:
            reply = await self._engines.generate(
                input_ids, params, request_id=f"judge-{rollout}-{number}", sticky=rollout
            )
        except EngineError as error:
            if isinstance(error, ConnectionError | MalformedReply):
                raise JudgeFailing(error.message, remedy=error.remedy) from error
            raise JudgeRefused(
                f"a prompt of {len(input_ids)} tokens, with {config.max_new_tokens} new ones: "
                f"{error.message}",
                remedy="if it is too long, lower max_new_tokens or the numbers of characters shown",
            ) from error
        ids = reply.output_ids
        if ids and ids[-1] in tokenizer.stop_token_ids:
            ids = ids[:-1]
        return tokenizer.decode(ids)

    async def _tokenizer(self) -> ChatTokenizer:
        if self._loading is None:
            loading = asyncio.to_thread(ChatTokenizer, Path(self._config.model))
            self._loading = asyncio.create_task(loading)
        try:
            return await asyncio.shield(self._loading)
        except ModelError as missing:
            self._loading = None  # another worker may have it, or it is put there
            raise JudgeFailing(missing.message, remedy=missing.remedy) from missing


def _seed(prompt: str, number: int) -> int:
    digest = hashlib.sha256(f"{number} {prompt}".encode()).digest()
    return int.from_bytes(digest[:4], "big") >> 1
