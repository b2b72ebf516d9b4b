"""Payloads of a rollout that an agent outside plays: its session offered, looked at, ended."""

from pydantic import BaseModel

from mainspring.ids import RolloutId
from mainspring.programs.session import SessionEnd
from mainspring.status import Verdict

SESSION_SIGNAL = "session"
"""Signal to the rollout's workflow, without arguments: its session was taken or has ended; look."""


class RemoteLimits(BaseModel):
    """Limits of a rollout that an agent outside plays, beside those of a program's requests."""

    silence_s: float
    """Without a request and without a heartbeat, until the session is offered again."""
    lives: int
    """Sessions in a row that may bring no new call."""


class SessionRef(BaseModel):
    """One life of a rollout that an agent outside plays."""

    rollout: RolloutId
    epoch: int
    life: int


class SessionState(BaseModel):
    """Where a session stands, by the store's clock."""

    is_taken: bool = False
    taken_by: str = ""
    """The name that the agent gave."""
    taken_s: float = 0.0
    """Since it was taken."""
    silent_s: float = 0.0
    """Since its agent was heard of."""
    ending: SessionEnd | None = None


class EndSessionInput(SessionRef):
    ending: SessionEnd
    """Unless it has ended in another way."""
    note: str = ""


class EndSessionResult(BaseModel):
    ending: SessionEnd
    """The ending that stands."""
    note: str = ""
    """The agent's words about its error."""
    verdict: Verdict | None = None
    """Verdict of a reward that was handed in."""


class RefuseInput(BaseModel):
    rollout: RolloutId
    epoch: int
    numbers: list[int]
    """Numbers of requests that a limit forbids."""
    reason: str
