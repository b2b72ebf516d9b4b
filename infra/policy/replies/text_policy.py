"""Replies in text, from an OpenAI-compatible endpoint: for evaluations, never trained on.

The endpoint gets the same turns as messages that an engine gets as tokens. Implements
`protocol.Policy`.
"""

from infra.policy.protocol import ContextFull, ReplyRequest
from infra.policy.replies.endpoint_errors import FirstPromptTooLong, PromptNotTaken
from infra.policy.replies.openai import OpenAIClient
from infra.policy.replies.sampling import MIN_REPLY_TOKENS
from mainspring.config.policy import PolicyConfig
from mainspring.trajectories.turns import Call


class TextPolicy:
    def __init__(self, config: PolicyConfig, client: OpenAIClient) -> None:
        self._config = config
        self._client = client

    async def aclose(self) -> None:
        await self._client.aclose()

    async def complete(self, ask: ReplyRequest) -> Call:
        """See protocol.Policy. ContextFull comes from the endpoint, or from its count of tokens. A
        rollout whose first prompt is refused as too long has played nothing that could be graded:
        FirstPromptTooLong."""
        replies = ask.conversation.replies
        room = self._config.max_context
        if replies:
            room -= replies[-1].num_prompt_tokens or 0
            room -= replies[-1].num_completion_tokens or 0
        if room < MIN_REPLY_TOKENS:
            raise ContextFull(f"{max(0, room)} of {self._config.max_context} tokens are left")
        try:
            reply = await self._client.complete(
                ask.conversation.messages(),
                max_tokens=min(room, self._config.max_new_tokens),
                temperature=ask.temperature,
                sticky=ask.rollout,
                num_taken=len(replies),
            )
        except PromptNotTaken as full:
            if replies:
                raise
            raise FirstPromptTooLong(
                f"rollout {ask.rollout}: its first prompt, with the task's issue, does not fit: "
                f"{full.message}",
                remedy="take a model with a longer context, lower policy.max_new_tokens, or leave "
                "the task out",
            ) from full
        return Call(
            number=ask.number,
            parent=replies[-1].number if replies else None,
            prompt_start=0,
            prompt_ids=(),
            completion_ids=(),
            logprobs=(),
            spans=(),
            text=reply.text,
            finish_reason=reply.finish_reason,
            latency_s=reply.latency_s,
            num_prompt_tokens=reply.num_prompt_tokens,
            num_completion_tokens=reply.num_completion_tokens,
        )
