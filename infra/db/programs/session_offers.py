"""Sessions offered to agents outside, once for each life of a rollout, and taken once.

Invariants: of any number that ask at once, one gets a session; the same claim gets the same session
again, with its key anew; nothing is offered or taken for another epoch or a rollout that has ended.
Offered by the rollout's workflow, taken by the gateway.
"""

from collections.abc import Callable, Sequence
from typing import Any

from sqlalchemy import Select, func, select, text, update
from sqlalchemy.ext.asyncio import AsyncConnection

from infra.db.database import Database
from infra.db.fence import Fenced, fenced_insert, refuse_finished, refuse_older
from infra.db.programs import program_lives
from infra.db.programs.sessions import SessionRecord, is_free, record_of, selected
from infra.db.tables.models import RolloutRow, TaskRow
from infra.db.tables.session_rows import OfferedSessionRow
from infra.db.tasks import tasks
from mainspring.ids import CampaignId, RolloutId, session_id
from mainspring.status import RolloutPhase

_ROW = OfferedSessionRow
_OFFER = fenced_insert(_ROW, ["id", "campaign_id", "rollout_id", "epoch", "life"], returning=["id"])
_ONE_CLAIM = text("SELECT pg_advisory_xact_lock(hashtextextended('claim of ' || :claim, 0))")


class ClaimOver(Fenced):
    """The session that this claim took is over; another claim takes another session."""


async def offer(
    db: Database, rollout: RolloutId, epoch: int, life: int, campaign: CampaignId
) -> SessionRecord:
    """The session as it stands, offered now or before. Raises Fenced."""
    ident = session_id(rollout, epoch, life)
    values = {
        "id": ident,
        "campaign_id": campaign,
        "rollout_id": rollout,
        "epoch": epoch,
        "life": life,
    }
    async with db.transaction() as connection:
        # Two offers at once would both share the row, and each wait for the other to write it.
        await connection.execute(
            select(RolloutRow.id).where(RolloutRow.id == rollout).with_for_update()
        )
        if await connection.scalar(_OFFER, values) is not None:
            await _set_phase(connection, rollout, epoch, RolloutPhase.OPENING)
        row = (await connection.execute(selected(_ROW.id == ident))).one_or_none()
        if row is None:
            await refuse_older(connection, rollout, epoch)
            refuse_finished(rollout)
        return record_of(row)


async def take(
    db: Database,
    campaign: CampaignId,
    *,
    claim: str,
    taken_by: str,
    timeout_s: float,
    key_of: Callable[[str], str],
    kinds: Sequence[str] = (),
) -> SessionRecord | None:
    """The session of this claim, taken now or before, whose key is now `key_of(its id)`. None:
    nothing is offered. Raises ClaimOver, and Fenced when its rollout ends at this moment."""
    async with db.transaction() as connection:
        await connection.execute(_ONE_CLAIM, {"claim": f"{campaign} {claim}"})
        before = selected(_ROW.campaign_id == campaign, _ROW.claim == claim)
        row = (await connection.execute(before)).one_or_none()
        if row is None:
            row = (await connection.execute(_oldest(campaign, kinds))).one_or_none()
            if row is None:
                return None
            await _take(connection, row.id, claim, taken_by, timeout_s)
            row = (await connection.execute(selected(_ROW.id == row.id))).one()
        elif not record_of(row).is_open:
            raise ClaimOver(f"session {row.id}, which this claim took, is over")
        session = record_of(row)
        await program_lives.begin_with(
            connection, session.rollout, session.epoch, session.life, key_of(session.id)
        )
        await _set_phase(connection, session.rollout, session.epoch, RolloutPhase.RUNNING)
        return session


def _oldest(campaign: CampaignId, kinds: Sequence[str]) -> Select[Any]:
    """Locked until the transaction ends; those that others take are passed over."""
    statement = (
        select(_ROW.id)
        .join(RolloutRow, RolloutRow.id == _ROW.rollout_id)
        .where(*is_free(campaign))
        .order_by(_ROW.offered_at, _ROW.id)
        .limit(1)
        .with_for_update(of=_ROW, skip_locked=True)
    )
    if kinds:
        statement = statement.join(TaskRow, TaskRow.id == RolloutRow.task_id).where(
            tasks.KIND.in_(list(kinds))
        )
    return statement


async def _take(
    connection: AsyncConnection, ident: str, claim: str, taken_by: str, timeout_s: float
) -> None:
    await connection.execute(
        update(_ROW)
        .where(_ROW.id == ident)
        .values(
            claim=claim,
            taken_by=taken_by,
            taken_at=func.now(),
            seen_at=func.now(),
            deadline=func.now() + func.make_interval(0, 0, 0, 0, 0, 0, timeout_s),
        )
    )


async def _set_phase(
    connection: AsyncConnection, rollout: RolloutId, epoch: int, phase: RolloutPhase
) -> None:
    await connection.execute(
        update(RolloutRow)
        .where(
            RolloutRow.id == rollout,
            RolloutRow.epoch == epoch,
            RolloutRow.phase != RolloutPhase.DONE,
        )
        .values(phase=phase)
    )
