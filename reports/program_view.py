"""View of a program in a rollout: its lives, and what it told the policy before each reply.

Read only. Used by `one_rollout` and the exports of trajectories.
"""

from collections.abc import Collection
from dataclasses import dataclass

from infra.db.database import Database
from infra.db.programs import model_requests, program_lives, sessions
from infra.db.programs.program_lives import ProgramLife
from infra.db.programs.sessions import SessionRecord
from mainspring.ids import RolloutId
from mainspring.programs.record import RequestState
from mainspring.programs.request import ChatMessage, ModelRequest, Role


@dataclass(frozen=True, slots=True)
class LifeView:
    number: int
    """From 1."""
    returncode: int | None
    """None: it runs, or was lost with its sandbox."""
    output: str
    """The end of what it printed."""
    bundle_sha256: str | None = None
    """Digest of the bundle that it ran from; None: of none."""
    taken_by: str | None = None
    """The name of the agent outside that took it; None: it ran in a sandbox."""
    ended_by: str | None = None
    """End of an outside agent's session."""
    note: str = ""
    """Its words about its error."""


@dataclass(frozen=True, slots=True)
class ProgramView:
    kind: str
    lives: list[LifeView]
    num_calls: int
    """Requests that were answered."""
    num_replayed: int
    """Those of them asked again by a later life and answered from the store."""
    num_abandoned: int
    """Those of them not asked by the last life: kept, and never trained."""
    num_refused: int
    """Requests that had no reply, as their prompts were too long or unfit."""
    num_sent_again: int
    """Times that an endpoint was asked again, as the reply under way was lost: it may have been
    charged for. Engines resume replies, and have none."""


@dataclass(frozen=True, slots=True)
class ShownRequest:
    """One request."""

    kind: str
    request: ModelRequest

    def since(self, before: "ShownRequest | None") -> tuple[ChatMessage, ...]:
        """Messages that are new since the request that it continues, without the reply to that."""
        messages = self.request.messages
        if before is None:
            return messages
        new = messages[len(before.request.messages) :]
        return new[1:] if new and new[0].role is Role.ASSISTANT else new


async def read(database: Database, rollout: RolloutId, epoch: int, kind: str) -> ProgramView | None:
    """None for a rollout that no program played."""
    lives = await program_lives.of_rollout(database, rollout, epoch)
    if not lives:
        return None
    outside = {
        session.life: session for session in await sessions.of_rollout(database, rollout, epoch)
    }
    requests = await model_requests.history(database, rollout, epoch)
    stored = [request for request in requests if request.state is RequestState.STORED]
    last = lives[-1].life
    return ProgramView(
        kind=kind,
        lives=[_life(n + 1, life, outside.get(life.life)) for n, life in enumerate(lives)],
        num_calls=len(stored),
        num_replayed=sum(request.life > request.first_life for request in stored),
        num_abandoned=sum(request.life < last for request in stored),
        num_refused=sum(request.state is RequestState.REFUSED for request in requests),
        num_sent_again=sum(max(0, request.num_sent - 1) for request in requests),
    )


def _life(number: int, life: ProgramLife, session: SessionRecord | None) -> LifeView:
    if session is None:
        return LifeView(number, life.returncode, life.output or "", life.bundle_sha256)
    return LifeView(
        number,
        None,
        "",
        taken_by=session.taken_by or "",
        ended_by=session.ending,
        note=session.note or "",
    )


async def requests_of(
    database: Database, rollout: RolloutId, epoch: int, numbers: Collection[int] | None = None
) -> dict[int, ShownRequest]:
    """Each request, or those of `numbers`, by the number of its call; empty where no program
    plays."""
    bodies = await model_requests.bodies(database, rollout, epoch, numbers)
    return {number: ShownRequest(kind.value, request) for number, (kind, request) in bodies.items()}


def as_text(messages: tuple[ChatMessage, ...]) -> str:
    """For people."""
    parts: list[str] = []
    for message in messages:
        calls = [f"{call.name} {call.arguments}" for call in message.tool_calls]
        parts.append("\n".join([f"[{message.role.value}] {message.text}", *calls]))
    return "\n".join(parts)
