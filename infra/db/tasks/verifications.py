"""Verifications: what grading gold and empty patches has shown about tasks.

Invariants: read from the rollouts themselves, nothing is stored twice; a rollout that ended masked
tells nothing about its task; of several verifications the newest that judged both patches counts,
so that a task is verified again after its image or its limits were corrected.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from sqlalchemy import func, select, text

from infra.db.database import Database
from infra.db.tables.models import CampaignRow, RolloutRow, TaskRow
from infra.db.tables.rollout_ends import DONE, HAS_VERDICT
from mainspring.ids import CampaignId, TaskId
from mainspring.status import CampaignKind, Player, Verdict, Verification
from mainspring.tasks.criterion import GradeReport, References

MAX_READ = 20
"""Rollouts of verifications that are looked at for one task: a few have both patches."""

REASON_CHARS = 200
WHAT = {
    Verdict.NOT_RESOLVED: "the tests fail",
    Verdict.PATCH_FAILED: "the patch does not apply",
    Verdict.TESTS_TIMED_OUT: "the tests did not end in time",
    Verdict.NO_PATCH: "the fix changes nothing that counts",
}


async def verification_of(
    db: Database, source: str, split: str | None = None
) -> dict[TaskId, Verification]:
    """Every task of the source (and split), in listing order."""
    gold, empty = (
        (RolloutRow.player == player) & HAS_VERDICT for player in (Player.GOLD, Player.EMPTY)
    )
    resolved = RolloutRow.verdict == Verdict.RESOLVED
    judged = (
        select(
            RolloutRow.task_id,
            func.count().filter(gold).label("num_gold"),
            func.count().filter(gold & resolved).label("num_gold_resolved"),
            func.count().filter(empty).label("num_empty"),
            func.count().filter(empty & resolved).label("num_empty_resolved"),
        )
        .join(CampaignRow, CampaignRow.id == RolloutRow.campaign_id)
        .where(
            # As in the index ix_rollouts_given, which a parameter would not match.
            text("rollouts.player <> 'policy'"),
            CampaignRow.kind == CampaignKind.VERIFY,
            DONE,
        )
        .group_by(RolloutRow.task_id, CampaignRow.id)
        .having(func.count().filter(gold) > 0, func.count().filter(empty) > 0)
        .order_by(RolloutRow.task_id, CampaignRow.created_at.desc(), CampaignRow.id)
        .distinct(RolloutRow.task_id)
        .subquery()
    )
    numbers = [column for column in judged.c if column.name != "task_id"]
    statement = (
        select(TaskRow.id, *numbers)
        .outerjoin(judged, judged.c.task_id == TaskRow.id)
        .where(TaskRow.source == source)
        .order_by(TaskRow.split, TaskRow.position)
    )
    if split is not None:
        statement = statement.where(TaskRow.split == split)
    async with db.transaction() as connection:
        rows = await connection.execute(statement)
        return {TaskId(id): _verification(*counted) for id, *counted in rows}


async def references(db: Database, task: TaskId) -> References:
    """How the task's tests ended with the true fix and without any patch, in the newest
    verification that judged both. A true fix that did not resolve the task is no reference."""
    newest = (
        select(RolloutRow.player, RolloutRow.verdict, RolloutRow.grade_report)
        .join(CampaignRow, CampaignRow.id == RolloutRow.campaign_id)
        .where(
            # As in the index ix_rollouts_given, which a parameter would not match.
            text("rollouts.player <> 'policy'"),
            RolloutRow.task_id == task,
            RolloutRow.player.in_((Player.GOLD, Player.EMPTY)),
            RolloutRow.grade_report.is_not(None),
            CampaignRow.kind == CampaignKind.VERIFY,
            DONE,
            HAS_VERDICT,
        )
        .order_by(CampaignRow.created_at.desc(), RolloutRow.id)
        .limit(MAX_READ)
    )
    async with db.transaction() as connection:
        rows = [tuple(row) for row in await connection.execute(newest)]
    gold, empty = (
        [(verdict, report) for player, verdict, report in rows if player == reference]
        for reference in (Player.GOLD, Player.EMPTY)
    )
    resolved = gold and gold[0][0] == Verdict.RESOLVED
    return References(
        gold=GradeReport.model_validate(gold[0][1]) if resolved else None,
        empty=GradeReport.model_validate(empty[0][1]) if empty else None,
    )


async def faults(db: Database, campaign: CampaignId) -> dict[TaskId, str]:
    """Faults of tasks with a rollout that ended masked: why, of one of them."""
    async with db.transaction() as connection:
        rows = await connection.execute(
            select(RolloutRow.task_id, func.min(RolloutRow.fault))
            .where(
                RolloutRow.campaign_id == campaign,
                DONE,
                RolloutRow.fault.is_not(None),
            )
            .group_by(RolloutRow.task_id)
        )
        return {TaskId(task): fault for task, fault in rows}


async def reasons(db: Database, campaign: CampaignId) -> dict[TaskId, str]:
    """Reasons of tasks whose true fix did not resolve them: why, of one of their rollouts."""
    columns = (
        RolloutRow.task_id,
        RolloutRow.verdict,
        RolloutRow.grade_report["note"].astext,
        RolloutRow.patch_note,
        RolloutRow.grade_output,
    )
    async with db.transaction() as connection:
        rows = await connection.execute(
            select(*columns)
            .where(
                RolloutRow.campaign_id == campaign,
                RolloutRow.player == Player.GOLD,
                DONE,
                HAS_VERDICT,
                RolloutRow.verdict != Verdict.RESOLVED,
            )
            .order_by(RolloutRow.id.desc())
        )
        return {TaskId(task): _reason(*facts) for task, *facts in rows}


def _reason(verdict: str, note: str | None, patch_note: str | None, output: str | None) -> str:
    """Reason that the record has, the most telling first; of the tests' output its end."""
    lines = (output or "").strip().splitlines()
    reason = note or WHAT.get(Verdict(verdict), verdict)
    if lines and (verdict == Verdict.PATCH_FAILED or (verdict in WHAT and not note)):
        reason += f": {lines[-1].strip()[-REASON_CHARS:]}"
    return f"{reason}; {patch_note}" if patch_note and patch_note != note else reason


@dataclass(frozen=True, slots=True)
class Passes:
    """Results of one kind of patch."""

    num_graded: int
    num_resolved: int


async def passes(db: Database, campaign: CampaignId) -> dict[Player, Passes]:
    """How often each task passed, by whose patch it was; of rollouts that got a verdict."""
    async with db.transaction() as connection:
        rows = await connection.execute(
            select(
                RolloutRow.player,
                func.count(),
                func.count().filter(RolloutRow.verdict == Verdict.RESOLVED),
            )
            .where(
                RolloutRow.campaign_id == campaign,
                DONE,
                HAS_VERDICT,
            )
            .group_by(RolloutRow.player)
        )
        counts = {player: Passes(graded, resolved) for player, graded, resolved in rows}
    return {player: counts.get(player, Passes(0, 0)) for player in Player}


async def verification_of_task(db: Database, task: TaskId) -> Verification:
    """Finding of the newest verification that judged the true fix and the empty patch."""
    runs = (
        select(CampaignRow.id)
        .join(RolloutRow, RolloutRow.campaign_id == CampaignRow.id)
        .where(
            # As in the index ix_rollouts_given, which a parameter would not match.
            text("rollouts.player <> 'policy'"),
            RolloutRow.task_id == task,
            CampaignRow.kind == CampaignKind.VERIFY,
        )
        .group_by(CampaignRow.id)
        .order_by(CampaignRow.created_at.desc(), CampaignRow.id)
        .limit(MAX_READ)
    )
    async with db.transaction() as connection:
        newest = [CampaignId(id) for id in await connection.scalars(runs)]
    for run in newest:
        found = (await in_run(db, run, task)).get(task, Verification.UNVERIFIED)
        if found is not Verification.UNVERIFIED:
            return found
    return Verification.UNVERIFIED


async def in_run(
    db: Database, campaign: CampaignId, only: TaskId | None = None
) -> dict[TaskId, Verification]:
    """Each task that the run looked at, or `only` this one, by what this run alone found."""
    chosen = [RolloutRow.campaign_id == campaign]
    if only is not None:
        chosen.append(RolloutRow.task_id == only)
    gold, empty = (
        (RolloutRow.player == player) & HAS_VERDICT for player in (Player.GOLD, Player.EMPTY)
    )
    resolved = RolloutRow.verdict == Verdict.RESOLVED
    async with db.transaction() as connection:
        rows = await connection.execute(
            select(
                RolloutRow.task_id,
                func.count().filter(gold, DONE),
                func.count().filter(gold & resolved, DONE),
                func.count().filter(empty, DONE),
                func.count().filter(empty & resolved, DONE),
            )
            .where(*chosen)
            .group_by(RolloutRow.task_id)
        )
        return {TaskId(task): _verification(*counted) for task, *counted in rows}


def in_words(counts: Mapping[Player, Passes]) -> str:
    """Words for the kinds of patches that were graded."""
    names = {Player.GOLD: "gold patches", Player.EMPTY: "empty patches", Player.EXPLOIT: "exploits"}
    graded = ((name, counts[player]) for player, name in names.items() if counts[player].num_graded)
    return (
        ", ".join(f"{name} {count.num_resolved}/{count.num_graded} pass" for name, count in graded)
        or "nothing is graded yet"
    )


def _verification(
    num_gold: int | None,
    num_gold_resolved: int | None,
    num_empty: int | None,
    num_empty_resolved: int | None,
) -> Verification:
    if not num_gold or not num_empty:
        return Verification.UNVERIFIED
    if num_gold_resolved not in (0, num_gold) or num_empty_resolved not in (0, num_empty):
        return Verification.FLAKY
    if num_gold_resolved == 0:
        return Verification.GOLD_FAILS
    return Verification.EMPTY_PASSES if num_empty_resolved else Verification.VERIFIED
