"""How often each task of an evaluation was solved."""

from sqlalchemy import func, select

from infra.db.database import Database
from infra.db.tables.models import RolloutRow
from infra.db.tables.rollout_ends import RESOLVED, SCORED
from mainspring.ids import CampaignId, TaskId


async def pass_rates(database: Database, evaluation: CampaignId) -> dict[TaskId, float]:
    """Solved part of each task's scored rollouts; tasks without a scored one are missing."""
    async with database.transaction() as connection:
        rows = await connection.execute(
            select(RolloutRow.task_id, func.count().filter(RESOLVED), func.count())
            .where(RolloutRow.campaign_id == evaluation, SCORED)
            .group_by(RolloutRow.task_id)
        )
        return {TaskId(task): solved / scored for task, solved, scored in rows}
