"""Replies to programs in tokens: where a request continues what was served, and how the policy
replies. Implements `program_protocol.ProgramReplies`.

Invariant 4: a prompt is the tokens of the branch that the request continues, as they were served,
plus the tokens of what is new in it. A request continues the longest stored history that it begins
with; one that continues none is a branch of its own. What a program changed of its history since
(reasoning left out, arguments written anew) changes no token. Used by the activities of replies.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from infra.policy.model.request_text import RequestText
from infra.policy.program_protocol import (
    ProgramReply,
    ProgramRequest,
    StoredCall,
    continued_call,
)
from infra.policy.protocol import Engines, PromptTooLong, RequestRefused
from infra.policy.replies.sampling import MIN_REPLY_TOKENS, WeightsOf, sample
from mainspring.config.policy import PolicyConfig
from mainspring.programs.matching import SILENT, Noise, chain, continued
from mainspring.programs.parsing.protocol import Parser
from mainspring.programs.parsing.stored import reply_of
from mainspring.programs.reply import Reply
from mainspring.programs.request import ModelRequest
from mainspring.trajectories.tree import path_to
from mainspring.trajectories.turns import Call


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
        """Of the whole prompt."""
        return self.start + len(self.new_ids)

    @property
    def ids(self) -> list[int]:
        served = [i for call in self.path for i in (*call.prompt_ids, *call.completion_ids)]
        return [*served, *self.new_ids]


class ProgramPolicy:
    """See program_protocol.ProgramReplies."""

    resumes = True

    def __init__(
        self,
        config: PolicyConfig,
        engines: Engines,
        text: RequestText,
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

    async def complete(self, ask: ProgramRequest) -> ProgramReply:
        prompt = await self.prompt(ask.number, ask.request, ask.stored)
        room = self._config.max_context - prompt.num_tokens
        if room < MIN_REPLY_TOKENS:
            raise PromptTooLong(prompt.num_tokens, self._config.max_context)
        bounds = [room, self._config.max_new_tokens]
        if ask.request.max_tokens is not None:
            bounds.append(max(1, ask.request.max_tokens))
        completion = await sample(
            self._engines,
            self._weights_of,
            ask,
            prompt.ids,
            max_new_tokens=min(bounds),
            stop_token_ids=self._text.stop_token_ids,
        )
        call = Call(
            number=ask.number,
            parent=prompt.path[-1].number if prompt.path else None,
            prompt_start=prompt.start,
            prompt_ids=prompt.new_ids,
            completion_ids=completion.output_ids,
            logprobs=completion.logprobs,
            spans=completion.spans,
            text=self._text.decode(completion.output_ids),
            finish_reason=completion.finish_reason,
            latency_s=completion.latency_s,
        )
        reply = self.reply_of(call, ask.request)
        return ProgramReply(call, reply, continued(prompt.chain_end, reply))

    def reply_of(self, call: Call, request: ModelRequest) -> Reply:
        return reply_of(call, request.tools, self._parser)

    async def count(
        self, request: ModelRequest, stored: Callable[[], Awaitable[Sequence[StoredCall]]]
    ) -> int:
        """Of the request rendered whole; of one that continues a stored history it may differ from
        what its reply's usage tells, as tokens that were served stand."""
        return (await self.prompt(0, request, ())).num_tokens

    async def prompt(
        self, number: int, request: ModelRequest, stored: Sequence[StoredCall]
    ) -> Prompt:
        """What call `number` is asked with; nothing is sampled. Raises RequestRefused."""
        try:
            return await self._prompt(number, request, stored)
        except RecursionError as error:
            raise RequestRefused(
                "the request's schemas or arguments are nested too deeply",
                remedy="offer tools whose schemas have fewer levels",
            ) from error

    async def _prompt(
        self, number: int, request: ModelRequest, stored: Sequence[StoredCall]
    ) -> Prompt:
        digests = chain(request, self._noise)
        found = continued_call(request, digests, stored, number)
        if found is None:
            new_ids = await asyncio.to_thread(self._text.first_ids, request.messages, request.tools)
            return Prompt((), new_ids, digests[-1])
        place, parent = found
        path = path_to([each.call for each in stored], parent.number)
        last = parent.completion_ids[-1:]
        new_ids = await asyncio.to_thread(
            self._text.next_ids,
            request.messages[place + 1 :],
            closed=bool(last) and last[0] in self._text.stop_token_ids,
        )
        return Prompt(path, new_ids, digests[-1])
