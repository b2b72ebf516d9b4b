"""The fingerprint of a campaign, put together from its policy versions, steps and groups."""

from infra.db.database import Database
from infra.db.reading import call_digests, deviations
from infra.db.runs.campaigns import CampaignRecord
from infra.db.training.fingerprints import of_campaign
from mainspring.artifacts.reproducibility import CampaignFingerprint, StepFingerprint
from mainspring.config.any_run import training
from mainspring.errors import UsageError


async def read(
    database: Database, record: CampaignRecord, *, with_calls: bool = False
) -> CampaignFingerprint:
    """The campaign's fingerprint. Raises UsageError for what is no reproducible campaign."""
    config = training(record.config)
    if config.batches is None:
        raise UsageError(
            f"campaign {record.id} has no fingerprint: its schedule is {config.schedule.value!r}",
            remedy='start one with schedule = "reproducible"',
        )
    versions = {each.version: each.fingerprint for each in await of_campaign(database, record.id)}
    async with database.snapshot() as connection:
        found = await deviations.read(connection, record.id, config.batches)
        calls = await call_digests.read(connection, record.id) if with_calls else None
    steps = [
        StepFingerprint(
            step=version,
            batch=stored.batch if stored else None,
            gradient=stored.gradient if stored else None,
            weights=stored.weights if stored else None,
            calls=None if calls is None else calls.get(version, {}),
        )
        for version, stored in versions.items()
        if version > 0
    ]
    first, newest = versions.get(0), versions.get(max(versions, default=0))
    return CampaignFingerprint(
        campaign=record.id,
        schedule=config.schedule,
        weights=newest.weights if newest else None,
        base_weights=first.weights if first else None,
        steps=steps,
        deviations=found,
    )
