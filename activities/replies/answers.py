"""Replies to programs: read what was asked, ask the policy, store the reply or why there is none.

Safe to run twice: the first stored reply stands, and both attempts tell of it. Whether a program
may ask is the workflow's to decide, which calls this once for each request.
"""

from functools import partial

from activities.implements import implements
from activities.replies.asking import Asking, Question, limited_cost
from infra.db.cache import FactCache
from infra.db.database import Database
from infra.db.programs import model_requests
from infra.db.rollouts import turns
from infra.db.rollouts.call_cache import CallCache
from infra.policy.protocol import MadeReply, PromptTooLong, RequestRefused
from infra.policy.serving import ServedCampaigns
from infra.temporal.heartbeat import heartbeating
from mainspring.programs.record import RequestState
from mainspring.programs.refusal import Refusal, RefusalKind
from mainspring.programs.reply import Reply
from mainspring.protocol.activities import ANSWER_CALL
from mainspring.protocol.program import AnswerInput, AnswerResult
from mainspring.trajectories.turns import Call

SUMMARY_CHARS = 60
"""Length of a tool call for Temporal's UI (its limit is about 200 bytes)."""


class AnswerActivities:
    def __init__(self, db: Database, cache: FactCache, served: ServedCampaigns) -> None:
        self._db = db
        self._cache = cache
        self._served = served
        self._asking = Asking(db, cache, served)
        self.calls = CallCache(db)

    @implements(ANSWER_CALL)
    async def answer_call(self, ask: AnswerInput) -> AnswerResult:
        async with heartbeating(f"call {ask.number + 1}", asks=True) as beat:
            facts = await self._cache.rollout(ask.rollout)
            served = await self._served.of(facts.campaign)
            policy = served.policy_for(facts.agent_config)
            key = (ask.rollout, ask.epoch, ask.number)
            state, request, call = await model_requests.read(self._db, *key)
            if state is RequestState.REFUSED:
                return AnswerResult(state=RequestState.REFUSED)
            if call is None:

                async def put(made_reply: MadeReply) -> Call:
                    return await model_requests.put_reply(
                        self._db, ask.rollout, ask.epoch, made_reply.call, made_reply.history
                    )

                question = Question(
                    key=key,
                    name=f"call {ask.number + 1}",
                    request=request,
                    stored=await self.calls.settled(ask.rollout, ask.epoch),
                    min_version=ask.min_policy_version,
                    put=put,
                    count_sent=partial(model_requests.count_sent, self._db, *key),
                )
                try:
                    call = await self._asking.sample_and_store(question, beat)
                except PromptTooLong as full:
                    refusal = Refusal(
                        kind=RefusalKind.PROMPT_TOO_LONG,
                        num_tokens=full.num_tokens,
                        max_tokens=full.max_tokens,
                    )
                    return await self._refused(ask, refusal)
                except RequestRefused as refused:
                    refusal = Refusal(kind=RefusalKind.UNUSABLE, message=refused.message)
                    return await self._refused(ask, refusal)
            parent = None
            if facts.agent_config.cost_limit is not None and call.parent is not None:
                parent = await turns.get_call(self._db, ask.rollout, ask.epoch, call.parent)
            result = _result(call, policy.reply_of(call, request))
            return result.model_copy(update={"cost": limited_cost(facts, call, parent)})

    async def _refused(self, ask: AnswerInput, refusal: Refusal) -> AnswerResult:
        await model_requests.refuse(
            self._db, ask.rollout, ask.epoch, ask.number, refusal.model_dump(mode="json")
        )
        return AnswerResult(state=RequestState.REFUSED, summary=refusal.kind)


def _result(call: Call, reply: Reply) -> AnswerResult:
    parts = [f"{tool_call.name} {tool_call.arguments}" for tool_call in reply.tool_calls] or [
        reply.text
    ]
    return AnswerResult(
        state=RequestState.STORED,
        summary=" ".join(" ".join(parts).split())[:SUMMARY_CHARS],
        num_prompt_tokens=call.num_prompt_tokens or call.prompt_start + len(call.prompt_ids),
        num_completion_tokens=call.num_completion_tokens or len(call.completion_ids),
        spent_s=call.latency_s,
    )
