"""Cross tests: candidates of an evaluation's tasks, and what the tests of others did with them.

Invariants: the first result stored of a test stands; a result under an older epoch raises Fenced
and changes nothing; candidates are the rollouts that ended by themselves and were graded, in the
order of their samples.
"""

from dataclasses import dataclass

from sqlalchemy import select, text

from infra.db.database import Database
from infra.db.fence import refuse_older
from infra.db.tables.cross_test_rows import CrossTestRow
from infra.db.tables.models import ExecutionRow, RolloutRow
from infra.db.tables.rollout_ends import JUDGED
from mainspring.ids import CampaignId, RolloutId
from mainspring.status import ExecutionState

# As `fenced_insert`, of a rollout that has ended.
_PUT = text(
    "INSERT INTO cross_tests (rollout_id, epoch, test, without_patch, exit_code, note) "
    "SELECT id, :epoch, :test, :without_patch, :exit_code, :note FROM rollouts "
    "WHERE id = :rollout AND epoch = :epoch FOR SHARE ON CONFLICT DO NOTHING RETURNING test"
)


@dataclass(frozen=True, slots=True)
class StoredCandidate:
    rollout: RolloutId
    epoch: int
    patch: bytes


@dataclass(frozen=True, slots=True)
class StoredCrossTest:
    test: str
    """Digest of the test."""
    without_patch: bool
    exit_code: int | None
    """None: it was not compared."""
    note: str = ""


async def rollouts_after(
    db: Database, campaign: CampaignId, after: RolloutId | None, limit: int
) -> list[RolloutId]:
    """Candidates of the run, in the order of their ids, after one of them."""
    statement = select(RolloutRow.id).where(RolloutRow.campaign_id == campaign, JUDGED)
    if after is not None:
        statement = statement.where(RolloutRow.id > after)
    async with db.statement() as connection:
        rows = await connection.scalars(statement.order_by(RolloutRow.id).limit(limit))
        return [RolloutId(id) for id in rows]


async def candidates(db: Database, rollout: RolloutId) -> list[StoredCandidate]:
    """The candidates of the rollout's task in its run, this one among them."""
    mine = select(RolloutRow.campaign_id, RolloutRow.task_id).where(RolloutRow.id == rollout)
    task = mine.subquery()
    async with db.statement() as connection:
        rows = await connection.execute(
            select(RolloutRow.id, RolloutRow.epoch, RolloutRow.patch)
            .join(
                task,
                (RolloutRow.campaign_id == task.c.campaign_id)
                & (RolloutRow.task_id == task.c.task_id),
            )
            .where(JUDGED)
            .order_by(RolloutRow.sample_index)
        )
        return [StoredCandidate(RolloutId(id), epoch, patch or b"") for id, epoch, patch in rows]


async def commands(db: Database, rollout: RolloutId, epoch: int) -> list[str]:
    """Commands of the epoch that have run, in their order."""
    async with db.statement() as connection:
        rows = await connection.scalars(
            select(ExecutionRow.command)
            .where(
                ExecutionRow.rollout_id == rollout,
                ExecutionRow.epoch == epoch,
                ExecutionRow.state == ExecutionState.DONE,
            )
            .order_by(ExecutionRow.call, ExecutionRow.index)
        )
        return list(rows)


async def put(db: Database, rollout: RolloutId, epoch: int, result: StoredCrossTest) -> None:
    """Store one result, unless one of this test is stored. Raises Fenced."""
    values = {
        "rollout": rollout,
        "epoch": epoch,
        "test": result.test,
        "without_patch": result.without_patch,
        "exit_code": result.exit_code,
        "note": result.note.replace("\0", ""),
    }
    async with db.statement() as connection:
        if await connection.scalar(_PUT, values) is None:
            await refuse_older(connection, rollout, epoch)


async def results(db: Database, rollout: RolloutId, epoch: int) -> list[StoredCrossTest]:
    """The results that are stored of one life of a rollout."""
    row = CrossTestRow
    async with db.statement() as connection:
        found = await connection.execute(
            select(row.test, row.without_patch, row.exit_code, row.note)
            .where(row.rollout_id == rollout, row.epoch == epoch)
            .order_by(row.created_at, row.test)
        )
        return [StoredCrossTest(*each) for each in found]
