"""How much a store holds, and how many of a campaign's rollouts have ended as they should.

Owns the figures of a load test: they are read while it runs, so each is one
cheap query.
"""

from dataclasses import dataclass
from datetime import datetime
from itertools import accumulate

from sqlalchemy import and_, func, select, text
from sqlalchemy.ext.asyncio import AsyncConnection

from infra.db.tables.models import CallRow, PartialCallRow, RolloutRow
from infra.db.tables.rollout_ends import DONE
from mainspring.ids import CampaignId, RolloutId
from mainspring.status import StopReason, Verdict


@dataclass(frozen=True, slots=True)
class Ends:
    """Counts of one campaign's rollouts that ended."""

    num_ended: int
    num_as_expected: int
    """Those of them with the stop reason, the verdict and the number of turns that were asked."""
    last_end: datetime | None


async def ends(
    connection: AsyncConnection,
    campaign: CampaignId,
    stop_reason: StopReason,
    verdict: Verdict,
    num_turns: int,
) -> Ends:
    """How many rollouts ended, and how many of them as expected."""
    expected = and_(
        DONE,
        RolloutRow.stop_reason == stop_reason,
        RolloutRow.verdict == verdict,
        RolloutRow.num_turns == num_turns,
    )
    row = await connection.execute(
        select(
            func.count().filter(DONE),
            func.count().filter(expected),
            func.max(RolloutRow.finished_at),
        ).where(RolloutRow.campaign_id == campaign)
    )
    return Ends(*row.one())


async def num_calls(connection: AsyncConnection, campaign: CampaignId) -> int:
    """Number of replies stored of its rollouts, also of those that play."""
    statement = (
        select(func.count())
        .select_from(CallRow)
        .join(RolloutRow, RolloutRow.id == CallRow.rollout_id)
        .where(RolloutRow.campaign_id == campaign)
    )
    return (await connection.execute(statement)).scalar_one()


async def most_in_flight(connection: AsyncConnection, campaign: CampaignId) -> int:
    """Most rollouts of the campaign at one moment: claimed, and not ended."""
    rows = await connection.execute(
        select(RolloutRow.started_at, RolloutRow.finished_at).where(
            RolloutRow.campaign_id == campaign, RolloutRow.started_at.is_not(None)
        )
    )
    times = rows.all()
    begins = [(started, 1) for started, _ in times]
    ends = [(finished, -1) for _, finished in times if finished is not None]
    changes = sorted(begins + ends)
    return max(accumulate(change for _, change in changes), default=0)


async def faults(connection: AsyncConnection, campaign: CampaignId, limit: int) -> list[str]:
    """Faults that masked rollouts, the most frequent first."""
    rows = await connection.execute(
        select(RolloutRow.fault)
        .where(RolloutRow.campaign_id == campaign, RolloutRow.fault.is_not(None))
        .group_by(RolloutRow.fault)
        .order_by(func.count().desc())
        .limit(limit)
    )
    return [fault for (fault,) in rows]


async def stored_bytes(connection: AsyncConnection) -> int:
    """Bytes of the whole database: tables, indexes and what belongs to them, without the log."""
    size = select(func.pg_database_size(func.current_database()))
    return (await connection.execute(size)).scalar_one()


async def wal_position(connection: AsyncConnection) -> int:
    """Bytes that Postgres has written to its log since it was made."""
    position = await connection.scalar(text("SELECT pg_current_wal_insert_lsn() - '0/0'::pg_lsn"))
    return int(position)


async def num_reply_parts(connection: AsyncConnection, rollout: RolloutId) -> int:
    """Rows that the store has of a rollout's replies under way."""
    num_parts = await connection.scalar(
        select(func.count()).where(PartialCallRow.rollout_id == rollout)
    )
    return num_parts or 0
