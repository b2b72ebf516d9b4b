"""Keys with which agents outside take sessions of a run.

Invariants: a run has one key at a time, of 256 random bits; only its digest is stored, so a key is
shown once. Written by the command line, read by the gateway.
"""

import secrets
from datetime import datetime

from sqlalchemy import delete, select
from sqlalchemy.dialects.postgresql import insert

from infra.db.database import Database
from infra.db.programs.program_lives import KEY_BYTES, digest
from infra.db.tables.session_rows import CampaignKeyRow
from mainspring.ids import CampaignId

PREFIX = "msc_"


async def make(db: Database, campaign: CampaignId) -> str | None:
    """A new key; None when the run has one."""
    key = PREFIX + secrets.token_urlsafe(KEY_BYTES)
    statement = (
        insert(CampaignKeyRow)
        .values(campaign_id=campaign, key_hash=digest(key))
        .on_conflict_do_nothing()
        .returning(CampaignKeyRow.campaign_id)
    )
    async with db.statement() as connection:
        return None if await connection.scalar(statement) is None else key


async def made_at(db: Database, campaign: CampaignId) -> datetime | None:
    """When the run's key was made; None without one."""
    async with db.statement() as connection:
        return await connection.scalar(
            select(CampaignKeyRow.created_at).where(CampaignKeyRow.campaign_id == campaign)
        )


async def revoke(db: Database, campaign: CampaignId) -> bool:
    """Revoke the run's key; False when there was none. Sessions that were taken with it keep
    theirs."""
    async with db.statement() as connection:
        revoked = await connection.scalar(
            delete(CampaignKeyRow)
            .where(CampaignKeyRow.campaign_id == campaign)
            .returning(CampaignKeyRow.campaign_id)
        )
    return revoked is not None


async def campaign_of(db: Database, key: str) -> CampaignId | None:
    """The run that the key is of; None: unknown. It is looked up by its digest: how long that takes
    tells nothing of a key."""
    async with db.statement() as connection:
        campaign = await connection.scalar(
            select(CampaignKeyRow.campaign_id).where(CampaignKeyRow.key_hash == digest(key))
        )
    return None if campaign is None else CampaignId(campaign)
