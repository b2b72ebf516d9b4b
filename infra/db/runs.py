"""Runs (evaluations, verifications, regrades): their rollouts in parts, and how far they are.

Invariants: which rollouts a part holds follows from what is stored and does not change once the
part is there; a rollout that ended by itself, with a verdict other than a fault, is done; the
others are played when the run is resumed.
"""

from dataclasses import dataclass
from itertools import product

from sqlalchemy import ColumnElement, Double, Select, cast, func, select, update

from infra.db import selections
from infra.db.campaigns import CampaignRecord
from infra.db.database import Database
from infra.db.groups import NewRollout
from infra.db.models import GroupRow, RolloutRow
from mainspring.ids import CampaignId, GroupId, RolloutId, TaskId, rollout_id, run_group_id
from mainspring.protocol.run import MAX_GROUP_SIZE
from mainspring.status import (
    MASKED_ENDS,
    CampaignKind,
    GroupStatus,
    Player,
    RolloutPhase,
    Verdict,
)

_DONE = RolloutRow.phase == RolloutPhase.DONE
_JUDGED: ColumnElement[bool] = (
    _DONE
    & RolloutRow.stop_reason.not_in(MASKED_ENDS)
    & RolloutRow.verdict.is_not(None)
    & (RolloutRow.verdict != Verdict.FAULT)
)


@dataclass(frozen=True, slots=True)
class RunTally:
    """What the rollouts of a campaign came to so far."""

    num_rollouts: int
    """Stored; the parts to come are not."""
    num_done: int
    num_running: int
    num_resolved: int
    num_masked: int
    """Ended without a verdict: an infrastructure fault, or cancelled."""
    num_turns: int
    wall_s: float
    """From the first claim to the last end."""


async def total(database: Database, record: CampaignRecord) -> int:
    """How many rollouts the run will have in the end."""
    if record.kind is CampaignKind.REGRADE:
        return await num_patches(database, CampaignId(record.config.run.of))
    async with database.transaction() as connection:
        num_tasks = await selections.size(connection, record.config, record.config.run.split)
    return num_tasks * len(_ways(record))


async def num_patches(database: Database, campaign: CampaignId) -> int:
    """How many rollouts of the campaign left a patch that can be graded again."""
    given = _given_patches(campaign).subquery()
    async with database.transaction() as connection:
        return await connection.scalar(select(func.count()).select_from(given)) or 0


async def planned(database: Database, record: CampaignRecord, index: int) -> list[NewRollout]:
    """The rollouts of the run's part number `index`; none after the last."""
    if record.kind is CampaignKind.REGRADE:
        return await _patches_to_grade(database, record, index)
    group = run_group_id(record.id, index)
    ways = _ways(record)
    num_tasks = max(1, MAX_GROUP_SIZE // len(ways))
    ids = await selections.task_ids(
        database, record.config, record.config.run.split, index * num_tasks, num_tasks
    )
    temperature = record.config.policy.temperature
    return [
        NewRollout(rollout_id(group, number), task, number, temperature, player, exploit=exploit)
        for number, (task, (player, exploit)) in enumerate(product(ids, ways))
    ]


async def take_up(database: Database, group: GroupId) -> list[int] | None:
    """The rollouts of a stored part that have not ended, by sample index, the part open again if
    there are any; None when it is not stored."""
    async with database.transaction() as connection:
        status = await connection.scalar(
            select(GroupRow.status).where(GroupRow.id == group).with_for_update(key_share=True)
        )
        if status is None:
            return None
        unfinished = list(
            await connection.scalars(
                select(RolloutRow.sample_index)
                .where(RolloutRow.group_id == group, ~_JUDGED)
                .order_by(RolloutRow.sample_index)
            )
        )
        if unfinished and status is not GroupStatus.RUNNING:
            await connection.execute(
                update(GroupRow)
                .where(GroupRow.id == group)
                .values(status=GroupStatus.RUNNING, finished_at=None, note=None)
            )
        return unfinished


async def tally(database: Database, campaign: CampaignId) -> RunTally:
    wall_s = func.extract(
        "epoch", func.max(RolloutRow.finished_at) - func.min(RolloutRow.started_at)
    )
    async with database.transaction() as connection:
        row = (
            await connection.execute(
                select(
                    func.count(),
                    func.count().filter(_DONE),
                    func.count().filter(~_DONE, RolloutRow.started_at.is_not(None)),
                    func.count().filter(_JUDGED, RolloutRow.verdict == Verdict.RESOLVED),
                    func.count().filter(_DONE, ~_JUDGED),
                    func.coalesce(func.sum(RolloutRow.num_turns), 0),
                    func.coalesce(cast(wall_s, Double), 0.0),
                ).where(RolloutRow.campaign_id == campaign)
            )
        ).one()
        return RunTally(*row)


def _ways(record: CampaignRecord) -> list[tuple[Player, str | None]]:
    """Who makes the patches of one task, one entry a rollout; with the exploit's name."""
    run = record.config.run
    players = run.players if record.kind is CampaignKind.VERIFY else (Player.POLICY,)
    ways: list[tuple[Player, str | None]] = []
    for player in players:
        names = run.exploits if player is Player.EXPLOIT else (None,)
        ways += [(player, name) for name in names for _ in range(run.samples)]
    return ways


def _given_patches(campaign: str) -> Select[tuple[str, str, float]]:
    """What ended without a patch has nothing to grade."""
    return select(RolloutRow.id, RolloutRow.task_id, RolloutRow.temperature).where(
        RolloutRow.campaign_id == campaign, _DONE, RolloutRow.patch.is_not(None)
    )


async def _patches_to_grade(
    database: Database, record: CampaignRecord, index: int
) -> list[NewRollout]:
    """Those after the last of the parts before, so that each is graded once whatever happens to
    the other campaign meanwhile."""
    group = run_group_id(record.id, index)
    async with database.transaction() as connection:
        last = await connection.scalar(
            select(func.max(RolloutRow.source_rollout_id))
            .join(GroupRow, GroupRow.id == RolloutRow.group_id)
            .where(RolloutRow.campaign_id == record.id, GroupRow.index < index)
        )
        given = _given_patches(record.config.run.of).order_by(RolloutRow.id)
        if last is not None:
            given = given.where(RolloutRow.id > last)
        rows = await connection.execute(given.limit(MAX_GROUP_SIZE))
        return [
            NewRollout(
                rollout_id(group, number),
                TaskId(task),
                number,
                temperature,
                Player.STORED,
                RolloutId(source),
            )
            for number, (source, task, temperature) in enumerate(rows)
        ]
