"""The counts of a campaign that runs are of the same rollouts: those that have ended."""

from sqlalchemy import update

from infra.db.database import Database
from infra.db.reading import endings
from infra.db.tables.models import RolloutRow
from mainspring.status import Verdict
from tests.infra.db.store_records import CAMPAIGN, add_group, add_ready_group, begin_campaign


async def test_one_that_is_graded_and_has_not_ended_is_in_no_count(db: Database) -> None:
    await begin_campaign(db)
    await add_ready_group(db, 0)
    _, running = await add_group(db, 1)
    async with db.transaction() as connection:
        graded = update(RolloutRow).where(RolloutRow.id == running[0])
        await connection.execute(graded.values(verdict=Verdict.RESOLVED))
    async with db.snapshot() as connection:
        found = await endings.read(connection, CAMPAIGN)
    assert found.num_rollouts == 2
    assert sum(found.verdicts.values()) == sum(found.stop_reasons.values()) == 2
