"""Rollouts: who may write one (claim and epoch), where it stands and how it ended.

Invariants: a rollout has one live epoch, owned by one Temporal run; writes of older epochs raise
Fenced; the first end written stands, and what ended never changes. Turns are in `turns`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Row, func, null, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from infra.db.database import Database
from infra.db.fence import Fenced, unknown, update_rollout, write_once
from infra.db.rollouts import leftovers
from infra.db.tables.columns import plain
from infra.db.tables.event_writes import Event, write
from infra.db.tables.models import GroupRow, RolloutRow
from infra.db.tables.rollout_ends import SAMPLED_TOKENS
from mainspring.ids import CampaignId, GroupId, RolloutId, TaskId
from mainspring.status import (
    EventKind,
    GroupKind,
    GroupStatus,
    Player,
    RolloutPhase,
    StopReason,
    Suspicion,
    Verdict,
)
from mainspring.tasks.criterion import GradeReport
from mainspring.trajectories.turn_rewards import TurnRewards

_COLUMNS = (
    RolloutRow.id,
    RolloutRow.group_id,
    RolloutRow.campaign_id,
    RolloutRow.task_id,
    RolloutRow.sample_index,
    RolloutRow.player,
    RolloutRow.source_rollout_id,
    RolloutRow.exploit,
    RolloutRow.temperature,
    RolloutRow.seed,
    RolloutRow.phase,
    RolloutRow.epoch,
    RolloutRow.run_id,
    RolloutRow.stop_reason,
    RolloutRow.verdict,
    RolloutRow.reward,
    RolloutRow.reward_parts,
    RolloutRow.suspicions,
    RolloutRow.fault,
    RolloutRow.patch_note,
    RolloutRow.past_runs,
    RolloutRow.num_turns,
    RolloutRow.phase_s,
    RolloutRow.created_at,
    RolloutRow.started_at,
    RolloutRow.finished_at,
)
_NEW_LIFE: dict[str, Any] = {
    "epoch": RolloutRow.epoch + 1,
    "phase": RolloutPhase.STARTING,
    "num_turns": 0,
    "phase_s": {},
    "suspicions": [],
    **dict.fromkeys(
        (
            *("stop_reason", "verdict", "reward", "reward_parts", "turn_rewards"),
            *("fault", "patch", "patch_note"),
            *("grade_output", "grade_report", "finished_at", "num_sampled_tokens"),
        ),
        null(),
    ),
}


@dataclass(frozen=True, slots=True)
class RolloutRecord:
    """A rollout without its patch and what grading said, which may be large."""

    id: RolloutId
    group: GroupId
    campaign: CampaignId
    task: TaskId
    sample_index: int
    player: Player
    source_rollout: RolloutId | None
    exploit: str | None
    temperature: float
    seed: int | None
    """Seed of its sampling; None: none is sent."""
    phase: RolloutPhase
    epoch: int
    run_id: str | None
    stop_reason: StopReason | None
    verdict: Verdict | None
    reward: float | None
    reward_parts: dict[str, float | None] | None
    suspicions: list[str]
    fault: str | None
    patch_note: str | None
    """Note of what the patch lacks, or why there is none."""
    past_runs: list[str]
    num_turns: int
    phase_s: dict[str, float]
    created_at: datetime
    started_at: datetime | None
    finished_at: datetime | None

    @property
    def spent_s(self) -> float | None:
        """From its first claim to its end."""
        if self.started_at is None or self.finished_at is None:
            return None
        return (self.finished_at - self.started_at).total_seconds()

    @property
    def attempts(self) -> int:
        """Times it was begun: anew after a reset, a retry, or a run that was cut off."""
        return len(self.past_runs) + 1


@dataclass(frozen=True, slots=True)
class Claim:
    rollout: RolloutId
    campaign: CampaignId
    task: TaskId
    epoch: int
    player: Player


async def claim(db: Database, rollout: RolloutId, run_id: str) -> Claim:
    """Make `run_id` the rollout's owner. The owner gets its epoch again; another run gets the next
    epoch, and the older one is fenced off for good. Raises Fenced when this run was fenced off
    before, or when the rollout belongs to a closed training group."""
    async with db.transaction() as connection:
        # The group before the rollout: `groups.finish_group` locks in the same order.
        group = (
            await connection.execute(
                select(GroupRow.id, GroupRow.kind, GroupRow.status)
                .where(
                    GroupRow.id
                    == select(RolloutRow.group_id).where(RolloutRow.id == rollout).scalar_subquery()
                )
                .with_for_update(read=True)
            )
        ).one_or_none()
        if group is None:
            raise unknown("rollout", rollout)
        row = await _locked(connection, rollout)
        epoch: int = row.epoch
        if row.run_id != run_id:
            if run_id in row.past_runs:
                raise Fenced(f"rollout {rollout}: run {row.run_id} has taken it over")
            if group.kind is GroupKind.TRAIN and group.status is not GroupStatus.RUNNING:
                raise Fenced(
                    f"rollout {rollout} is final: its group {group.id} is {group.status}",
                    remedy="a closed training group does not change; start another one",
                )
            owner: dict[str, Any] = {
                "run_id": run_id,
                "started_at": func.coalesce(RolloutRow.started_at, func.now()),
            }
            if row.run_id is not None:
                owner["past_runs"] = [*row.past_runs, row.run_id]
            # Without a run, and yet ended: with its group, before its turn came.
            if row.run_id is not None or row.phase is RolloutPhase.DONE:
                owner |= _NEW_LIFE
                epoch += 1
            plays = row.player is Player.POLICY
            owner["phase"] = RolloutPhase.OPENING if plays else RolloutPhase.GRADING
            await connection.execute(
                update(RolloutRow).where(RolloutRow.id == rollout).values(owner)
            )
            if epoch != row.epoch:
                why = "its run before was cut off, reset or retried"
                await _tell_epoch(connection, rollout, row.campaign_id, epoch, why)
        return Claim(rollout, row.campaign_id, row.task_id, epoch, row.player)


async def new_epoch(db: Database, rollout: RolloutId, from_epoch: int, run_id: str) -> int:
    """Begin the life after `from_epoch`; again with the same arguments, the same epoch. Raises
    Fenced when another run owns the rollout or it has gone further."""
    async with db.transaction() as connection:
        row = await _locked(connection, rollout)
        if row.run_id == run_id and row.epoch == from_epoch + 1:
            return row.epoch
        if row.run_id != run_id or row.epoch != from_epoch or row.phase is RolloutPhase.DONE:
            raise Fenced(
                f"rollout {rollout}: run {run_id} cannot leave epoch {from_epoch}; run "
                f"{row.run_id} is in epoch {row.epoch}, phase {row.phase}"
            )
        await connection.execute(
            update(RolloutRow)
            .where(RolloutRow.id == rollout)
            .values({**_NEW_LIFE, "phase": RolloutPhase.OPENING})
        )
        why = "its sandbox could not be rebuilt as it was"
        await _tell_epoch(connection, rollout, row.campaign_id, from_epoch + 1, why)
        return from_epoch + 1


async def give_back(db: Database, rollout: RolloutId) -> None:
    """Undo the end of a rollout, whose next run begins it again; what was recorded is fenced off.
    Only for those whose result no training used: of evaluations, verifications and regrades."""
    async with db.transaction() as connection:
        row = await _locked(connection, rollout)
        if row.phase is RolloutPhase.DONE:
            # Without an owner, or the sweep would end it before its run begins it.
            past_runs = [*row.past_runs, *([row.run_id] if row.run_id else [])]
            values = {**_NEW_LIFE, "run_id": null(), "past_runs": past_runs}
            await connection.execute(
                update(RolloutRow).where(RolloutRow.id == rollout).values(values)
            )


async def set_phase(
    db: Database, rollout: RolloutId, epoch: int, phase: RolloutPhase
) -> RolloutPhase:
    """The phase that stands: a late write does not reopen an ended rollout."""
    return await update_rollout(db, rollout, epoch, {"phase": phase}, returning=RolloutRow.phase)


async def put_patch(
    db: Database, rollout: RolloutId, epoch: int, patch: bytes, note: str | None = None
) -> bytes:
    """The patch that counts: the first one written in this epoch, and what it lacks and why."""
    values = {"patch": patch, "patch_note": note}
    return await write_once(db, rollout, epoch, values, column=RolloutRow.patch)


async def get_patch(db: Database, rollout: RolloutId, epoch: int) -> bytes | None:
    """The patch; None when none was collected. Raises Fenced."""
    return await _of_epoch(db, rollout, epoch, RolloutRow.patch)


async def get_final_patch(db: Database, rollout: RolloutId) -> bytes | None:
    """The patch of the epoch that counts. Raises UnknownId."""
    return await _one_column(db, rollout, RolloutRow.patch)


async def put_grade(
    db: Database,
    rollout: RolloutId,
    epoch: int,
    verdict: Verdict,
    output: str,
    fault: str | None = None,
    report: GradeReport | None = None,
) -> Verdict:
    """The verdict that counts: the first one written in this epoch, and its report with it."""
    values = {
        "verdict": verdict,
        "grade_output": output,
        "grade_report": null() if report is None else _storable(report.model_dump()),
        "fault": fault,
    }
    return await write_once(db, rollout, epoch, values, column=RolloutRow.verdict)


async def get_grade_output(db: Database, rollout: RolloutId, epoch: int) -> str | None:
    """Output of the hidden tests; None when it was not graded. Raises Fenced."""
    return await _of_epoch(db, rollout, epoch, RolloutRow.grade_output)


async def get_grade_report(db: Database, rollout: RolloutId) -> GradeReport | None:
    """Report of the epoch that counts; None when it was not graded. Raises UnknownId."""
    stored = await _one_column(db, rollout, RolloutRow.grade_report)
    return None if stored is None else GradeReport.model_validate(stored)


async def finish(
    db: Database,
    rollout: RolloutId,
    epoch: int,
    *,
    stop_reason: StopReason,
    verdict: Verdict | None,
    reward: float | None,
    fault: str | None,
    num_turns: int,
    phase_s: Mapping[str, float],
    reward_parts: Mapping[str, float | None] | None = None,
    turn_rewards: TurnRewards | None = None,
    suspicions: Sequence[Suspicion] = (),
) -> float | None:
    """The reward that counts: the first end written stands."""
    values = {
        "phase": RolloutPhase.DONE,
        "stop_reason": stop_reason,
        "verdict": verdict,
        "reward": reward,
        "reward_parts": null() if reward_parts is None else reward_parts,
        "turn_rewards": null() if turn_rewards is None else turn_rewards.stored(),
        "suspicions": list(suspicions),
        "fault": fault,
        "num_turns": num_turns,
        "num_sampled_tokens": SAMPLED_TOKENS,
        "phase_s": phase_s,
        "finished_at": func.now(),
    }
    reward = await update_rollout(db, rollout, epoch, values, returning=RolloutRow.reward)
    async with db.transaction() as connection:
        await leftovers.drop_of_ended(connection, RolloutRow.id == rollout)
    return reward


async def get(db: Database, rollout: RolloutId) -> RolloutRecord:
    """The rollout's record. Raises UnknownId."""
    async with db.statement() as connection:
        result = await connection.execute(select(*_COLUMNS).where(RolloutRow.id == rollout))
        row = result.one_or_none()
    if row is None:
        raise unknown("rollout", rollout)
    return RolloutRecord(*row)


async def list_rollouts(
    db: Database,
    *,
    campaign: CampaignId | None = None,
    group: GroupId | None = None,
    phase: RolloutPhase | None = None,
    limit: int | None = None,
) -> list[RolloutRecord]:
    """Rollouts, newest group first, in sample order within a group."""
    statement = select(*_COLUMNS).order_by(
        RolloutRow.created_at.desc(), RolloutRow.group_id, RolloutRow.sample_index
    )
    if campaign is not None:
        statement = statement.where(RolloutRow.campaign_id == campaign)
    if group is not None:
        statement = statement.where(RolloutRow.group_id == group)
    if phase is not None:
        statement = statement.where(RolloutRow.phase == phase)
    async with db.transaction() as connection:
        return [RolloutRecord(*row) for row in await connection.execute(statement.limit(limit))]


async def _locked(connection: AsyncConnection, rollout: RolloutId) -> Row[Any]:
    row = (
        await connection.execute(
            select(
                RolloutRow.campaign_id,
                RolloutRow.task_id,
                RolloutRow.player,
                RolloutRow.phase,
                RolloutRow.epoch,
                RolloutRow.run_id,
                RolloutRow.past_runs,
            )
            .where(RolloutRow.id == rollout)
            .with_for_update(key_share=True)
        )
    ).one_or_none()
    if row is None:
        raise unknown("rollout", rollout)
    return row


async def _tell_epoch(
    connection: AsyncConnection, rollout: RolloutId, campaign: str, epoch: int, why: str
) -> None:
    text = f"rollout {rollout} begins again as epoch {epoch}: {why}"
    event = Event(EventKind.EPOCH_BEGUN, rollout, text, campaign, data={"epoch": epoch})
    await write(connection, event)


async def _of_epoch(db: Database, rollout: RolloutId, epoch: int, column: Any) -> Any:
    async with db.statement() as connection:
        asked = select(RolloutRow.epoch, column).where(RolloutRow.id == rollout)
        row = (await connection.execute(asked)).one_or_none()
    if row is None:
        raise unknown("rollout", rollout)
    if row[0] != epoch:
        raise Fenced(f"rollout {rollout}: epoch {epoch} is over, epoch {row[0]} has begun")
    return row[1]


async def _one_column(db: Database, rollout: RolloutId, column: Any) -> Any:
    async with db.statement() as connection:
        result = await connection.execute(select(column).where(RolloutRow.id == rollout))
        row = result.one_or_none()
    if row is None:
        raise unknown("rollout", rollout)
    return row[0]


def _storable(value: Any) -> Any:
    """As JSON that Postgres takes: names of tests are a program's words."""
    if isinstance(value, str):
        return plain(value)
    if isinstance(value, Mapping):
        return {key: _storable(part) for key, part in value.items()}
    return [_storable(part) for part in value] if isinstance(value, list | tuple) else value
