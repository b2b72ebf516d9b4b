"""How sessions of agents outside end: with a result, given back, silent, or at a limit.

Invariants: the first end that is stored stands, together with the patch or reward that it brought,
in one transaction; nothing is stored for another epoch or a rollout that has ended. Ended by the
gateway, for the agent, and by the rollout's workflow.
"""

from dataclasses import dataclass
from typing import Any

from sqlalchemy import func, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from infra.db.database import Database
from infra.db.fence import Fenced, refuse_finished, refuse_older
from infra.db.programs.sessions import SessionRecord, record_of, selected
from infra.db.tables.models import RolloutRow
from infra.db.tables.session_rows import OfferedSessionRow
from mainspring.ids import RolloutId, session_id
from mainspring.programs.session import SessionEnd
from mainspring.status import RolloutPhase, Verdict
from mainspring.tasks.criterion import GradeReport

_ROW = OfferedSessionRow


@dataclass(frozen=True, slots=True)
class HandedIn:
    """The result that an agent hands in."""

    ending: SessionEnd
    digest: str
    """The same again has the same."""
    patch: bytes | None = None
    verdict: Verdict | None = None
    """Verdict of a reward, with its report."""
    report: GradeReport | None = None
    note: str | None = None


async def hand_in(db: Database, ident: str, handed_in: HandedIn) -> SessionRecord:
    """Take what an agent hands in; the session as it stands then: ended by this, or by what came
    before. Raises Fenced when its rollout has ended or begun another epoch."""
    async with db.transaction() as connection:
        session = await _locked(connection, ident)
        if session.ending is not None:
            return session
        values: dict[str, Any] = {}
        if handed_in.patch is not None:
            values |= {"patch": handed_in.patch, "patch_note": handed_in.note}
        if handed_in.verdict is not None and handed_in.report is not None:
            values |= {
                "verdict": handed_in.verdict,
                "grade_report": handed_in.report.model_dump(mode="json"),
                "grade_output": "",
            }
        await _write(connection, session, values)
        return await _end(connection, session, handed_in.ending, handed_in.digest, handed_in.note)


async def end(
    db: Database,
    rollout: RolloutId,
    epoch: int,
    life: int,
    ending: SessionEnd,
    note: str = "",
) -> SessionRecord:
    """End a session, and give it as it stands then. At a limit nothing was made, and that is
    what is graded. Raises Fenced."""
    async with db.transaction() as connection:
        session = await _locked(connection, session_id(rollout, epoch, life))
        if session.ending is not None:
            return session
        if ending is SessionEnd.LIMIT:
            await _write(connection, session, {"patch": b"", "patch_note": note})
        return await _end(connection, session, ending, None, note)


async def withdraw(db: Database, ident: str) -> None:
    """Withdraw the session of a rollout whose workflow is gone: nothing can be done in it, and its
    claim takes another one."""
    async with db.statement() as connection:
        await connection.execute(
            update(_ROW)
            .where(_ROW.id == ident, _ROW.ended_at.is_(None))
            .values(
                claim=None,
                ending=SessionEnd.RELEASED,
                ended_at=func.now(),
                note="its rollout does not run any more",
            )
        )


async def _locked(connection: AsyncConnection, ident: str) -> SessionRecord:
    """No other transaction ends it until this one has."""
    await connection.execute(select(_ROW.id).where(_ROW.id == ident).with_for_update())
    row = (await connection.execute(selected(_ROW.id == ident))).one_or_none()
    if row is None:
        raise Fenced(f"session {ident} was never offered")
    return record_of(row)


async def _write(
    connection: AsyncConnection, session: SessionRecord, values: dict[str, Any]
) -> None:
    """Write the end into the rollout, while it lives in the session's epoch. Raises Fenced."""
    updated = await connection.scalar(
        update(RolloutRow)
        .where(
            RolloutRow.id == session.rollout,
            RolloutRow.epoch == session.epoch,
            RolloutRow.phase != RolloutPhase.DONE,
        )
        .values(values or {"epoch": RolloutRow.epoch})
        .returning(RolloutRow.id)
    )
    if updated is None:
        await refuse_older(connection, session.rollout, session.epoch)
        refuse_finished(session.rollout)


async def _end(
    connection: AsyncConnection,
    session: SessionRecord,
    ending: SessionEnd,
    digest: str | None,
    note: str | None,
) -> SessionRecord:
    await connection.execute(
        update(_ROW)
        .where(_ROW.id == session.id)
        .values(ending=ending, result_hash=digest, note=note or None, ended_at=func.now())
    )
    return record_of((await connection.execute(selected(_ROW.id == session.id))).one())
