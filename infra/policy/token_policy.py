"""Replies in tokens: what an engine sampled, with log-probs and policy versions.

Invariant 4: a prompt is what was stored for the turns before plus the tokens of the one new
message; nothing sampled is ever tokenised again. Implements `protocol.Policy`.
"""

from collections.abc import Awaitable, Callable
from pathlib import Path

from infra.policy.partial import UnknownWeights
from infra.policy.protocol import (
    ChatText,
    Completion,
    Engines,
    PromptTooLong,
    ReplyRequest,
    SamplingParams,
)
from infra.policy.weight_label import WeightLabel
from mainspring.agents.conversation import Conversation
from mainspring.config.policy import PolicyConfig
from mainspring.trajectories.turns import Call

MIN_REPLY_TOKENS = 8
"""Less room than this for a reply ends the rollout: no command fits."""

WeightsOf = Callable[[int | None], Awaitable[tuple[Path, WeightLabel]]]
"""A policy version of the campaign; the newest for None."""


class TokenPolicy:
    def __init__(
        self, config: PolicyConfig, engines: Engines, tokenizer: ChatText, weights_of: WeightsOf
    ) -> None:
        self._config = config
        self._engines = engines
        self._tokenizer = tokenizer
        self._weights_of = weights_of

    async def aclose(self) -> None:
        await self._engines.aclose()

    async def complete(self, ask: ReplyRequest) -> Call:
        """See protocol.Policy."""
        replies = ask.conversation.replies
        new_ids = self._new_ids(ask.conversation)
        start = replies[-1].end if replies else 0
        room = self._config.max_context - start - len(new_ids)
        if room < MIN_REPLY_TOKENS:
            raise PromptTooLong(start + len(new_ids), self._config.max_context)
        context = [i for reply in replies for i in (*reply.prompt_ids, *reply.completion_ids)]
        completion = await self._sample(ask, context + new_ids, room)
        return Call(
            number=ask.number,
            parent=replies[-1].number if replies else None,
            prompt_start=start,
            prompt_ids=tuple(new_ids),
            completion_ids=completion.output_ids,
            logprobs=completion.logprobs,
            spans=completion.spans,
            text=self._tokenizer.decode(completion.output_ids),
            finish_reason=completion.finish_reason,
            latency_s=completion.latency_s,
        )

    def _new_ids(self, conversation: Conversation) -> list[int]:
        """Tokens of the one message that is new since the last reply."""
        if not conversation.replies:
            system, user = conversation.opening()
            return self._tokenizer.prompt_ids(system["content"], user["content"])
        last = conversation.replies[-1].completion_ids[-1]
        closed = last in self._tokenizer.stop_token_ids
        return self._tokenizer.next_prompt_ids(conversation.newest(), closed=closed)

    async def _sample(self, ask: ReplyRequest, input_ids: list[int], room: int) -> Completion:
        """One completion under a version that was asked for; other engines are given one first."""
        params = SamplingParams(
            max_new_tokens=min(room, self._config.max_new_tokens),
            temperature=ask.temperature,
            stop_token_ids=self._tokenizer.stop_token_ids,
            seed=ask.seed,
        )
        begun, num_closed = ask.begun, ask.num_closed
        fit = ask.versions.of_earlier_tokens
        if begun is not None and not all(fit.admit(span.version) for span in begun.spans):
            begun = None
        while True:
            try:
                return await self._engines.generate(
                    input_ids,
                    params,
                    request_id=ask.request_id,
                    sticky=ask.rollout,
                    versions=ask.versions,
                    begun=begun,
                    keep=ask.keep,
                    num_closed=num_closed,
                )
            except UnknownWeights as stale:
                begun, num_closed = stale.begun or begun, max(num_closed, stale.num_closed)
                weights, label = await self._weights_of(
                    ask.versions.at_least if ask.versions.only else None
                )
                await self._engines.reconcile(stale.engine, weights, label)
