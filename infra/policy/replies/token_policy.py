"""Replies in tokens: what an engine sampled, with log-probs and policy versions.

Invariant 4: a prompt is the tokens of the branch that the request continues, as they were served,
plus the tokens of what is new in it. A request continues the longest stored history that it begins
with; one that continues none is a branch of its own. What a program changed of its history since
(reasoning left out, arguments written anew) changes no token. Tokens that an earlier attempt had
are continued, never sampled again, unless a version that is asked for alone did not make them.
Implements `protocol.Policy`.
"""

import asyncio
from bisect import bisect_left
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from infra.policy.engines.partial import UnknownWeights
from infra.policy.protocol import (
    MIN_REPLY_TOKENS,
    WHOLE_DISTRIBUTION,
    ChatText,
    Completion,
    Engines,
    MadeReply,
    PromptTooLong,
    ReplyRequest,
    RequestRefused,
    SamplingParams,
)
from infra.policy.weight_label import WeightLabel
from mainspring.config.policy import PolicyConfig
from mainspring.config.sampling import SamplingConfig
from mainspring.programs.matching import (
    SILENT,
    Noise,
    StoredCall,
    chain,
    continued_call,
)
from mainspring.programs.parsing.protocol import Parser
from mainspring.programs.parsing.stored import reply_of
from mainspring.programs.reply import Reply
from mainspring.programs.request import ChatMessage, ModelRequest, ToolSpec
from mainspring.trajectories.tree import path_to
from mainspring.trajectories.turns import Call, VersionSpan

WeightsOf = Callable[[int | None], Awaitable[tuple[Path, WeightLabel]]]
"""A policy version of the campaign; the newest for None."""
INLINE_CHARS = 20_000
"""Characters of messages without tools: fewer are rendered in a millisecond or two, and a thread
would cost a part of that beside."""


@dataclass(frozen=True, slots=True)
class Prompt:
    path: tuple[Call, ...]
    """The calls that the request continues, from the root of their branch."""
    new_ids: tuple[int, ...]
    chain_end: str
    """The digest of the whole request."""

    @property
    def start(self) -> int:
        return self.path[-1].end if self.path else 0

    @property
    def num_tokens(self) -> int:
        """Tokens of the whole prompt."""
        return self.start + len(self.new_ids)

    @property
    def ids(self) -> list[int]:
        ids: list[int] = []
        for call in self.path:  # each by one copy: a long rollout has tens of thousands
            ids += call.prompt_ids
            ids += call.completion_ids
        ids += self.new_ids
        return ids


class TokenPolicy:
    """See protocol.Policy."""

    resumes = True

    def __init__(
        self,
        config: PolicyConfig,
        engines: Engines,
        text: ChatText,
        parser: Parser,
        weights_of: WeightsOf,
        noise: Noise = SILENT,
    ) -> None:
        self._config = config
        self._engines = engines
        self._text = text
        self._parser = parser
        self._weights_of = weights_of
        self._noise = noise

    async def aclose(self) -> None:
        await self._engines.aclose()

    async def complete(self, ask: ReplyRequest) -> MadeReply:
        text = self._text.under(ask.sampling.variables)
        prompt = await self._prompt(text, ask.request, ask.digests, ask.stored, below=ask.number)
        room = self._config.max_context - prompt.num_tokens
        if room < MIN_REPLY_TOKENS:
            raise PromptTooLong(prompt.num_tokens, self._config.max_context)
        bounds = [room, self._config.max_new_tokens]
        if ask.request.max_tokens is not None:
            bounds.append(max(1, ask.request.max_tokens))
        completion = await _sample(
            self._engines,
            self._weights_of,
            ask,
            prompt.ids,
            home=prompt.path[-1].engine if prompt.path else "",
            max_new_tokens=min(bounds),
            stop_token_ids=text.stop_token_ids,
        )
        completion = _to_the_stop(completion, ask.sampling.stops, text)
        call = Call(
            number=ask.number,
            parent=prompt.path[-1].number if prompt.path else None,
            prompt_start=prompt.start,
            prompt_ids=prompt.new_ids,
            completion_ids=completion.output_ids,
            logprobs=completion.logprobs,
            spans=completion.spans,
            text=text.decode(completion.output_ids, apart=ask.apart),
            finish_reason=completion.finish_reason,
            latency_s=completion.latency_s,
            engine=completion.engine,
        )
        reply = self.reply_of(call, ask.request) if ask.apart else call.reply
        return MadeReply(call, reply, prompt.chain_end)

    def reply_of(self, call: Call, request: ModelRequest) -> Reply:
        return reply_of(call, request.tools, self._parser)

    async def count(
        self,
        request: ModelRequest,
        stored: Callable[[], Awaitable[Sequence[StoredCall]]],
        sampling: SamplingConfig = WHOLE_DISTRIBUTION,
    ) -> int:
        text, calls = self._text.under(sampling.variables), await stored()
        below = max((stored_call.call.number for stored_call in calls), default=-1) + 1
        return (await self._prompt(text, request, None, calls, below=below)).num_tokens

    async def _prompt(
        self,
        text: ChatText,
        request: ModelRequest,
        digests: Sequence[str] | None,
        stored: Sequence[StoredCall],
        *,
        below: int,
    ) -> Prompt:
        """Prompt to ask with; nothing is sampled. Raises RequestRefused."""
        try:
            digests = digests or chain(request, self._noise)
            continued = continued_call(request, digests, stored, below)
            if continued is None:
                first = partial(text.first_ids, request.messages, request.tools)
                return Prompt(
                    (), await _rendered(first, request.messages, request.tools), digests[-1]
                )
            place, parent = continued
            last = parent.completion_ids[-1:]
            closed = bool(last) and last[0] in text.stop_token_ids
            new = request.messages[place + 1 :]
            new_ids = await _rendered(partial(text.next_ids, new, closed=closed), new)
        except RecursionError as error:
            raise RequestRefused(
                "the request's schemas or arguments are nested too deeply",
                remedy="offer tools whose schemas have fewer levels",
            ) from error
        path = path_to([stored_call.call for stored_call in stored], parent.number)
        return Prompt(path, new_ids, digests[-1])


async def _rendered(
    render: Callable[[], Sequence[int]],
    messages: Sequence[ChatMessage],
    tools: Sequence[ToolSpec] = (),
) -> tuple[int, ...]:
    """Tokens that `render` makes, in a thread where that takes long: heartbeats share this loop."""
    is_plain = not tools and not any(message.tool_calls for message in messages)
    if is_plain and sum(len(message.text) for message in messages) < INLINE_CHARS:
        return tuple(render())
    return tuple(await asyncio.to_thread(render))


async def _sample(
    engines: Engines,
    weights_of: WeightsOf,
    ask: ReplyRequest,
    input_ids: list[int],
    *,
    home: str,
    max_new_tokens: int,
    stop_token_ids: tuple[int, ...],
) -> Completion:
    """One completion under a version that was asked for; other engines are given one first."""
    params = SamplingParams(
        max_new_tokens=max_new_tokens,
        temperature=ask.temperature,
        stop_token_ids=stop_token_ids,
        seed=ask.seed,
        sampling=ask.sampling,
    )
    begun, num_closed = ask.begun, ask.num_closed
    fit = ask.versions.of_earlier_tokens
    if begun is not None and not all(fit.admit(span.version) for span in begun.spans):
        begun = None
    while True:
        try:
            return await engines.generate(
                input_ids,
                params,
                request_id=ask.request_id,
                sticky=ask.rollout,
                versions=ask.versions,
                begun=begun,
                keep=ask.keep,
                num_closed=num_closed,
                home=home,
            )
        except UnknownWeights as stale:
            begun, num_closed = stale.begun or begun, max(num_closed, stale.num_closed)
            weights, label = await weights_of(ask.versions.at_least if ask.versions.only else None)
            await engines.reconcile(stale.engine, weights, label)


def _to_the_stop(completion: Completion, stops: Sequence[str], text: ChatText) -> Completion:
    """The tokens up to the one that completed a stop string, as served. An engine looks for the
    strings in the tokens of one request: of a reply that was continued after a cut it sees no
    string that began before."""

    def has_one(number: int) -> bool:
        written = text.written(completion.output_ids[:number])
        return any(stop in written for stop in stops)

    if not stops or not has_one(len(completion.output_ids)):
        return completion
    end = bisect_left(range(len(completion.output_ids)), True, key=has_one)
    spans = (VersionSpan(s.version, s.start, min(s.end, end)) for s in completion.spans)
    return replace(
        completion,
        output_ids=completion.output_ids[:end],
        logprobs=completion.logprobs[:end],
        spans=tuple(span for span in spans if span.start < end),
        finish_reason="stop",
    )
