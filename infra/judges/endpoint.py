"""A judge that is an OpenAI-compatible endpoint: one chat completion for each vote.

Asks as evaluations do (`infra.policy.replies.openai`), which classifies what comes in the place of
a reply; here it becomes what may help: asking again, or nothing. Invariant: the endpoint's key
stands in no error.
"""

import os

from pydantic import SecretStr

from infra.judges.judge import JudgeFailing, JudgeRefused
from infra.policy.protocol import MalformedReply
from infra.policy.replies.endpoint_errors import (
    EndpointBusy,
    EndpointFailing,
    EndpointRefusing,
)
from infra.policy.replies.openai import OpenAIClient
from mainspring.config.agents.judges import JudgeConfig
from mainspring.config.policy import PolicyConfig
from mainspring.config.section import MANY_TOKENS
from mainspring.errors import EngineError
from mainspring.ids import RolloutId
from mainspring.status import PolicyApi

_WAYS = "check url, model and api_key_env of its section [judges], then start the campaign again"


class EndpointJudge:
    def __init__(self, config: JudgeConfig) -> None:
        self._config = config
        key = os.environ.get(config.api_key_env, "") if config.api_key_env else ""
        self._lacks_key = bool(config.api_key_env and not key)
        self._client = OpenAIClient(
            PolicyConfig(
                api=PolicyApi.OPENAI,
                model=config.model,
                engines=(config.url,),
                temperature=config.temperature,
                max_context=MANY_TOKENS,
                request_timeout_s=config.request_timeout_s,
            ),
            SecretStr(key) if key else None,
        )

    async def aclose(self) -> None:
        await self._client.aclose()

    async def vote(self, prompt: str, rollout: RolloutId, number: int) -> str:
        if self._lacks_key:
            # Another worker may have it.
            raise JudgeFailing(
                f"the environment variable {self._config.api_key_env}, which holds the key of "
                f"{self._config.url}, is not set in this rollout worker",
                remedy="set it where rollout workers start, and start them again",
            )
        config = self._config
        try:
            reply = await self._client.complete(
                [{"role": "user", "content": prompt}],
                max_tokens=config.max_new_tokens,
                temperature=config.temperature,
                top_p=None if config.top_p == 1 else config.top_p,
                sticky=rollout,
            )
        except EndpointRefusing as refusing:
            raise JudgeRefused(refusing.message, remedy=_WAYS) from refusing
        except (EndpointBusy, EndpointFailing, MalformedReply) as away:
            raise JudgeFailing(
                away.message,
                remedy=f"start it, or {_WAYS}",
                retry_after_s=away.retry_after_s,
            ) from away
        except EngineError as refused:
            raise JudgeRefused(refused.message, remedy=refused.remedy or _WAYS) from refused
        # A model that only thought has voted in its thoughts, or not at all.
        return reply.text or reply.reasoning
