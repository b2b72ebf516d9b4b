"""Replies to agents: ask for the next one and store it as it was served.

Safe to run twice: the first stored reply stands, and both attempts answer from it. The activity of
several turns asks through `ReplyActivities.reply` as well.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from temporalio import activity

from activities.implements import implements
from activities.replies.asking import Asking, Question, limited_cost
from infra.db.cache import FactCache, RolloutFacts
from infra.db.database import Database
from infra.db.rollouts import turns
from infra.db.rollouts.call_cache import CallCache, PlayedCalls
from infra.policy.protocol import ContextFull, MadeReply, RequestRefused
from infra.policy.replies.endpoint_errors import FirstPromptTooLong, PromptNotTaken
from infra.policy.serving import ServedCampaigns
from infra.temporal.faults import SandboxDiverged
from infra.temporal.heartbeat import Beat, heartbeating
from mainspring.agents.asking import NextRequest, next_request
from mainspring.agents.contexts.rewriting import Rewrite, rewrite, with_messages
from mainspring.agents.program import asked_by
from mainspring.agents.protocol import Command, FormatError
from mainspring.config.agents.context import FAIL
from mainspring.errors import MainspringError
from mainspring.programs.matching import StoredCall
from mainspring.programs.request import ChatMessage
from mainspring.protocol.activities import GENERATE
from mainspring.protocol.rollout import GenerateInput, GenerateResult, ReplyKind
from mainspring.trajectories.tree import path_to
from mainspring.trajectories.turns import Call

SUMMARY_CHARS = 60
"""Commands are cut to this for Temporal's UI (its limit is about 200 bytes)."""


@dataclass(frozen=True, slots=True)
class TurnBegin:
    """The beginning of a turn."""

    result: GenerateResult
    commands: tuple[Command, ...] = ()
    """None where the reply has another kind than COMMAND."""


class ReplyActivities:
    def __init__(self, db: Database, cache: FactCache, served: ServedCampaigns) -> None:
        self._db = db
        self._cache = cache
        self._served = served
        self._asking = Asking(db, cache, served)
        self.calls = CallCache(db)

    @implements(GENERATE)
    async def generate(self, ask: GenerateInput) -> GenerateResult:
        async with heartbeating(asks=True) as beat:
            past = await self.calls.played(ask.rollout, ask.epoch)
            # It has the turn to itself: only its own attempts before can have begun the reply.
            reply = await self.reply(ask, past, beat, is_first=False)
            self.calls.keep(ask.rollout, ask.epoch, past)
            return reply.result

    async def reply(
        self,
        ask: GenerateInput,
        past: PlayedCalls,
        beat: Beat,
        *,
        is_first: bool,
        num_closed: int = 0,
    ) -> TurnBegin:
        """The reply of a turn: what `past` has of it, or a new one, which is stored and added.
        `is_first`: an activity before this one may have begun it; `num_closed`: what is known of
        its request already."""
        facts = await self._cache.rollout(ask.rollout)
        agent = facts.agent
        if ask.turn < len(past.calls):
            return _begin(facts, path_to(past.calls, ask.turn))
        if ask.turn > len(past.calls):
            raise SandboxDiverged(
                f"rollout {ask.rollout}: turn {ask.turn + 1} comes next, and the store has "
                f"{len(past.calls)} turns: it was restored from an older backup"
            )
        turn_request = next_request(agent, facts.task, past.record, past.last_request)
        made = await self._rewrite(facts, turn_request)
        asked = turn_request if made is None else turn_request.rewritten(made.request)
        # After a summary the same request is still to be asked.
        past.add_asked(turn_request if made is not None and made.is_summary else asked)
        turn_request = asked
        offers_tools = bool(turn_request.request.tools)

        async def put(made_reply: MadeReply) -> Call:
            call = replace(
                made_reply.call,
                parts=made_reply.reply if offers_tools else made_reply.call.parts,
                rewritten=None if made is None else made.request,
                is_summary=made is not None and made.is_summary,
            )
            return await turns.put_call(self._db, ask.rollout, ask.epoch, call)

        question = Question(
            key=(ask.rollout, ask.epoch, ask.turn),
            name=f"turn {ask.turn + 1}",
            request=turn_request.request,
            stored=turn_request.stored,
            min_version=ask.min_policy_version,
            put=put,
            digests=turn_request.digests,
            apart=offers_tools,
            may_have_begun=is_first,
            num_closed=num_closed,
        )
        try:
            stored = await self._asking.sample_and_store(question, beat)
        except ContextFull as full:
            if not past.calls:
                raise _too_long_at_once(ask, full) from full
            activity.logger.info("%s, turn %d: %s", ask.rollout, ask.turn, full)
            return TurnBegin(GenerateResult(kind=ReplyKind.CONTEXT_FULL))
        except RequestRefused as refused:
            # A program would ask in another way. An agent has no other: what was wrong counts.
            if isinstance(refused.__cause__, MainspringError):
                raise refused.__cause__ from None
            raise
        past.add_call(stored)
        return _begin(facts, path_to(past.calls, stored.number))

    async def _rewrite(self, facts: RolloutFacts, asked: NextRequest) -> Rewrite | None:
        """See `rewriting.rewrite`."""
        if facts.agent_config.context.kind == FAIL:
            return None
        served, limits = await self._served.of(facts.campaign), facts.config.policy
        policy = served.policy_for(facts.agent_config)

        async def known() -> Sequence[StoredCall]:
            return asked.stored

        async def none() -> Sequence[StoredCall]:
            return ()

        async def count(messages: Sequence[ChatMessage]) -> int:
            alone = with_messages(asked.request, messages)
            return await policy.count(alone, none, facts.sampling)

        return await rewrite(
            facts.agent_config.context,
            asked,
            limits.max_context - limits.max_new_tokens,
            lambda: policy.count(asked.request, known, facts.sampling),
            count,
        )


def _too_long_at_once(ask: GenerateInput, full: ContextFull) -> FirstPromptTooLong:
    """Nothing was played that could be graded, and no strategy can shorten it."""
    said = full.__cause__.message if isinstance(full.__cause__, PromptNotTaken) else full.message
    return FirstPromptTooLong(
        f"rollout {ask.rollout}: its first prompt, with the task's issue, does not fit: {said}",
        remedy="raise policy.max_context (the model must have it), lower policy.max_new_tokens, or "
        "leave the task out",
    )


def _begin(facts: RolloutFacts, path: Sequence[Call]) -> TurnBegin:
    """Turn of the last call of `path`; its tokens count with those before it on its branch."""
    call = path[-1]
    actions = () if call.is_summary else asked_by(facts.agent, call.text, call.parts)
    commands = () if isinstance(actions, FormatError) else actions
    in_tokens = bool(call.completion_ids)
    result = GenerateResult(
        kind=_kind(call, commands),
        spent_s=call.latency_s,
        cost=limited_cost(facts, call, path[-2] if len(path) > 1 else None),
        summary=_cut(" ".join(commands[0].command.split())) if commands else "",
        num_commands=len(commands),
        num_prompt_tokens=sum(len(g.prompt_ids) for g in path)
        if in_tokens
        else call.num_prompt_tokens,
        num_completion_tokens=sum(len(g.completion_ids) for g in path)
        if in_tokens
        else call.num_completion_tokens,
    )
    return TurnBegin(result, commands)


def _kind(call: Call, commands: Sequence[Command]) -> ReplyKind:
    if call.is_summary:
        return ReplyKind.SUMMARY
    return ReplyKind.COMMAND if commands else ReplyKind.FORMAT_ERROR


def _cut(text: str) -> str:
    """In the middle: what a command begins with and what it ends with tell the most."""
    if len(text) <= SUMMARY_CHARS:
        return text
    num_chars = SUMMARY_CHARS - 5
    return f"{text[: num_chars - num_chars // 2]} ... {text[len(text) - num_chars // 2 :]}"
