"""How far a run is, and what of it is still to be played.

Invariant: a rollout that ended by itself, with a verdict other than a fault, is done; the others
are played when the run is resumed. What the parts of a run hold is in `run_plans`.
"""

from dataclasses import dataclass

from sqlalchemy import Double, cast, func, select, update

from infra.db.database import Database
from infra.db.tables.models import CampaignRow, GroupRow, RolloutRow
from infra.db.tables.rollout_ends import DONE, JUDGED
from mainspring.errors import UsageError
from mainspring.ids import CampaignId, GroupId
from mainspring.status import CampaignKind, GroupStatus, Verdict

_COMPLETE = (GroupStatus.READY, GroupStatus.MASKED)
"""Statuses of groups that measure."""


@dataclass(frozen=True, slots=True)
class RunTally:
    """Counts of a campaign's rollouts so far."""

    num_done: int
    num_running: int
    num_resolved: int
    num_masked: int
    """Ended without a verdict: an infrastructure fault, or cancelled."""
    wall_s: float
    """From the first claim to the last end."""


async def take_up(
    db: Database, group: GroupId, *, complete_stays: bool = False
) -> list[int] | None:
    """The rollouts of a stored part to play, by sample index, the part open again if there are any
    or if it was cancelled; None when it is not stored. With `complete_stays` none of a part that is
    complete, whatever of it was masked; one that an operator discarded is not."""
    async with db.transaction() as connection:
        stored = (
            await connection.execute(
                select(GroupRow.status, GroupRow.note)
                .where(GroupRow.id == group)
                .with_for_update(key_share=True)
            )
        ).one_or_none()
        if stored is None:
            return None
        status = stored.status
        if complete_stays and status in _COMPLETE and stored.note is None:
            return []
        unfinished = list(
            await connection.scalars(
                select(RolloutRow.sample_index)
                .where(RolloutRow.group_id == group, ~JUDGED)
                .order_by(RolloutRow.sample_index)
            )
        )
        # A cancelled one is open again also to be closed as complete.
        was_cut = status is GroupStatus.CANCELLED
        if (unfinished or was_cut) and status is not GroupStatus.RUNNING:
            await connection.execute(
                update(GroupRow)
                .where(GroupRow.id == group)
                .values(status=GroupStatus.RUNNING, finished_at=None, note=None)
            )
        return unfinished


async def num_parts(db: Database, campaign: CampaignId) -> int:
    """Number of the run's parts that are stored."""
    async with db.transaction() as connection:
        statement = select(func.count()).where(GroupRow.campaign_id == campaign)
        return await connection.scalar(statement) or 0


async def refuse_open_parts(db: Database, campaign: CampaignId) -> None:
    """Refuse to finish a run with an open part: its workflow has seen all of them closed. Training
    campaigns and supervised runs have no parts. Raises UsageError."""
    async with db.transaction() as connection:
        number = await connection.scalar(
            select(func.count())
            .select_from(GroupRow)
            .join(CampaignRow, CampaignRow.id == GroupRow.campaign_id)
            .where(
                GroupRow.campaign_id == campaign,
                GroupRow.status == GroupStatus.RUNNING,
                CampaignRow.kind.not_in((CampaignKind.TRAIN, CampaignKind.SFT)),
            )
        )
    if number:
        raise older_store(campaign, f"has {number} of its parts unfinished")


def older_store(campaign: CampaignId, what: str) -> UsageError:
    """The error of a run whose workflow remembers more than is stored."""
    return UsageError(
        f"run {campaign}: the store {what}, and its workflow knows more: the store was restored "
        "from an older backup",
        remedy="start the run again with the command that ran it: what is missing is played again",
    )


async def tally(db: Database, campaign: CampaignId) -> RunTally:
    """How many of the run's rollouts are done, running, resolved or masked."""
    wall_s = func.extract(
        "epoch", func.max(RolloutRow.finished_at) - func.min(RolloutRow.started_at)
    )
    async with db.transaction() as connection:
        row = (
            await connection.execute(
                select(
                    func.count().filter(DONE),
                    func.count().filter(~DONE, RolloutRow.started_at.is_not(None)),
                    func.count().filter(JUDGED, RolloutRow.verdict == Verdict.RESOLVED),
                    func.count().filter(DONE, ~JUDGED),
                    func.coalesce(cast(wall_s, Double), 0.0),
                ).where(RolloutRow.campaign_id == campaign)
            )
        ).one()
        return RunTally(*row)
