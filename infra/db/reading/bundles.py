"""Which bundles the programs of a campaign ran from."""

from sqlalchemy import func, select
from sqlalchemy.ext.asyncio import AsyncConnection

from infra.db.tables.models import RolloutRow
from infra.db.tables.program_rows import ProgramLifeRow
from mainspring.ids import CampaignId


async def read(connection: AsyncConnection, campaign: CampaignId) -> dict[str, int]:
    """Rollouts by the SHA-256 of the bundle; one rollout may be of several."""
    sha256 = ProgramLifeRow.bundle_sha256
    rows = await connection.execute(
        select(sha256, func.count(func.distinct(ProgramLifeRow.rollout_id)))
        .join(RolloutRow, RolloutRow.id == ProgramLifeRow.rollout_id)
        .where(RolloutRow.campaign_id == campaign, sha256.is_not(None))
        .group_by(sha256)
        .order_by(sha256)
    )
    return {row[0]: row[1] for row in rows}
