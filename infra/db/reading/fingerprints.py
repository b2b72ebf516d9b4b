"""The fingerprint of a campaign, put together from its policy versions, steps and groups."""

from sqlalchemy import select

from infra.db.campaigns import CampaignRecord
from infra.db.database import Database
from infra.db.models import PolicyVersionRow
from infra.db.reading import call_digests, deviations
from mainspring.config.any_run import training
from mainspring.errors import UsageError
from mainspring.reproducibility import CampaignFingerprint, StepFingerprint


async def read(
    database: Database, record: CampaignRecord, *, with_calls: bool = False
) -> CampaignFingerprint:
    """Raises UsageError for what is no reproducible campaign."""
    config = training(record.config)
    if config.batches is None:
        raise UsageError(
            f"campaign {record.id} has no fingerprint: its schedule is {config.schedule.value!r}",
            remedy='start one with schedule = "reproducible"',
        )
    async with database.snapshot() as connection:
        rows = await connection.execute(
            select(PolicyVersionRow.version, PolicyVersionRow.fingerprint)
            .where(PolicyVersionRow.campaign_id == record.id)
            .order_by(PolicyVersionRow.version)
        )
        versions = {version: stored or {} for version, stored in rows}
        found = await deviations.read(connection, record.id, config.batches)
        calls = await call_digests.read(connection, record.id) if with_calls else None
    steps = [
        StepFingerprint(
            step=version,
            batch=stored.get("batch"),
            gradient=stored.get("gradient"),
            weights=stored.get("weights"),
            calls=None if calls is None else calls.get(version, {}),
        )
        for version, stored in versions.items()
        if version > 0
    ]
    newest = max(versions, default=0)
    return CampaignFingerprint(
        campaign=record.id,
        schedule=config.schedule,
        weights=versions.get(newest, {}).get("weights"),
        base_weights=versions.get(0, {}).get("weights"),
        steps=steps,
        deviations=found,
    )
