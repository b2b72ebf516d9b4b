"""Replies to programs: render what was asked, ask the policy, store the reply.

Safe to run twice: the first stored reply stands, and both attempts tell of it. Whether a program
may ask is the workflow's to decide, which calls this once for each request.
"""

from temporalio import activity

from activities.implements import implements
from activities.replies import held_replies
from activities.replies.partial_replies import PartialReplies
from infra.db.cache import Known
from infra.db.database import Database
from infra.db.programs import model_requests
from infra.db.programs.program_calls import ProgramCalls
from infra.db.rollouts.partial_calls import Kept
from infra.policy.program_protocol import ProgramReplies, ProgramReply, ProgramRequest, StoredCall
from infra.policy.protocol import NoEngineAnswered, PromptTooLong, RequestRefused, Versions
from infra.policy.replies.endpoint_errors import EndpointRefusing, StrayRefusal
from infra.policy.serving import Served, ServedCampaigns
from infra.temporal.heartbeat import Beat, heartbeating
from mainspring.errors import EngineBusy
from mainspring.ids import RolloutId
from mainspring.programs.record import RequestState
from mainspring.programs.refusal import Refusal, RefusalKind
from mainspring.programs.reply import Reply
from mainspring.programs.request import ModelRequest
from mainspring.protocol.activities import ANSWER_CALL
from mainspring.protocol.program import AnswerInput, AnswerResult
from mainspring.trajectories.seeds import call_seed
from mainspring.trajectories.turns import Call, PartialCall

SUMMARY_CHARS = 60
"""Of a tool call, for Temporal's UI (its limit is about 200 bytes)."""
_CLOSED = "closed"


class AnswerActivities:
    def __init__(self, db: Database, known: Known, served: ServedCampaigns) -> None:
        self._db = db
        self._known = known
        self._served = served
        self._partials = PartialReplies(db)
        self._calls_of = ProgramCalls(db)

    @implements(ANSWER_CALL)
    async def answer_call(self, ask: AnswerInput) -> AnswerResult:
        async with heartbeating(f"call {ask.number + 1}") as beat:
            about = await self._known.rollout(ask.rollout)
            served = await self._served.of(about.campaign)
            policy = served.program_policy()
            state, request, stored = await model_requests.read(
                self._db, ask.rollout, ask.epoch, ask.number
            )
            if state is RequestState.REFUSED:
                return AnswerResult(state=RequestState.REFUSED)
            if stored is not None:
                return _result(stored, policy.reply_of(stored, request))
            try:
                made = await self._made(ask, served, request, beat)
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
            except NoEngineAnswered as away:
                beat.tell(_CLOSED, away.num_closed)
                raise
            call = await held_replies.stored(
                lambda: model_requests.put_reply(
                    self._db, ask.rollout, ask.epoch, made.call, made.history
                ),
                f"call {ask.number + 1}",
                beat,
            )
            return _result(call, policy.reply_of(call, request))

    async def _made(
        self,
        ask: AnswerInput,
        served: Served,
        request: ModelRequest,
        beat: Beat,
    ) -> ProgramReply:
        about = await self._known.rollout(ask.rollout)
        closed = beat.earlier(_CLOSED)
        begun = None
        if activity.info().attempt > 1:
            begun = await self._partials.get(ask.rollout, ask.epoch, ask.number)

        def keep(partial: PartialCall) -> None:
            self._partials.keep(Kept(ask.rollout, ask.epoch, ask.number, partial))

        wanted = ProgramRequest(
            number=ask.number,
            request=request,
            stored=await self._calls(ask.rollout, ask.epoch),
            rollout=ask.rollout,
            request_id=f"{ask.rollout}.e{ask.epoch}.c{ask.number}.{activity.info().attempt}",
            temperature=about.temperature,
            versions=Versions(ask.min_policy_version, only=served.is_reproducible),
            seed=None if about.seed is None else call_seed(about.seed, ask.number),
            begun=begun,
            keep=keep,
            num_closed=closed if isinstance(closed, int) else 0,
        )
        policy = served.program_policy()
        if not policy.resumes:
            return await self._counted(ask, policy, wanted)
        made = await policy.complete(wanted)
        self._partials.forget(ask.rollout, ask.epoch, ask.number)
        return made

    async def _counted(
        self, ask: AnswerInput, policy: ProgramReplies, wanted: ProgramRequest
    ) -> ProgramReply:
        """Counted before it is sent: what was under way when this process died stays counted, as
        an endpoint may have charged for it."""
        about = (self._db, ask.rollout, ask.epoch, ask.number)
        await model_requests.count_sent(*about, 1)
        try:
            return await policy.complete(wanted)
        except (EngineBusy, EndpointRefusing, StrayRefusal):  # nothing was charged
            await model_requests.count_sent(*about, -1)
            raise

    async def _calls(self, rollout: RolloutId, epoch: int) -> list[StoredCall]:
        """Those that a request can continue."""
        settled = await self._calls_of.read(rollout, epoch)
        return [StoredCall(each.call, each.history) for each in settled]

    async def _refused(self, ask: AnswerInput, refusal: Refusal) -> AnswerResult:
        await model_requests.refuse(
            self._db, ask.rollout, ask.epoch, ask.number, refusal.model_dump(mode="json")
        )
        return AnswerResult(state=RequestState.REFUSED, summary=refusal.kind)


def _result(call: Call, reply: Reply) -> AnswerResult:
    asked = [f"{each.name} {each.arguments}" for each in reply.tool_calls] or [reply.text]
    return AnswerResult(
        state=RequestState.STORED,
        summary=" ".join(" ".join(asked).split())[:SUMMARY_CHARS],
        num_prompt_tokens=call.num_prompt_tokens or call.prompt_start + len(call.prompt_ids),
        num_completion_tokens=call.num_completion_tokens or len(call.completion_ids),
        spent_s=call.latency_s,
    )
