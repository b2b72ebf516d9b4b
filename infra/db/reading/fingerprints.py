"""The fingerprint of a campaign, put together from its policy versions, steps and groups.

Where two campaigns part is found by the SHA-256 of each call that a step was trained on.
"""

import hashlib
from collections import defaultdict

import numpy as np
from sqlalchemy import and_, select
from sqlalchemy.ext.asyncio import AsyncConnection

from infra.db.database import Database
from infra.db.reading import deviations
from infra.db.runs.campaigns import CampaignRecord
from infra.db.tables.models import CallRow, RolloutRow, StepGroupRow
from infra.db.training.fingerprints import of_campaign
from mainspring.artifacts.reproducibility import (
    CampaignFingerprint,
    ChangeFingerprint,
    StepFingerprint,
)
from mainspring.config.any_run import training
from mainspring.config.files.changes import ALWAYS
from mainspring.errors import UsageError
from mainspring.ids import CampaignId


async def read(
    db: Database, record: CampaignRecord, *, with_calls: bool = False
) -> CampaignFingerprint:
    """The campaign's fingerprint. Raises UsageError for what is no reproducible campaign."""
    config = training(record.config)
    batches = record.batches
    if batches is None:
        raise UsageError(
            f"campaign {record.id} has no fingerprint: its schedule is {config.schedule.value!r}",
            remedy='start one with schedule = "reproducible"',
        )
    versions = {policy.version: policy.fingerprint for policy in await of_campaign(db, record.id)}
    async with db.snapshot() as connection:
        departures = await deviations.read(connection, record.id, batches)
        calls = await call_digests(connection, record.id) if with_calls else None
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
        deviations=departures,
        changes=[
            ChangeFingerprint(field=change.field, value=change.after, from_step=change.from_step)
            for change in record.changes
            if change.from_step != ALWAYS
        ],
    )


async def call_digests(
    connection: AsyncConnection, campaign: CampaignId
) -> dict[int, dict[str, str]]:
    """Digests of the trained calls by step, then by "place.rollout.call": place of the group in the
    batch, of the rollout in its group, and number of the call."""
    rows = await connection.stream(
        select(
            StepGroupRow.step,
            StepGroupRow.position,
            RolloutRow.sample_index,
            CallRow.number,
            CallRow.prompt_ids,
            CallRow.completion_ids,
            CallRow.logprobs,
        )
        .join(RolloutRow, RolloutRow.group_id == StepGroupRow.group_id)
        .join(
            CallRow,
            and_(CallRow.rollout_id == RolloutRow.id, CallRow.epoch == RolloutRow.epoch),
        )
        .where(StepGroupRow.campaign_id == campaign)
        .order_by(StepGroupRow.step, StepGroupRow.position, RolloutRow.sample_index, CallRow.number)
    )
    digests: defaultdict[int, dict[str, str]] = defaultdict(dict)
    async for step, position, index, number, prompt, completion, logprobs in rows:
        hashed = hashlib.sha256(np.asarray(prompt, np.int32).tobytes())
        hashed.update(np.asarray(completion, np.int32).tobytes())
        hashed.update(np.asarray(logprobs, np.float32).tobytes())
        digests[step][f"{position}.{index}.{number}"] = hashed.hexdigest()
    return digests
