"""How a campaign's rollouts and training groups ended, and which rollouts look like cheating.

Owns the counts that a report's headlines, a live display and a summary share.
"""

from dataclasses import dataclass
from typing import Any

from sqlalchemy import func, select
from sqlalchemy.ext.asyncio import AsyncConnection
from sqlalchemy.orm import InstrumentedAttribute

from infra.db.tables.models import GroupRow, RolloutRow
from infra.db.tables.rollout_ends import DONE, MASKED, RESOLVED, SUSPICIOUS
from infra.db.training.discards import NOTHING
from mainspring.ids import CampaignId, RolloutId
from mainspring.status import GroupKind, GroupStatus, Suspicion

NUM_FAULTS = 3


@dataclass(frozen=True, slots=True)
class Endings:
    """Counts of the rollouts that ended, by the words of `mainspring.status`."""

    num_rollouts: int
    num_turns: int
    stop_reasons: dict[str, int]
    verdicts: dict[str, int]
    num_suspicious: int
    """Rollouts that look like cheating."""
    suspicions: dict[str, int]
    """Rollouts by kind; one rollout may be of several."""
    faults: dict[str, int]
    """Rollouts by what masked them, the most frequent first, at most NUM_FAULTS: one fault's words
    stand for all that the same activity raised as the same error."""


async def read(connection: AsyncConnection, campaign: CampaignId) -> Endings:
    """How the campaign's rollouts ended: counts by stop reason and verdict."""
    of_campaign = RolloutRow.campaign_id == campaign
    num_rollouts, num_turns, num_suspicious = (
        await connection.execute(
            select(
                func.count().filter(DONE),
                func.coalesce(func.sum(RolloutRow.num_turns).filter(DONE), 0),
                func.count().filter(SUSPICIOUS),
            ).where(of_campaign)
        )
    ).one()
    kind = func.unnest(RolloutRow.suspicions).label("kind")
    suspicions = select(kind).where(of_campaign, SUSPICIOUS).subquery()
    rows = await connection.execute(
        select(suspicions.c.kind, func.count().label("size")).group_by(suspicions.c.kind)
    )
    kinds = {row.kind: row.size for row in rows}
    return Endings(
        num_rollouts=num_rollouts,
        num_turns=num_turns,
        stop_reasons=await _counts(connection, campaign, RolloutRow.stop_reason),
        verdicts=await _counts(connection, campaign, RolloutRow.verdict),
        num_suspicious=num_suspicious,
        suspicions={kind.value: kinds[kind] for kind in Suspicion if kind in kinds},
        faults=await _faults(connection, campaign),
    )


async def _faults(connection: AsyncConnection, campaign: CampaignId) -> dict[str, int]:
    # "execute: SandboxLost": what follows differs by rollout.
    kind = func.coalesce(func.substring(RolloutRow.fault, "^[^:]*:[^:]*"), RolloutRow.fault)
    size = func.count()
    rows = await connection.execute(
        select(func.min(RolloutRow.fault), size)
        .where(RolloutRow.campaign_id == campaign, MASKED, RolloutRow.fault.is_not(None))
        .group_by(kind)
        .order_by(size.desc(), func.min(RolloutRow.fault))
        .limit(NUM_FAULTS)
    )
    return {row[0]: row[1] for row in rows}


async def group_counts(connection: AsyncConnection, campaign: CampaignId) -> dict[GroupStatus, int]:
    """Training groups by status; every status is there."""
    rows = await connection.execute(
        select(GroupRow.status, func.count().label("size"))
        .where(GroupRow.campaign_id == campaign, GroupRow.kind == GroupKind.TRAIN)
        .group_by(GroupRow.status)
    )
    sizes = {row.status: row.size for row in rows}
    return {status: sizes.get(status, 0) for status in GroupStatus}


async def replaced_turns(connection: AsyncConnection, campaign: CampaignId) -> tuple[int, int]:
    """Turns of training groups that no step can use, and turns of all training groups."""
    replaced = GroupRow.status.in_((GroupStatus.FLAT, GroupStatus.MASKED))
    turns = func.sum(RolloutRow.num_turns)
    row = await connection.execute(
        select(func.coalesce(turns.filter(replaced), 0), func.coalesce(turns, 0))
        .join(GroupRow, GroupRow.id == RolloutRow.group_id)
        .where(GroupRow.campaign_id == campaign, GroupRow.kind == GroupKind.TRAIN)
    )
    num_replaced, num_all = row.one()
    return num_replaced, num_all


async def suspects(
    connection: AsyncConnection, campaign: CampaignId, limit: int
) -> list[tuple[RolloutId, int]]:
    """(rollout, policy version) of the first `limit` suspicious ones: those that were resolved
    lead."""
    rows = await connection.execute(
        select(RolloutRow.id, GroupRow.policy_version)
        .join(GroupRow, GroupRow.id == RolloutRow.group_id)
        .where(RolloutRow.campaign_id == campaign, SUSPICIOUS)
        .order_by(
            RESOLVED.desc(),
            func.cardinality(RolloutRow.suspicions).desc(),
            RolloutRow.finished_at,
            RolloutRow.id,
        )
        .limit(limit)
    )
    return [(rollout, version) for rollout, version in rows]


async def _counts(
    connection: AsyncConnection, campaign: CampaignId, column: InstrumentedAttribute[Any]
) -> dict[str, int]:
    rows = await connection.execute(
        select(column, func.count())
        # One that is graded and has not ended is in no other count either.
        .where(RolloutRow.campaign_id == campaign, DONE, column.is_not(None))
        .group_by(column)
    )
    return {word.value: number for word, number in rows}


async def replaced_batches(connection: AsyncConnection, campaign: CampaignId) -> dict[str, int]:
    """Groups of batches in which nothing could be trained, by step and reason; the newest first."""
    rows = await connection.execute(
        select(GroupRow.note, func.count())
        .where(
            GroupRow.campaign_id == campaign,
            GroupRow.status == GroupStatus.MASKED,
            GroupRow.note.contains(NOTHING),
        )
        .group_by(GroupRow.note)
        .order_by(func.max(GroupRow.index).desc())
    )
    return {note: num for note, num in rows if note is not None}
