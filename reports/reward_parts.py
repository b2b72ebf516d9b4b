"""What rewards were made of, and which rollouts look like cheating: read for a report."""

from typing import Any

from sqlalchemy import Float, Select, and_, cast, func, select, true
from sqlalchemy.ext.asyncio import AsyncConnection

from infra.db.models import GroupRow, RolloutRow, StepGroupRow, StepRow
from mainspring.ids import CampaignId, RolloutId
from mainspring.status import StepStatus, Suspicion
from reports.data import Composition
from reports.trajectories import DONE, RESOLVED, SCORED

SUSPICIOUS = and_(DONE, func.cardinality(RolloutRow.suspicions) > 0)
SHOWN = 3
"""Suspicious rollouts that a report shows whole."""


def scored_by_step(campaign: CampaignId, *columns: Any) -> Select[Any]:
    """The step's number and `columns` of the scored rollouts of every finished step."""
    return (
        select(StepGroupRow.step, *columns)
        .join(RolloutRow, RolloutRow.group_id == StepGroupRow.group_id)
        .join(
            StepRow,
            and_(
                StepRow.campaign_id == StepGroupRow.campaign_id, StepRow.step == StepGroupRow.step
            ),
        )
        .where(StepGroupRow.campaign_id == campaign, StepRow.status == StepStatus.DONE, SCORED)
    )


async def compositions(
    connection: AsyncConnection, campaign: CampaignId
) -> tuple[Composition, ...]:
    """Of every finished step."""
    of_step = scored_by_step(campaign)
    part = func.jsonb_each_text(RolloutRow.reward_parts).table_valued("key", "value").alias("part")
    means = (
        of_step.join(part, true())
        .add_columns(part.c.key, func.avg(cast(part.c.value, Float)))
        .group_by(StepGroupRow.step, part.c.key)
        .order_by(StepGroupRow.step, part.c.key)
    )
    shares = (
        of_step.add_columns(
            cast(func.count().filter(SUSPICIOUS), Float) / func.count(),
        )
        .group_by(StepGroupRow.step)
        .order_by(StepGroupRow.step)
    )
    parts: dict[int, dict[str, float]] = {}
    for step, name, mean in await connection.execute(means):
        parts.setdefault(step, {})[name] = mean
    return tuple(
        Composition(step, parts.get(step, {}), share)
        for step, share in await connection.execute(shares)
    )


async def suspicion_counts(
    connection: AsyncConnection, campaign: CampaignId
) -> tuple[int, dict[str, int]]:
    """Rollouts with any, and rollouts by kind."""
    of_campaign = (RolloutRow.campaign_id == campaign, SUSPICIOUS)
    total = await connection.scalar(
        select(func.count()).select_from(RolloutRow).where(*of_campaign)
    )
    kind = func.unnest(RolloutRow.suspicions).label("kind")
    each = select(kind).where(*of_campaign).subquery()
    rows = await connection.execute(select(each.c.kind, func.count()).group_by(each.c.kind))
    counts = {str(name): int(number) for name, number in rows}
    return total or 0, {kind.value: counts[kind] for kind in Suspicion if kind in counts}


async def suspicious(
    connection: AsyncConnection, campaign: CampaignId
) -> list[tuple[RolloutId, int]]:
    """(rollout, policy version) of the first few: those that were resolved lead."""
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
        .limit(SHOWN)
    )
    return [(rollout, version) for rollout, version in rows]
