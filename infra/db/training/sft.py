"""Supervised runs in the store: their samples, their steps, and the versions that they make.

Invariants: a run, its samples and their digest become visible in one transaction, or nothing of
them; samples never change afterwards. They lie in Postgres, where every trainer finds them, one row
each, and are read by the batch: neither writing nor reading ever holds more than some of them. The
first figures that are written of a step stand; a version is stored with a checkpoint that is whole.
Every write of a trainer is fenced by the epoch of its lease.
"""

import hashlib
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from sqlalchemy import func, insert, select
from sqlalchemy.dialects.postgresql import insert as postgres_insert

from infra.db.database import Database
from infra.db.fence import unknown
from infra.db.tables.models import CampaignRow, PolicyVersionRow, StepRow
from infra.db.tables.sft_rows import SftDataRow, SftSampleRow
from infra.db.training.trainers import refuse_fenced
from mainspring.config.sft import SftConfig
from mainspring.errors import UsageError
from mainspring.ids import CampaignId
from mainspring.status import CampaignStatus, StepStatus
from mainspring.trajectories.imitation import to_imitate
from mainspring.trajectories.samples import Sample

CHUNK_BYTES = 8 << 20
"""Size of samples that are written at once: many short ones, or a few long ones."""


@dataclass(frozen=True, slots=True)
class StoredSftData:
    digest: str
    """SHA-256 of all samples in their order."""
    num_samples: int
    num_tokens: int
    num_trained_tokens: int
    num_skipped: int
    """Samples that were too long."""


_DATA = (
    SftDataRow.digest,
    SftDataRow.num_samples,
    SftDataRow.num_tokens,
    SftDataRow.num_trained_tokens,
    SftDataRow.num_skipped,
)
"""The fields of SftData, in their order."""


async def create(
    db: Database,
    config: SftConfig,
    samples: AsyncIterator[Sample],
    check: Callable[[StoredSftData], StoredSftData],
) -> StoredSftData:
    """Store a run with what it is trained on. `check` is called with the figures of all samples
    before anything is visible: it may raise, or fill in what was skipped. Raises UsageError when a
    run of this name was stored meanwhile."""
    name = config.name
    digest = hashlib.sha256()
    num_samples = num_tokens = num_trained = num_bytes = 0
    chunk: list[dict[str, Any]] = []
    async with db.transaction() as connection:
        created = await connection.scalar(
            postgres_insert(CampaignRow)
            .values(
                id=name,
                kind=config.kind,
                config=config.model_dump(mode="json"),
                status=CampaignStatus.CREATED,
            )
            .on_conflict_do_nothing()
            .returning(CampaignRow.id)
        )
        if created is None:
            raise UsageError(
                f"campaign {name} was stored by another command just now",
                remedy="repeat the command to resume it, or give this one another name",
            )
        async for sample in samples:
            row = {"campaign_id": name, "position": num_samples} | _row(sample)
            digest.update(f"{len(sample.token_ids)} ".encode())
            digest.update(row["token_ids"])
            digest.update(row["action_mask"])
            num_samples += 1
            num_tokens += len(sample.token_ids)
            num_trained += sample.num_action_tokens
            chunk.append(row)
            num_bytes += len(row["token_ids"])
            if num_bytes > CHUNK_BYTES:
                await connection.execute(insert(SftSampleRow), chunk)
                chunk, num_bytes = [], 0
        if chunk:
            await connection.execute(insert(SftSampleRow), chunk)
        data = check(StoredSftData(digest.hexdigest(), num_samples, num_tokens, num_trained, 0))
        await connection.execute(
            insert(SftDataRow).values(
                campaign_id=name,
                digest=data.digest,
                num_samples=data.num_samples,
                num_tokens=data.num_tokens,
                num_trained_tokens=data.num_trained_tokens,
                num_skipped=data.num_skipped,
            )
        )
    return data


def _row(sample: Sample) -> dict[str, Any]:
    return {
        "origin": sample.rollout,
        "branch": sample.branch,
        "token_ids": np.ascontiguousarray(sample.token_ids, "<i4").tobytes(),
        "action_mask": np.packbits(sample.action_mask).tobytes(),
    }


async def data_of(db: Database, campaign: CampaignId) -> StoredSftData:
    """The data that the run is trained on. Raises UnknownId."""
    async with db.transaction() as connection:
        row = (
            await connection.execute(select(*_DATA).where(SftDataRow.campaign_id == campaign))
        ).one_or_none()
    if row is None:
        raise unknown("supervised run", campaign)
    return StoredSftData(*row)


async def samples_at(db: Database, campaign: CampaignId, positions: Sequence[int]) -> list[Sample]:
    """Samples at these positions, in the order given; a position may come twice. Raises
    UnknownId."""
    async with db.transaction() as connection:
        rows = await connection.execute(
            select(
                SftSampleRow.position,
                SftSampleRow.origin,
                SftSampleRow.branch,
                SftSampleRow.token_ids,
                SftSampleRow.action_mask,
            ).where(SftSampleRow.campaign_id == campaign, SftSampleRow.position.in_(set(positions)))
        )
        by_position = {row.position: row for row in rows}
    samples: list[Sample] = []
    for position in positions:
        if position not in by_position:
            raise unknown("sample", f"{position} of supervised run {campaign}")
        row = by_position[position]
        token_ids = np.frombuffer(row.token_ids, "<i4").astype(np.int32)
        mask = np.unpackbits(np.frombuffer(row.action_mask, np.uint8), count=len(token_ids))
        samples.append(to_imitate(row.origin, row.branch, token_ids, mask.astype(np.bool_)))
    return samples


async def put_step(
    db: Database,
    campaign: CampaignId,
    step: int,
    *,
    version: int,
    metrics: Mapping[str, float | None],
    trainer_epoch: int,
) -> CampaignStatus:
    """Store the figures of a step that was computed from `version` on; those of an earlier attempt
    stand. The status that the run has now. Raises TrainerFenced."""
    async with db.transaction() as connection:
        await refuse_fenced(connection, campaign, trainer_epoch)
        await connection.execute(
            postgres_insert(StepRow)
            .values(
                campaign_id=campaign,
                step=step,
                status=StepStatus.DONE,
                policy_version_before=version,
                metrics=metrics,
                finished_at=func.now(),
            )
            .on_conflict_do_nothing()
        )
        status = await connection.scalar(
            select(CampaignRow.status).where(CampaignRow.id == campaign)
        )
    if status is None:
        raise unknown("campaign", campaign)
    return status


async def put_version(
    db: Database,
    campaign: CampaignId,
    version: int,
    *,
    path: str,
    checkpoint: str,
    trainer_epoch: int,
) -> None:
    """Make the weights after step `version` visible; an earlier attempt's stand. Raises
    TrainerFenced."""
    async with db.transaction() as connection:
        await refuse_fenced(connection, campaign, trainer_epoch)
        await connection.execute(
            postgres_insert(PolicyVersionRow)
            .values(
                campaign_id=campaign,
                version=version,
                step=version,
                path=path,
                checkpoint=checkpoint,
            )
            .on_conflict_do_nothing()
        )


async def progress(db: Database, campaign: CampaignId) -> tuple[int, dict[str, float | None]]:
    """How many steps have figures, and those of the newest one."""
    of = StepRow.campaign_id == campaign
    async with db.transaction() as connection:
        num_done = await connection.scalar(select(func.count()).select_from(StepRow).where(of))
        newest = await connection.scalar(
            select(StepRow.metrics).where(of).order_by(StepRow.step.desc()).limit(1)
        )
    return num_done or 0, newest or {}


async def losses(db: Database, campaign: CampaignId) -> list[float | None]:
    """Losses of every step, in order."""
    async with db.transaction() as connection:
        of_steps = await connection.scalars(
            select(StepRow.metrics)
            .where(StepRow.campaign_id == campaign, StepRow.status == StepStatus.DONE)
            .order_by(StepRow.step)
        )
        return [metrics.get("loss") for metrics in of_steps]
