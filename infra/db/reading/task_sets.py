"""A campaign's rollouts by the task set that they are from: how many, and how they ended.

A set is the label under which a campaign has tasks: a split, or the name of a source. Nothing here
is written.
"""

from dataclasses import dataclass

from sqlalchemy import func, select
from sqlalchemy.ext.asyncio import AsyncConnection

from infra.db.tables.models import GroupRow, RolloutRow
from infra.db.tables.rollout_ends import DONE, RESOLVED, SCORED
from mainspring.config.campaign import CampaignConfig
from mainspring.ids import CampaignId
from mainspring.status import GroupKind


@dataclass(frozen=True, slots=True)
class SetFigures:
    name: str
    kind: GroupKind
    """Whether it was trained on or measured."""
    num_groups: int
    """That have a rollout which ended."""
    num_rollouts: int
    """That ended."""
    num_scored: int
    num_resolved: int
    reward_mean: float | None
    turns_mean: float


async def by_set(
    connection: AsyncConnection, campaign: CampaignId, config: CampaignConfig
) -> tuple[SetFigures, ...]:
    """Gives figures of the rollouts of each set, trained ones first; empty for a campaign with one
    task source."""
    if not config.tasks.sets and not config.evaluation.sources:
        return ()
    rows = await connection.execute(
        select(
            GroupRow.split,
            GroupRow.kind,
            func.count(GroupRow.id.distinct()),
            func.count(),
            func.count().filter(SCORED),
            func.count().filter(RESOLVED),
            func.avg(RolloutRow.reward),
            func.avg(RolloutRow.num_turns),
        )
        .join(RolloutRow, RolloutRow.group_id == GroupRow.id)
        .where(GroupRow.campaign_id == campaign, DONE)
        .group_by(GroupRow.split, GroupRow.kind)
    )
    found = [
        SetFigures(
            name,
            kind,
            groups,
            num,
            scored,
            resolved,
            None if reward is None else float(reward),
            float(turns),
        )
        for name, kind, groups, num, scored, resolved, reward, turns in rows
    ]
    order = {label: place for place, label in enumerate(config.splits)}
    return tuple(
        sorted(
            found,
            key=lambda each: (each.kind is not GroupKind.TRAIN, order.get(each.name, len(order))),
        )
    )
