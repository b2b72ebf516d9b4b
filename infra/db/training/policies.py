"""Policy versions: where the weights of each step lie. Version 0 is the policy before any step.

Invariant: the weights of a version never change; versions above 0 come from `steps.commit_step`
only.
"""

from dataclasses import dataclass

from sqlalchemy import Double, Select, cast, func, select, update
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection

from infra.db.database import Database
from infra.db.fence import unknown
from infra.db.tables.models import PolicyVersionRow
from infra.db.training.fingerprints import recorded
from infra.db.training.trainers import refuse_fenced
from mainspring.artifacts.fingerprint import Fingerprint
from mainspring.artifacts.stamp import Stamp
from mainspring.ids import CampaignId

_COLUMNS = (
    PolicyVersionRow.campaign_id,
    PolicyVersionRow.version,
    PolicyVersionRow.uid,
    PolicyVersionRow.step,
    PolicyVersionRow.path,
    PolicyVersionRow.checkpoint,
    PolicyVersionRow.logprob_gap_max,
    PolicyVersionRow.num_gap_tokens,
)


@dataclass(frozen=True, slots=True)
class PolicyRecord:
    campaign: CampaignId
    version: int
    uid: str
    """Identity of these weights: another version of the same number has another one."""
    step: int | None
    """The step that made it; None for version 0."""
    path: str
    """A Hugging Face model directory."""
    checkpoint: str | None
    """Checkpoint that training resumes from: weights, optimizer, schedule. None: its step is
    trained again, from the newest version before it that has one."""
    logprob_gap_max: float | None
    """Largest gap between served and recomputed log-probs; None before it was measured."""
    num_gap_tokens: int | None
    """Tokens it was measured on."""


async def put_first_policy(
    db: Database,
    campaign: CampaignId,
    path: str,
    checkpoint: str | None = None,
    *,
    trainer_epoch: int | None = None,
    stamp: Stamp | None = None,
    fingerprint: Fingerprint | None = None,
) -> PolicyRecord:
    """Store version 0; the one that stands, this or an earlier attempt's. Raises TrainerFenced for
    an older epoch; None is for those who are no trainer."""
    row = {"campaign_id": campaign, "version": 0, "path": path, "checkpoint": checkpoint}
    row |= recorded(stamp, fingerprint)
    async with db.transaction() as connection:
        if trainer_epoch is not None:
            await refuse_fenced(connection, campaign, trainer_epoch)
        await connection.execute(insert(PolicyVersionRow).values(row).on_conflict_do_nothing())
    return await get_policy(db, campaign, 0)


async def put_checkpoint(
    db: Database, campaign: CampaignId, version: int, checkpoint: str, *, trainer_epoch: int
) -> None:
    """Record that training can resume from `version` now. Raises UnknownId, TrainerFenced."""
    async with db.transaction() as connection:
        await refuse_fenced(connection, campaign, trainer_epoch)
        updated = await connection.scalar(
            update(PolicyVersionRow)
            .where(PolicyVersionRow.campaign_id == campaign, PolicyVersionRow.version == version)
            .values(checkpoint=checkpoint)
            .returning(PolicyVersionRow.version)
        )
    if updated is None:
        raise unknown("policy version", f"{version} of campaign {campaign}")


async def get_policy(db: Database, campaign: CampaignId, version: int) -> PolicyRecord:
    """The version's record. Raises UnknownId."""
    record = await _first(db, _of(campaign).where(PolicyVersionRow.version == version))
    if record is None:
        raise unknown("policy version", f"{version} of campaign {campaign}")
    return record


async def since_checkpoint(db: Database, campaign: CampaignId, version: int) -> list[PolicyRecord]:
    """The newest version up to `version` that has a checkpoint, and those after it up to `version`.
    Raises UnknownId."""
    of_campaign = PolicyVersionRow.campaign_id == campaign
    first = (
        select(func.max(PolicyVersionRow.version))
        .where(
            of_campaign,
            PolicyVersionRow.version <= version,
            PolicyVersionRow.checkpoint.is_not(None),
        )
        .scalar_subquery()
    )
    between = PolicyVersionRow.version.between(first, version)
    async with db.transaction() as connection:
        rows = await connection.execute(
            _of(campaign).where(between).order_by(PolicyVersionRow.version)
        )
        records = [PolicyRecord(*row) for row in rows]
    if not records or records[-1].version != version:
        raise unknown("policy version", f"{version} of campaign {campaign}")
    return records


async def latest_policy(db: Database, campaign: CampaignId) -> PolicyRecord | None:
    """The newest version; None before version 0 is made."""
    return await _first(db, _of(campaign).order_by(PolicyVersionRow.version.desc()).limit(1))


async def is_version(db: Database, campaign: CampaignId, version: int, uid: str) -> bool:
    """Whether the campaign has these weights. Version 0 is also known by its number alone."""
    same = (PolicyVersionRow.version == version) & (PolicyVersionRow.uid == uid)
    if version == 0 and not uid:
        same = PolicyVersionRow.version == 0
    async with db.transaction() as connection:
        row = await connection.scalar(
            select(PolicyVersionRow.version).where(PolicyVersionRow.campaign_id == campaign, same)
        )
    return row is not None


async def put_gap(
    db: Database, campaign: CampaignId, version: int, gap_max: float | None, num_tokens: int
) -> None:
    """Record a measurement of served against recomputed log-probs; of several, the largest gap and
    the largest sample stand. None for a measurement on no token. Raises UnknownId."""
    async with db.transaction() as connection:
        updated = await connection.scalar(
            update(PolicyVersionRow)
            .where(PolicyVersionRow.campaign_id == campaign, PolicyVersionRow.version == version)
            .values(
                logprob_gap_max=func.greatest(
                    PolicyVersionRow.logprob_gap_max, cast(gap_max, Double)
                ),
                num_gap_tokens=func.greatest(PolicyVersionRow.num_gap_tokens, num_tokens),
            )
            .returning(PolicyVersionRow.version)
        )
    if updated is None:
        raise unknown("policy version", f"{version} of campaign {campaign}")


async def list_policies(db: Database, campaign: CampaignId) -> list[PolicyRecord]:
    """All versions in their order."""
    async with db.transaction() as connection:
        rows = await connection.execute(_of(campaign).order_by(PolicyVersionRow.version))
        return [PolicyRecord(*row) for row in rows]


async def list_all(connection: AsyncConnection) -> list[PolicyRecord]:
    """All versions of all campaigns, in their order."""
    rows = await connection.execute(
        select(*_COLUMNS).order_by(PolicyVersionRow.campaign_id, PolicyVersionRow.version)
    )
    return [PolicyRecord(*row) for row in rows]


def _of(campaign: CampaignId) -> Select:
    return select(*_COLUMNS).where(PolicyVersionRow.campaign_id == campaign)


async def _first(db: Database, statement: Select) -> PolicyRecord | None:
    async with db.transaction() as connection:
        row = (await connection.execute(statement)).one_or_none()
    return None if row is None else PolicyRecord(*row)
