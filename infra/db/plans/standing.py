"""Where a campaign stands: all that its workflow has to know to take the next step, read together.

Invariant: everything that decides what a campaign does next is stored, so that a workflow that was
cancelled, terminated, failed or reset anywhere can be started again and look here.
"""

from dataclasses import dataclass
from datetime import UTC, datetime

from sqlalchemy import func, select
from sqlalchemy.ext.asyncio import AsyncConnection

from infra.db.database import Database
from infra.db.tables.models import GroupRow, PolicyVersionRow, RolloutRow, StepRow
from infra.db.training import draws
from mainspring.algorithms.schedule import Batches
from mainspring.ids import CampaignId, GroupId
from mainspring.status import GroupKind, GroupStatus, StepStatus

_USED = (GroupStatus.READY, GroupStatus.CONSUMED)


@dataclass(frozen=True, slots=True)
class Standing:
    version: int | None
    """The newest policy version; None before the first is made."""
    planned_step: int | None
    """The step whose batch is fixed and not trained yet."""
    running: list[int]
    """Training groups in flight, by index."""
    num_ready: int
    """Training groups that wait for a step, those of the planned one among them."""
    next_index: int
    """Index of the next training group."""
    num_masked_in_a_row: int
    """Newest groups of which too few rollouts were scored, without one in between that had enough.
    Those that an operator discarded do not count."""
    masked_by: str | None
    """The newest fault of the rollouts of those; None when there is none."""
    num_flat_in_a_row: int
    """Newest groups with equal rewards, without one in between that a step could use."""
    evaluated: list[GroupId]
    """Complete evaluations of the served version."""
    is_checked: bool
    """The served version's log-probs were compared with recomputed ones."""
    served: int | None
    """The version that engines are to serve now: the newest, unless groups of a reproducible
    campaign still need the one before."""
    due: list[int]
    """Draws that a reproducible campaign is to start under the served version."""


async def read(
    db: Database,
    campaign: CampaignId,
    since: float = 0.0,
    batches: Batches | None = None,
    first_index: int = 0,
) -> Standing:
    """Where the campaign stands. What was masked or flat before `since`, in unix seconds, does not
    count as in a row. `batches`: of a reproducible campaign; `first_index`: of a fork."""
    async with db.snapshot() as connection:
        newest = await connection.scalar(
            select(func.max(PolicyVersionRow.version)).where(
                PolicyVersionRow.campaign_id == campaign
            )
        )
        served, due = newest, []
        if batches is not None and newest is not None:
            drawn_groups = await draws.of_steps_after(connection, campaign, batches, newest)
            served = batches.servable(newest, drawn_groups)
            due = batches.due(drawn_groups, first_step=newest + 1, published=served)
        gap_tokens = await connection.scalar(
            select(PolicyVersionRow.num_gap_tokens).where(
                PolicyVersionRow.campaign_id == campaign, PolicyVersionRow.version == served
            )
        )
        planned = await connection.scalar(
            select(func.max(StepRow.step)).where(
                StepRow.campaign_id == campaign, StepRow.status == StepStatus.PLANNED
            )
        )
        running, num_ready, highest = (
            await connection.execute(
                select(
                    func.array_agg(GroupRow.index).filter(GroupRow.status == GroupStatus.RUNNING),
                    func.count().filter(GroupRow.status == GroupStatus.READY),
                    func.max(GroupRow.index),
                ).where(GroupRow.campaign_id == campaign, GroupRow.kind == GroupKind.TRAIN)
            )
        ).one()
        masked, flat = await _in_a_row(connection, campaign, datetime.fromtimestamp(since, UTC))
        masked_by = await _newest_fault(connection, campaign) if masked else None
        evaluated = await connection.scalars(
            select(GroupRow.id)
            .where(
                GroupRow.campaign_id == campaign,
                GroupRow.kind == GroupKind.EVAL,
                GroupRow.policy_version == (-1 if served is None else served),
                GroupRow.status.in_((GroupStatus.READY, GroupStatus.MASKED)),
                GroupRow.note.is_(None),
            )
            .order_by(GroupRow.id)
        )
        return Standing(
            version=newest,
            planned_step=planned,
            running=sorted(running or ()),
            num_ready=num_ready,
            next_index=first_index if highest is None else highest + 1,
            num_masked_in_a_row=masked,
            masked_by=masked_by,
            num_flat_in_a_row=flat,
            evaluated=[GroupId(id) for id in evaluated],
            is_checked=gap_tokens is not None,
            served=served,
            due=due,
        )


async def ends_of_flat(db: Database, campaign: CampaignId, num: int) -> str:
    """Rewards and commonest end of the rollouts of the newest `num` flat groups, in words."""
    newest = (
        select(GroupRow.id)
        .where(
            GroupRow.campaign_id == campaign,
            GroupRow.kind == GroupKind.TRAIN,
            GroupRow.status == GroupStatus.FLAT,
        )
        .order_by(GroupRow.finished_at.desc())
        .limit(num)
    )
    ends = (
        select(RolloutRow.stop_reason, func.count(), func.min(RolloutRow.reward))
        .add_columns(func.max(RolloutRow.reward))
        .where(RolloutRow.group_id.in_(newest), RolloutRow.reward.is_not(None))
        .group_by(RolloutRow.stop_reason)
        .order_by(func.count().desc(), RolloutRow.stop_reason)
    )
    async with db.snapshot() as connection:
        rows = (await connection.execute(ends)).all()
    if not rows:
        return "none of their rollouts has a reward"
    total, low, high = sum(row[1] for row in rows), min(r[2] for r in rows), max(r[3] for r in rows)
    rewards = f"reward {low:g}" if low == high else f"rewards from {low:g} to {high:g}"
    reason, number = rows[0][:2]
    return f"their {total} rollouts have {rewards}, and {number} of them ended as {reason}"


async def _newest_fault(connection: AsyncConnection, campaign: CampaignId) -> str | None:
    """A fault among the rollouts of the newest masked training group."""
    return await connection.scalar(
        select(RolloutRow.fault)
        .join(GroupRow, GroupRow.id == RolloutRow.group_id)
        .where(
            GroupRow.campaign_id == campaign,
            GroupRow.kind == GroupKind.TRAIN,
            GroupRow.status == GroupStatus.MASKED,
            GroupRow.note.is_(None),
            RolloutRow.fault.is_not(None),
        )
        .order_by(GroupRow.finished_at.desc(), RolloutRow.id)
        .limit(1)
    )


async def _in_a_row(
    connection: AsyncConnection, campaign: CampaignId, since: datetime
) -> tuple[int, int]:
    """Masked and flat groups after the last one that breaks their row."""
    closed = (GroupRow.campaign_id == campaign, GroupRow.kind == GroupKind.TRAIN)
    usable = GroupRow.status.in_(_USED) | GroupRow.note.is_not(None)
    scored = usable | (GroupRow.status == GroupStatus.FLAT)
    last_scored, last_usable = (
        await connection.execute(
            select(
                func.max(GroupRow.finished_at).filter(scored),
                func.max(GroupRow.finished_at).filter(usable),
            ).where(*closed)
        )
    ).one()
    masked = GroupRow.status == GroupStatus.MASKED
    flat = GroupRow.status == GroupStatus.FLAT
    row = await connection.execute(
        select(
            func.count().filter(masked, GroupRow.finished_at > max(since, last_scored or since)),
            func.count().filter(flat, GroupRow.finished_at > max(since, last_usable or since)),
        ).where(*closed, GroupRow.note.is_(None))
    )
    num_masked, num_flat = row.one()
    return num_masked, num_flat
