"""Replies in text, from an OpenAI-compatible endpoint: for evaluations, never trained on.

Invariants: a reply is kept as the endpoint gave it, for a program with tool calls and reasoning
apart, so that no parser and no template stands between the endpoint and the program; its counts are
the endpoint's, and an estimate refuses nothing. Such a reply cannot be resumed: what was under way
when its process died is asked for again. Implements `protocol.Policy`.
"""

from collections.abc import Awaitable, Callable, Sequence

from infra.policy.model.request_messages import call_as_text
from infra.policy.protocol import (
    MIN_REPLY_TOKENS,
    WHOLE_DISTRIBUTION,
    MadeReply,
    PromptTooLong,
    ReplyRequest,
    RequestRefused,
)
from infra.policy.replies.chat_refusal import tells_that_it_passes
from infra.policy.replies.chat_reply import ChatReply
from infra.policy.replies.chat_request import messages_of, tools_of
from infra.policy.replies.endpoint_errors import PromptNotTaken, RequestNotTaken, StrayRefusal
from infra.policy.replies.openai import OpenAIClient
from infra.policy.replies.refusal_counts import token_counts
from mainspring.config.policy import PolicyConfig
from mainspring.config.sampling import SamplingConfig
from mainspring.programs import estimate
from mainspring.programs.matching import (
    SILENT,
    Noise,
    StoredCall,
    chain,
    continued_call,
)
from mainspring.programs.parsing.json_call import encodable
from mainspring.programs.reply import Reply
from mainspring.programs.request import ModelRequest, ToolCall
from mainspring.trajectories.turns import Call


class TextPolicy:
    """See protocol.Policy."""

    resumes = False

    def __init__(self, config: PolicyConfig, client: OpenAIClient, noise: Noise = SILENT) -> None:
        self._config = config
        self._client = client
        self._noise = noise

    async def aclose(self) -> None:
        await self._client.aclose()

    async def complete(self, ask: ReplyRequest) -> MadeReply:
        request, limit = ask.request, self._config.max_context
        digests = ask.digests or chain(request, self._noise)
        continued = continued_call(request, digests, ask.stored, ask.number)
        parent = None if continued is None else continued[1]
        counted = _counted(parent)
        estimated = _prompt_tokens(request, continued)
        room = limit - counted
        if room < MIN_REPLY_TOKENS:
            raise PromptTooLong(max(estimated, counted), limit)
        if limit - estimated >= MIN_REPLY_TOKENS:
            room = limit - estimated
        bounds = [room, self._config.max_new_tokens]
        if request.max_tokens is not None:
            bounds.append(max(1, request.max_tokens))
        try:
            answer = await self._client.complete(
                messages_of(request),
                tools=tools_of(request.tools),
                max_tokens=min(bounds),
                temperature=ask.temperature,
                sticky=ask.rollout,
                seed=ask.seed,
                num_taken=0 if continued is None else 1,
                sampling=ask.sampling,
            )
        except PromptNotTaken as refused:
            num_tokens, told_limit = token_counts(refused.said)
            limit = told_limit or limit
            # A program compacts by as much as it is told to be beyond the limit.
            num_tokens = max(num_tokens or estimated, limit + 1)
            raise PromptTooLong(num_tokens, limit) from refused
        except (RequestNotTaken, StrayRefusal) as refused:
            if isinstance(refused, StrayRefusal) and not _blames(refused):
                raise
            raise RequestRefused(
                f"the model's endpoint refuses the request: {refused.said}", remedy=refused.remedy
            ) from refused
        reply = _reply(answer)
        call = Call(
            number=ask.number,
            parent=None if parent is None else parent.number,
            prompt_start=0,
            prompt_ids=(),
            completion_ids=(),
            logprobs=(),
            spans=(),
            text=_for_people(reply) if ask.apart else reply.text,
            finish_reason=answer.finish_reason,
            latency_s=answer.latency_s,
            num_prompt_tokens=answer.num_prompt_tokens,
            num_completion_tokens=answer.num_completion_tokens,
            parts=reply if ask.apart else None,
        )
        reply = call.reply
        return MadeReply(call, reply, digests[-1])

    def reply_of(self, call: Call, request: ModelRequest) -> Reply:
        assert call.parts is not None, f"call {call.number} is not of an endpoint"
        return call.parts

    async def count(
        self,
        request: ModelRequest,
        stored: Callable[[], Awaitable[Sequence[StoredCall]]],
        sampling: SamplingConfig = WHOLE_DISTRIBUTION,
    ) -> int:
        """Tokens that the endpoint counted of the history that the request continues; of the rest
        an estimate."""
        calls = await stored()
        below = max((stored_call.call.number for stored_call in calls), default=-1) + 1
        continued = continued_call(request, chain(request, self._noise), calls, below)
        return _prompt_tokens(request, continued)


def _blames(refused: StrayRefusal) -> bool:
    """Whether it tells what is wrong with the request: a program makes requests of its own, and is
    told. What names no reason, or one that passes, is asked for again."""
    return refused.of_request and bool(refused.said) and not tells_that_it_passes(refused.said)


def _counted(call: Call | None) -> int:
    """Tokens of a prompt and its reply, as far as the endpoint told them."""
    return 0 if call is None else (call.num_prompt_tokens or 0) + (call.num_completion_tokens or 0)


def _prompt_tokens(request: ModelRequest, continued: tuple[int, Call] | None) -> int:
    if continued is None or not _counted(continued[1]):
        return estimate.tokens_of_request(request)
    place, call = continued
    return _counted(call) + estimate.tokens_of_messages(request.messages[place + 1 :])


def _reply(answer: ChatReply) -> Reply:
    """Without halves of characters, which no client and no store takes."""
    return Reply(
        text=encodable(answer.text),
        reasoning=encodable(answer.reasoning),
        tool_calls=tuple(
            ToolCall(name=encodable(call.name), arguments=encodable(call.arguments))
            for call in answer.tool_calls
        ),
        is_cut=answer.finish_reason == "length",
    )


def _for_people(reply: Reply) -> str:
    """As models write it that are asked in tokens."""
    thought = f"<think>\n{reply.reasoning}\n</think>\n\n" if reply.reasoning else ""
    return thought + "\n".join(filter(None, [reply.text, *map(call_as_text, reply.tool_calls)]))
