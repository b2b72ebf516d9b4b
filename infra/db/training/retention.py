"""Policy versions with what decides how long their files are kept
(`mainspring.artifacts.retention`)."""

from sqlalchemy import func, select

from infra.db.database import Database
from infra.db.tables.models import GroupRow, PolicyVersionRow, RolloutRow
from infra.db.tables.rollout_ends import DONE, RESOLVED, SCORED
from mainspring.artifacts.retention import StoredVersion
from mainspring.ids import CampaignId
from mainspring.status import GroupKind


async def versions(db: Database, campaign: CampaignId) -> list[StoredVersion]:
    """Versions in order, with their checkpoints and solve rates."""
    num_scored, num_resolved = func.count().filter(SCORED), func.count().filter(RESOLVED)
    evaluated = (
        select(
            GroupRow.policy_version,
            (num_resolved * 1.0 / func.nullif(num_scored, 0)).label("solve_rate"),
            func.bool_and(DONE).label("has_ended"),
        )
        .join(RolloutRow, RolloutRow.group_id == GroupRow.id)
        .where(GroupRow.campaign_id == campaign, GroupRow.kind == GroupKind.EVAL)
        .group_by(GroupRow.policy_version)
        .subquery()
    )
    async with db.transaction() as connection:
        rows = await connection.execute(
            select(
                PolicyVersionRow.version,
                PolicyVersionRow.checkpoint.is_not(None),
                evaluated.c.solve_rate,
                evaluated.c.has_ended,
            )
            .outerjoin(evaluated, evaluated.c.policy_version == PolicyVersionRow.version)
            .where(PolicyVersionRow.campaign_id == campaign)
            .order_by(PolicyVersionRow.version)
        )
        return [
            StoredVersion(
                version,
                has_checkpoint,
                float(solve_rate) if has_ended and solve_rate is not None else None,
                is_evaluated_now=has_ended is False,
            )
            for version, has_checkpoint, solve_rate, has_ended in rows
        ]
