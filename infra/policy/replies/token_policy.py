"""Replies in tokens: what an engine sampled, with log-probs and policy versions.

Invariant 4: a prompt is what was stored for the turns before plus the tokens of the one new
message; nothing sampled is ever tokenised again. Implements `protocol.Policy`.
"""

from infra.policy.protocol import ChatText, Engines, PromptTooLong, ReplyRequest
from infra.policy.replies.sampling import MIN_REPLY_TOKENS, WeightsOf, sample
from mainspring.agents.conversation import Conversation
from mainspring.config.policy import PolicyConfig
from mainspring.trajectories.turns import Call


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
        completion = await sample(
            self._engines,
            self._weights_of,
            ask,
            context + new_ids,
            max_new_tokens=min(room, self._config.max_new_tokens),
            stop_token_ids=self._tokenizer.stop_token_ids,
        )
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
