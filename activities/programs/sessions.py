"""Sessions of agents outside, as their workflow sees them: offered, looked at, ended.

Safe to run twice: an offer is one row, and the first end stands, from wherever it came.
"""

from activities.implements import implements
from infra.db.cache import FactCache
from infra.db.database import Database
from infra.db.programs import model_requests, session_ends, session_offers, sessions
from infra.db.programs.sessions import SessionRecord
from infra.db.rollouts import rollouts
from mainspring.errors import MainspringError
from mainspring.programs.refusal import Refusal, RefusalKind
from mainspring.programs.session import AGAIN, SessionEnd
from mainspring.protocol.activities import (
    END_SESSION,
    OFFER_SESSION,
    READ_SESSION,
    REFUSE_REQUESTS,
)
from mainspring.protocol.rollout import RolloutRef
from mainspring.protocol.session import (
    EndSessionInput,
    EndSessionResult,
    RefuseInput,
    SessionRef,
    SessionState,
)
from mainspring.status import FaultKind

NOTE_CHARS = 300
"""Length of what an agent told, in a payload."""


class AgentSilent(MainspringError):
    """The session is over, and no request of its agent was answered."""

    fault = FaultKind.PROGRAM_SILENT


class SessionActivities:
    def __init__(self, db: Database, cache: FactCache) -> None:
        self._db = db
        self._cache = cache

    @implements(OFFER_SESSION)
    async def offer_session(self, ref: SessionRef) -> SessionState:
        facts = await self._cache.rollout(ref.rollout)
        return _state(
            await session_offers.offer(self._db, ref.rollout, ref.epoch, ref.life, facts.campaign)
        )

    @implements(READ_SESSION)
    async def read_session(self, ref: SessionRef) -> SessionState:
        return _state(await sessions.read(self._db, ref.rollout, ref.epoch, ref.life))

    @implements(END_SESSION)
    async def end_session(self, ask: EndSessionInput) -> EndSessionResult:
        """Raises AgentSilent: a reward for what the policy had no part in would be noise."""
        ended = await session_ends.end(
            self._db, ask.rollout, ask.epoch, ask.life, ask.ending, ask.note
        )
        assert ended.ending is not None
        is_last = ended.ending not in (*AGAIN, SessionEnd.ERROR)
        if is_last and not await model_requests.answered(self._db, ask.rollout, ask.epoch):
            raise AgentSilent(
                f"rollout {ask.rollout}: the agent {ended.taken_by!r} asked nothing of the policy "
                f"in its session {ended.id}",
                remedy="let the agent ask the base URLs that it gets with its session",
            )
        verdict = None
        if ended.ending is SessionEnd.REWARD:
            verdict = (await rollouts.get(self._db, ask.rollout)).verdict
        note = (ended.note or "")[:NOTE_CHARS]
        return EndSessionResult(ending=ended.ending, note=note, verdict=verdict)

    @implements(REFUSE_REQUESTS)
    async def refuse_requests(self, ask: RefuseInput) -> RolloutRef:
        refusal = Refusal(kind=RefusalKind.UNUSABLE, message=ask.reason).model_dump(mode="json")
        for number in ask.numbers:
            await model_requests.refuse(self._db, ask.rollout, ask.epoch, number, refusal)
        return RolloutRef(rollout=ask.rollout, epoch=ask.epoch)


def _state(session: SessionRecord) -> SessionState:
    return SessionState(
        is_taken=session.taken_at is not None,
        taken_by=session.taken_by or "",
        taken_s=session.taken_s or 0.0,
        silent_s=session.silent_s or 0.0,
        ending=session.ending,
    )
