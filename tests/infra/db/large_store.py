"""A store of 50,000 rollouts with a million calls, a million commands and the words of both, copied
in the database from one group that the program stored.

    python -m tests.infra.db.large_store --home DIR

fills the store of a home folder, whose services run. Imported by tests that measure queries.
"""

import argparse
import asyncio
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sqlalchemy import Integer, Text, cast, func, insert, literal, select, text, true, update
from sqlalchemy.ext.asyncio import AsyncConnection

from infra.db.connect import open_database
from infra.db.database import Database
from infra.db.rollouts import groups, rollouts, search_pieces, turns
from infra.db.tables.base import Base
from infra.db.tables.models import (
    CallRow,
    ExecutionRow,
    GroupRow,
    RolloutRow,
    StepGroupRow,
    StepRow,
)
from infra.db.tables.search_rows import SearchPieceRow
from mainspring.config.settings import load_settings
from mainspring.ids import CampaignId, GroupId
from mainspring.status import StepStatus
from mainspring.trajectories.search_query import SearchPart
from tests.infra.db.store_records import add_group, begin_campaign, call, execution, finish

CAMPAIGN = CampaignId("large")
GROUP_SIZE = 8
NUM_TURNS = 20
NUM_GROUPS = 6_250
GROUPS_OF_A_STEP = 8
CHUNK = 125
"""Groups copied by one statement."""
RARE_WORD, RARE_GROUP = "needle", 3_000
"""A word of one turn of each rollout of this group."""
FREQUENT_WORD = "traceback"
"""A word of every output."""
NUM_PROMPT, NUM_REPLY = 60, 40
OUTPUT = b"Traceback (most recent call last):\n" + b"".join(
    b'  File "a.py", line %d, in check\n' % line for line in range(8)
)


async def fill(db: Database, num_groups: int = NUM_GROUPS) -> None:
    """A campaign of `num_groups` groups, each with its eight rollouts of twenty turns, and a step
    for each eight groups."""
    await begin_campaign(db, CAMPAIGN)
    group, ids = await add_group(db, 0, GROUP_SIZE, CAMPAIGN)
    for number, rollout in enumerate(ids):
        claim = await rollouts.claim(db, rollout, "run")
        end = 0
        for turn in range(NUM_TURNS):
            made = call(turn, end, rollout, NUM_PROMPT, NUM_REPLY)
            end = made.end
            await turns.put_call(db, rollout, claim.epoch, made)
            command = f"sed -n {turn},80p a.py"
            await turns.put_intent(db, rollout, claim.epoch, turn, 0, command)
            await turns.put_execution(db, rollout, claim.epoch, execution(turn, OUTPUT))
        await finish(db, rollout, claim.epoch, float(number % 3 == 0))
    await groups.finish_group(db, group)
    async with db.transaction() as connection:
        of_group = RolloutRow.group_id == group
        await connection.execute(update(RolloutRow).where(of_group).values(num_turns=NUM_TURNS))
    while await search_pieces.fill_next(db) is not None:
        pass
    for first in range(1, num_groups, CHUNK):
        async with db.transaction() as connection:
            numbers = func.generate_series(first, min(first + CHUNK, num_groups) - 1)
            await _copy(connection, group, numbers)
    async with db.transaction() as connection:
        await _add_rare_word(connection)
        await _add_steps(connection, num_groups // GROUPS_OF_A_STEP)
    async with db.statement() as connection:
        await connection.execute(text("VACUUM ANALYZE"))


async def _copy(connection: AsyncConnection, group: GroupId, numbers: Any) -> None:
    """The group and all that belongs to it, once for each of `numbers`."""
    number = numbers.table_valued("n", name="number").render_derived()
    index = cast(number.c.n, Integer)
    name = literal(f"{CAMPAIGN}/g").concat(func.lpad(cast(index, Text), 6, "0"))
    age = func.make_interval(0, 0, 0, 0, 0, NUM_GROUPS - index)

    def moved(column: Any) -> Any:
        """An id of the group, in the copy."""
        return func.replace(column, group, name)

    await _insert(
        connection,
        GroupRow,
        {"id": name, "index": index, "created_at": func.now() - age},
        select_from=number,
        where=GroupRow.id == group,
    )
    await _insert(
        connection,
        RolloutRow,
        {
            "id": moved(RolloutRow.id),
            "group_id": name,
            "created_at": func.now() - age,
            "finished_at": func.now() - age,
        },
        select_from=number,
        where=RolloutRow.group_id == group,
    )
    for table in (CallRow, ExecutionRow):
        await _insert(
            connection,
            table,
            {"rollout_id": moved(table.rollout_id)},
            select_from=number,
            where=table.rollout_id.startswith(group),
        )
    await _insert(
        connection,
        SearchPieceRow,
        {"rollout_id": moved(SearchPieceRow.rollout_id), "at": func.now() - age},
        select_from=number,
        where=SearchPieceRow.rollout_id.startswith(group),
    )


async def _insert(
    connection: AsyncConnection,
    table: type[Base],
    changed: Mapping[str, Any],
    *,
    select_from: Any,
    where: Any,
) -> None:
    columns = [each for each in table.__table__.columns if each.identity is None]
    values = [changed.get(column.key, column) for column in columns]
    chosen = select(*values).select_from(table).join(select_from, true()).where(where)
    await connection.execute(insert(table).from_select([column.key for column in columns], chosen))


async def _add_rare_word(connection: AsyncConnection) -> None:
    of_group = f"{CAMPAIGN}/g{RARE_GROUP:06d}/"
    command = f"echo {RARE_WORD}"
    await connection.execute(
        update(ExecutionRow)
        .where(ExecutionRow.rollout_id.startswith(of_group), ExecutionRow.call == 3)
        .values(command=command)
    )
    await connection.execute(
        update(SearchPieceRow)
        .where(
            SearchPieceRow.rollout_id.startswith(of_group),
            SearchPieceRow.call == 3,
            SearchPieceRow.part == SearchPart.COMMAND,
        )
        .values(words=SearchPieceRow.words.op("||")(func.to_tsvector("simple", RARE_WORD)))
    )


async def _add_steps(connection: AsyncConnection, num_steps: int) -> None:
    metrics = {"seconds": 30.0, "reward_mean": 0.375, "logprob_gap_max": 1e-4, "num_gap_tokens": 9}
    for step in range(1, num_steps + 1):
        row = {"campaign_id": CAMPAIGN, "step": step, "status": StepStatus.DONE}
        row |= {"policy_version_before": step - 1, "metrics": metrics}
        await connection.execute(insert(StepRow).values(row))
    position = GroupRow.index % GROUPS_OF_A_STEP
    step = GroupRow.index // GROUPS_OF_A_STEP + 1
    chosen = select(GroupRow.id, GroupRow.campaign_id, cast(step, Integer), position).where(
        GroupRow.campaign_id == CAMPAIGN, GroupRow.index < num_steps * GROUPS_OF_A_STEP
    )
    keys = ["group_id", "campaign_id", "step", "position"]
    await connection.execute(insert(StepGroupRow).from_select(keys, chosen))


async def _main(home: Path) -> None:
    async with open_database(load_settings(home)) as db:
        started = time.monotonic()
        await fill(db)
        print(f"{NUM_GROUPS * GROUP_SIZE:,} rollouts in {time.monotonic() - started:.0f} s")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--home", type=Path, required=True)
    asyncio.run(_main(parser.parse_args().home))
