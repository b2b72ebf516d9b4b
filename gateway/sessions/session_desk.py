"""Sessions for agents outside: taken, handed in and given back, on Postgres and Temporal.

Invariants: what is done is stored before the rollout's workflow hears of it, and the agent gets its
answer after that; asked again, the same is told again; the key of a session follows from the
campaign's key and the claim, so that no store has it and a claim that is sent again gets the same.
Any number of gateways. Imported by the routes of sessions and the gateway's process.
"""

import asyncio
import base64
import hashlib
import hmac
import time
from dataclasses import dataclass

from temporalio.client import Client
from temporalio.service import RPCError, RPCStatusCode

from infra.db.cache import FactCache
from infra.db.database import Database
from infra.db.fence import Fenced
from infra.db.programs import campaign_keys, session_ends, session_offers, sessions
from infra.db.programs.program_lives import KEY_PREFIX
from infra.db.programs.session_ends import HandedIn
from infra.db.programs.session_offers import ClaimOver
from infra.db.programs.sessions import SessionRecord
from infra.db.runs import campaigns
from mainspring.agents.choice import outside_agent
from mainspring.config.agents.agent import AgentConfig
from mainspring.config.any_run import AnyRun
from mainspring.config.run import RunConfig
from mainspring.errors import MainspringError, TemporalError
from mainspring.ids import CampaignId, RolloutId, rollout_workflow
from mainspring.programs.profiles.remote import RemoteProfile
from mainspring.programs.session import SessionEnd
from mainspring.protocol.session import SESSION_SIGNAL
from mainspring.status import CampaignStatus, FaultKind
from mainspring.tasks.any_task import AnyTask

TELL_S = 10.0
"""Temporal may be away so long before an agent is told to ask again."""
TELL_WAIT_S = 0.5
NOTHING_OFFERED_S = 5
PAUSED_S = 60
"""When asking again may help."""


class SessionRefused(MainspringError):
    """An agent is told why, by a status of HTTP and a word."""

    fault = FaultKind.POLICY_REFUSED

    def __init__(
        self, status: int, kind: str, message: str, *, remedy: str, retry_after_s: int | None = None
    ) -> None:
        super().__init__(message, remedy=remedy)
        self.status = status
        self.kind = kind
        self.retry_after_s = retry_after_s


@dataclass(frozen=True, slots=True)
class SessionClaim:
    """One wish for a session."""

    key: str
    """Key of the campaign."""
    token: str
    """Tells this claim from others; the same again is the same claim."""
    name: str
    kinds: tuple[str, ...] = ()
    """Kinds of tasks; empty: any."""


@dataclass(frozen=True, slots=True)
class Taken:
    session: SessionRecord
    key: str
    config: RunConfig
    agent: AgentConfig
    profile: RemoteProfile
    task: AnyTask


class SessionDesk:
    def __init__(self, db: Database, client: Client, cache: FactCache) -> None:
        self._db = db
        self._client = client
        self._cache = cache

    async def campaign_of(self, key: str) -> CampaignId | None:
        return await campaign_keys.campaign_of(self._db, key)

    async def session_of(self, ident: str, key: str) -> SessionRecord | None:
        return await sessions.with_key(self._db, ident, key)

    async def profile_of(self, campaign: CampaignId) -> RemoteProfile:
        return RemoteProfile(_agent(await self._cache.config(campaign), campaign)[1])

    async def task_of(self, session: SessionRecord) -> AnyTask:
        return await self._cache.task(session.task)

    async def take(self, campaign: CampaignId, claim: SessionClaim) -> Taken:
        """Raises SessionRefused."""
        record = await campaigns.get(self._db, campaign)
        config, agent = _agent(record.config, campaign)
        _refuse_over(campaign, record.status)
        while True:
            session = await self._next(campaign, claim, agent)
            if session is None:
                raise _nothing_now(campaign, record.status)
            if await self._tell(session.rollout):
                break
            await session_ends.withdraw(self._db, session.id)
        key = session_key(claim, session.id)
        task = await self._cache.task(session.task)
        return Taken(session, key, config, agent, RemoteProfile(agent), task)

    async def hand_in(self, session: SessionRecord, handed_in: HandedIn) -> SessionRecord:
        """The session as it ended: by this, now or before. Raises SessionRefused."""
        try:
            ended = await session_ends.hand_in(self._db, session.id, handed_in)
        except Fenced as error:
            raise over(session) from error
        if ended.ending is not handed_in.ending or ended.result_hash != handed_in.digest:
            raise SessionRefused(
                409,
                "session_ended",
                f"session {session.id} ended before: {_how(ended)}; this result does not count",
                remedy="take another session",
            )
        # A workflow that is gone has found it by itself.
        await self._tell(session.rollout)
        return ended

    async def heard(self, session: SessionRecord) -> None:
        """Its agent lives. Raises SessionRefused."""
        if not session.is_open or not await sessions.heard(self._db, session.id):
            raise over(session)

    async def _next(
        self, campaign: CampaignId, claim: SessionClaim, agent: AgentConfig
    ) -> SessionRecord | None:
        while True:
            try:
                return await session_offers.take(
                    self._db,
                    campaign,
                    claim=claim.token,
                    taken_by=claim.name,
                    timeout_s=agent.rollout_timeout_s,
                    key_of=lambda ident: session_key(claim, ident),
                    kinds=claim.kinds,
                )
            except ClaimOver as error:
                raise SessionRefused(
                    409,
                    "session_ended",
                    error.message,
                    remedy="send another Idempotency-Key to take another session",
                ) from error
            except Fenced:
                continue  # its rollout ended at this moment, and is not found again

    async def _tell(self, rollout: RolloutId) -> bool:
        """False: its workflow does not run."""
        handle = self._client.get_workflow_handle(rollout_workflow(rollout))
        until = time.monotonic() + TELL_S
        while True:
            try:
                await handle.signal(SESSION_SIGNAL)
                return True
            except RPCError as error:
                if error.status is RPCStatusCode.NOT_FOUND:
                    return False
                if time.monotonic() > until:
                    raise TemporalError(
                        f"rollout {rollout}: Temporal takes no signal: {error.message}",
                        remedy="start Temporal, or run `mainspring up`",
                    ) from error
            await asyncio.sleep(TELL_WAIT_S)


def session_key(claim: SessionClaim, ident: str) -> str:
    """256 bits that only who has the campaign's key can make."""
    key_digest = hmac.digest(
        claim.key.encode(), f"session {ident} {claim.token}".encode(), hashlib.sha256
    )
    return KEY_PREFIX + base64.urlsafe_b64encode(key_digest).rstrip(b"=").decode()


def over(session: SessionRecord) -> SessionRefused:
    if session.lives:
        message = f"session {session.id} has ended: {_how(session)}"
    else:
        message = f"session {session.id}: its rollout has ended or was begun anew"
    return SessionRefused(410, "session_over", message, remedy="take another session")


def _how(session: SessionRecord) -> str:
    again = session.ending in (SessionEnd.RELEASED, SessionEnd.SILENT)
    return f"{session.ending}" + (", and its rollout was offered again" if again else "")


def _agent(config: AnyRun, campaign: CampaignId) -> tuple[RunConfig, AgentConfig]:
    """The run with its agent that runs elsewhere. Raises SessionRefused."""
    agent = outside_agent(config) if isinstance(config, RunConfig) else None
    if agent is None or not isinstance(config, RunConfig):
        raise SessionRefused(
            409,
            "no_sessions",
            f"{campaign} offers no sessions: no agent of it runs elsewhere",
            remedy='set agent.kind = "remote" in a new campaign',
        )
    return config, agent


def _refuse_over(campaign: CampaignId, status: CampaignStatus) -> None:
    if status in campaigns.ENDS:
        raise SessionRefused(
            410,
            "campaign_over",
            f"{campaign} offers no more sessions: it is {status}",
            remedy="end this agent, or give it the key of another campaign",
        )


def _nothing_now(campaign: CampaignId, status: CampaignStatus) -> SessionRefused:
    is_paused = status is CampaignStatus.PAUSED
    why = "it is paused" if is_paused else "all that may run now are taken"
    wait_s = PAUSED_S if is_paused else NOTHING_OFFERED_S
    return SessionRefused(
        429,
        "nothing_offered",
        f"{campaign} offers no session now: {why}",
        remedy=f"ask again after {wait_s} s",
        retry_after_s=wait_s,
    )
