"""Answers from the rollout's workflow: the request is stored, told by signal, and waited for.

Invariants: a request is stored before its workflow hears of it, and a reply before its program
does; who asks while the store or Temporal is down waits; a request whose gateway died is asked
again by its client, which finds the row and tells the workflow again. Any number of gateways run at
once: all they share is in Postgres. Implements `protocol.Answers`.
"""

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

from temporalio.client import Client
from temporalio.service import RPCError, RPCStatusCode

from gateway.protocol import ProgramPromptTooLong, Session, SessionOver, UnrenderableRequest
from infra.db.cache import FactCache
from infra.db.database import Database
from infra.db.fence import Fenced
from infra.db.listening import Notices
from infra.db.programs import answer_receipts, model_requests, program_lives, sessions
from infra.db.programs.model_requests import RequestStanding
from infra.db.rollouts.call_cache import CallCache
from infra.policy.serving import ServedCampaigns
from mainspring.config.agents.agent import AgentConfig
from mainspring.errors import DatabaseError, TemporalError
from mainspring.ids import rollout_workflow, session_id
from mainspring.programs.estimate import tokens_of_reply, tokens_of_request
from mainspring.programs.kinds import kind_of, setting_of
from mainspring.programs.matching import StoredCall, key_of
from mainspring.programs.parsing.choice import parser_of
from mainspring.programs.parsing.stored import reply_of
from mainspring.programs.profiles.choice import is_remote, profile_for
from mainspring.programs.record import RequestState
from mainspring.programs.refusal import Refusal, RefusalKind
from mainspring.programs.reply import Answer
from mainspring.programs.request import ModelRequest
from mainspring.protocol.program import ASK_AGAIN_SIGNAL, ASK_SIGNAL
from mainspring.trajectories.turns import Call

T = TypeVar("T")
LOOK_EVERY_S = 2.0
"""For replies whose notice was missed, and for rollouts that ended meanwhile."""
RETRY_S = 1.0
OUTAGE_S = 3600.0
"""The store or Temporal may be down so long before a client is told; most have left by then."""
_GONE = (RPCStatusCode.NOT_FOUND,)


class DurableAnswers:
    def __init__(
        self,
        db: Database,
        client: Client,
        cache: FactCache,
        notices: Notices,
        served: ServedCampaigns,
    ) -> None:
        self._db = db
        self._client = client
        self._cache = cache
        self._notices = notices
        self._served = served
        self._calls = CallCache(db)

    async def session(self, key: str) -> Session | None:
        holder = await self._lasting(lambda: program_lives.holder(self._db, key))
        if holder is None:
            return None
        config = await self._lasting(lambda: self._cache.config(holder.campaign))
        session = Session(
            holder.rollout,
            holder.epoch,
            holder.life,
            config.policy.max_context,
            program_lives.digest(key),
        )
        if is_remote(await self._agent(session)):
            ident = session_id(holder.rollout, holder.epoch, holder.life)
            if not await self._lasting(lambda: sessions.heard(self._db, ident)):
                raise _over(session)
        return session

    async def ask(self, session: Session, request: ModelRequest, *, is_retry: bool) -> Answer:
        agent = await self._agent(session)
        profile = profile_for(agent)
        key = key_of(request, profile.noise)
        kind = kind_of(request, offers_tools=profile.offers_tools)

        async def stored() -> RequestStanding:
            return await model_requests.ask(
                self._db,
                session.rollout,
                session.epoch,
                session.life,
                request,
                key,
                kind=kind,
                setting=setting_of(request),
                is_retry=is_retry,
            )

        try:
            standing = await self._lasting(stored)
        except Fenced as error:
            raise _over(session) from error
        standing = await self._told(session, standing)
        if standing.state is RequestState.REFUSED:
            raise _refusal(Refusal.model_validate(standing.refusal))
        assert standing.call, f"{session.rollout}, call {standing.number}: its reply is missing"
        return _answer(request, standing.call, agent)

    async def delivered(self, session: Session, number: int) -> None:
        await answer_receipts.delivered(
            self._db, session.rollout, session.epoch, number, session.life, session.key_sha256
        )

    async def count_tokens(self, session: Session, request: ModelRequest) -> int:
        """See protocol.Policy.count: it may differ from what the reply's usage tells."""
        facts = await self._lasting(lambda: self._cache.rollout(session.rollout))
        served = await self._lasting(lambda: self._served.of(facts.campaign))

        async def stored() -> list[StoredCall]:
            return await self._calls.settled(session.rollout, session.epoch)

        policy = served.policy_for(facts.agent_config)
        return await policy.count(request, lambda: self._lasting(stored), facts.sampling)

    async def _told(self, session: Session, standing: RequestStanding) -> RequestStanding:
        """Once the request is answered or refused; its workflow is told unless it is, and of each
        time that the same life asks it again."""
        key = f"{session.rollout} {session.epoch} {standing.number}"
        with self._notices.of(key) as notice:
            if standing.is_repeat:
                await self._signal(session, standing.number, ASK_AGAIN_SIGNAL)
            elif standing.state is RequestState.ASKED:
                await self._signal(session, standing.number, ASK_SIGNAL)
            if standing.is_new:  # what answers it was told after its notice is waited for
                await _wait(notice)
            while True:
                notice.clear()
                newer = await self._lasting(
                    lambda: model_requests.look(
                        self._db, session.rollout, session.epoch, standing.number
                    )
                )
                if newer is None:
                    raise _over(session)
                if newer.state is not RequestState.ASKED:
                    return newer
                await _wait(notice)

    async def _signal(self, session: Session, number: int, name: str) -> None:
        handle = self._client.get_workflow_handle(rollout_workflow(session.rollout))
        until = time.monotonic() + OUTAGE_S
        while True:
            try:
                return await handle.signal(name, args=[number, session.epoch])
            except RPCError as error:
                if error.status in _GONE:
                    raise _over(session) from error
                if time.monotonic() > until:
                    raise TemporalError(
                        f"rollout {session.rollout}: Temporal takes no signal: {error.message}",
                        remedy="start Temporal, or run `mainspring up`",
                    ) from error
            await asyncio.sleep(RETRY_S)

    async def _agent(self, session: Session) -> AgentConfig:
        facts = await self._lasting(lambda: self._cache.rollout(session.rollout))
        return facts.agent_config

    async def _lasting(self, read: Callable[[], Awaitable[T]]) -> T:
        """Through an outage of the store. Raises DatabaseError when that lasts."""
        until = time.monotonic() + OUTAGE_S
        while True:
            try:
                return await read()
            except DatabaseError:
                if time.monotonic() > until:
                    raise
            await asyncio.sleep(RETRY_S)


async def _wait(notice: asyncio.Event) -> None:
    """For a notice, or as long as one may be missed."""
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(notice.wait(), LOOK_EVERY_S)


def _answer(request: ModelRequest, call: Call, agent: AgentConfig) -> Answer:
    reply = reply_of(call, request.tools, parser_of(agent.tool_parser))
    if call.parts is None:
        num_prompt_tokens = call.prompt_start + len(call.prompt_ids)
        return Answer(
            number=call.number,
            reply=reply,
            num_prompt_tokens=num_prompt_tokens,
            num_completion_tokens=len(call.completion_ids),
        )
    # Clients compact their history by these: where the endpoint counts nothing, about as many.
    return Answer(
        number=call.number,
        reply=reply,
        num_prompt_tokens=call.num_prompt_tokens or tokens_of_request(request),
        num_completion_tokens=call.num_completion_tokens or tokens_of_reply(reply),
    )


def _over(session: Session) -> SessionOver:
    return SessionOver(f"rollout {session.rollout}: life {session.life} of its program is over")


def _refusal(refusal: Refusal) -> ProgramPromptTooLong | UnrenderableRequest:
    if refusal.kind is RefusalKind.PROMPT_TOO_LONG:
        return ProgramPromptTooLong(refusal.num_tokens, refusal.max_tokens)
    return UnrenderableRequest(refusal.message)
