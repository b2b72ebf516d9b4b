"""Removing a campaign's rows, in transactions that are each short.

Invariants: the mark comes first: from then on the campaign is neither started nor archived;
the campaign's own row goes last, so that a removal which was killed is found and completed; two at
once share the work; what other campaigns share stays.
"""

from collections.abc import Callable
from typing import Any

from sqlalchemy import delete, select, text, update
from sqlalchemy.ext.asyncio import AsyncConnection

from infra.db.database import Database
from infra.db.fence import unknown
from infra.db.runs import campaign_rows
from infra.db.runs.campaigns import ENDS
from infra.db.tables.models import CampaignRow, GroupRow, RolloutRow, StepGroupRow
from mainspring.errors import UsageError
from mainspring.ids import CampaignId
from mainspring.status import CampaignStatus, Incomplete

ROWS_AT_ONCE = 5000
"""Number of rows in one transaction, in tables that are not counted by rollout."""


async def mark(db: Database, campaign: CampaignId) -> str:
    """From here on the campaign cannot be started; its uid. Raises UnknownId, and UsageError while
    it runs, another run grades its patches, or trains its batches again."""
    async with db.transaction() as connection:
        result = await connection.execute(
            select(CampaignRow.status, CampaignRow.uid)
            .where(CampaignRow.id == campaign)
            .with_for_update()
        )
        row = result.one_or_none()
        if row is None:
            raise unknown("campaign", campaign)
        if row.status not in (*ENDS, CampaignStatus.CREATED):
            raise UsageError(
                f"campaign {campaign} is {row.status.value}",
                remedy=f"run `mainspring campaign cancel {campaign}` first",
            )
        if users := await _retrained_by(connection, campaign):
            raise UsageError(
                f"batches of campaign {campaign} are trained again by {', '.join(users)}, whose "
                "steps refer to them",
                remedy=f"run `mainspring campaign delete {users[0]}` first",
            )
        if users := await _graded_by(connection, campaign):
            raise UsageError(
                f"patches of campaign {campaign} are graded again by {', '.join(users)}, whose "
                "rollouts refer to them",
                remedy=f"run `mainspring campaign delete {users[0]}` first",
            )
        await connection.execute(
            update(CampaignRow)
            .where(CampaignRow.id == campaign)
            .values(incomplete=Incomplete.DELETING)
        )
        return row.uid


async def remove(
    db: Database,
    campaign: CampaignId,
    uid: str,
    progress: Callable[[int, int], None] = lambda done, of: None,
) -> None:
    """Remove what is marked. `progress`: rollouts that went, and of how many."""
    async with db.transaction() as connection:
        total = await campaign_rows.num_rollouts(connection, campaign)
    num_removed = 0
    progress(num_removed, total)
    while number := await _remove_rollouts(db, campaign, uid):
        num_removed += number
        progress(min(num_removed, total), total)
    for table in campaign_rows.of_campaign():
        while await _remove_some(db, table.name, campaign, uid):
            pass
    async with db.transaction() as connection:
        await connection.execute(
            delete(CampaignRow).where(
                CampaignRow.id == campaign,
                CampaignRow.uid == uid,
                CampaignRow.incomplete == Incomplete.DELETING,
            )
        )


async def configs_of_others(db: Database, campaign: CampaignId) -> dict[str, Any]:
    """The stored configurations of all other runs, by name."""
    async with db.transaction() as connection:
        rows = await connection.execute(
            select(CampaignRow.id, CampaignRow.config).where(CampaignRow.id != campaign)
        )
        return {row.id: row.config for row in rows}


async def _remove_rollouts(db: Database, campaign: CampaignId, uid: str) -> int:
    """Some rollouts with all that belongs to them; how many. Those that another removal has in its
    hands are left to it; 0 means that none is left but these."""
    async with db.transaction() as connection:
        if not await _is_marked(connection, campaign, uid):
            return 0
        ids = list(
            await connection.scalars(
                select(RolloutRow.id)
                .where(RolloutRow.campaign_id == campaign)
                .limit(campaign_rows.ROLLOUTS_AT_ONCE)
                .with_for_update(skip_locked=True)
            )
        )
        for table in campaign_rows.of_rollouts():
            await connection.execute(
                delete(table).where(campaign_rows.are(table.c.rollout_id, ids))
            )
        await connection.execute(delete(RolloutRow).where(campaign_rows.are(RolloutRow.id, ids)))
    return len(ids)


async def _remove_some(db: Database, table: str, campaign: CampaignId, uid: str) -> int:
    rows = (
        f'SELECT ctid FROM "{table}" WHERE campaign_id = :campaign LIMIT {ROWS_AT_ONCE} '
        "FOR UPDATE SKIP LOCKED"
    )
    async with db.transaction() as connection:
        if not await _is_marked(connection, campaign, uid):
            return 0
        removed = await connection.execute(
            text(f'DELETE FROM "{table}" WHERE ctid = ANY(ARRAY({rows}))'), {"campaign": campaign}
        )
    return removed.rowcount


async def _is_marked(connection: AsyncConnection, campaign: CampaignId, uid: str) -> bool:
    """Another removal may have completed this one, and the name be a new campaign's."""
    incomplete = await connection.scalar(
        select(CampaignRow.incomplete)
        .where(CampaignRow.id == campaign, CampaignRow.uid == uid)
        .with_for_update(read=True, key_share=True)
    )
    return incomplete is Incomplete.DELETING


async def _retrained_by(connection: AsyncConnection, campaign: CampaignId) -> list[str]:
    """Other campaigns that train batches of this one's groups."""
    users = await connection.scalars(
        select(StepGroupRow.campaign_id)
        .join(GroupRow, GroupRow.id == StepGroupRow.group_id)
        .where(GroupRow.campaign_id == campaign, StepGroupRow.campaign_id != campaign)
        .distinct()
    )
    return sorted(users)


async def _graded_by(connection: AsyncConnection, campaign: CampaignId) -> list[str]:
    """Other runs that grade patches of this one's rollouts."""
    own = select(RolloutRow.id).where(RolloutRow.campaign_id == campaign)
    users = await connection.scalars(
        select(RolloutRow.campaign_id)
        .where(RolloutRow.source_rollout_id.in_(own), RolloutRow.campaign_id != campaign)
        .distinct()
    )
    return sorted(users)
