"""The rows of one campaign in all tables, as plain values: what an archive holds, what a delete
removes.

Invariants: a table belongs to campaigns, by `campaign_id` or by `rollout_id`, or is in SHARED (a
test compares with the tables there are); values are those that Postgres has, bytes as bytes and
JSON as its text, so that what is written back is what was read; rows that are stored stay as they
are.
"""

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from sqlalchemy import (
    ARRAY,
    Boolean,
    Column,
    ColumnElement,
    Integer,
    MetaData,
    SQLColumnExpression,
    Table,
    Text,
    any_,
    bindparam,
    cast,
    func,
    literal,
    select,
    type_coerce,
)
from sqlalchemy.dialects.postgresql import JSONB, insert
from sqlalchemy.ext.asyncio import AsyncConnection
from sqlalchemy.types import BigInteger, Double, LargeBinary, TypeDecorator, TypeEngine

from infra.db.database import Database
from infra.db.tables.models import Base, CampaignRow, GroupRow, RolloutRow, SelectionRow, TaskRow
from infra.db.tables.search_rows import SearchPieceRow
from mainspring.ids import CampaignId

SHARED = frozenset({"store", "tasks", "nodes", "leases"})
"""Tables whose rows belong to no campaign. Tasks that a campaign uses are archived with it."""
CAMPAIGNS = CampaignRow.__tablename__
TASKS = TaskRow.__tablename__
INCOMPLETE = CampaignRow.incomplete.key
"""The column with the reason why rows are missing. An archive never has it."""
SEARCHED = RolloutRow.searched_epoch.key
"""The column that tells whether a rollout's words are stored. An archive never has it, nor has it
these: the words of a restored rollout are made again."""
WORDS = SearchPieceRow.__tablename__
ROLLOUTS_AT_ONCE = 32
"""Whose rows are read, or removed, in one statement of each table."""
ROWS_AT_ONCE = 128
"""Held in memory while they are read."""


class ColumnKind(StrEnum):
    """The kind of a column's values."""

    TEXT = "text"
    TEXTS = "texts"
    BYTES = "bytes"
    WHOLE = "whole"
    NUMBER = "number"
    TRUTH = "truth"
    TIME = "time"


@dataclass(frozen=True, slots=True)
class PlainTable:
    """A table with the kinds of its columns, parents before children in `tables`."""

    name: str
    columns: Mapping[str, ColumnKind]


def tables() -> list[PlainTable]:
    """Tables of an archive: what is referred to comes before what refers to it."""
    archived = [table for table in Base.metadata.sorted_tables if _is_archived(table)]
    return [
        PlainTable(
            table.name,
            {
                column.name: _kind(column)
                for column in table.columns
                if column.name not in (INCOMPLETE, SEARCHED)
            },
        )
        for table in archived
    ]


def of_rollouts() -> list[Table]:
    """Tables whose rows belong to a rollout, children first."""
    of_rollout = [table for table in Base.metadata.sorted_tables if _belongs_to_rollout(table)]
    return list(reversed(of_rollout))


def of_campaign() -> list[Table]:
    """The other tables but for campaigns and rollouts themselves, children first."""
    others = {*SHARED, CAMPAIGNS, RolloutRow.__tablename__}
    return [
        table
        for table in reversed(Base.metadata.sorted_tables)
        if table.name not in others and not _belongs_to_rollout(table)
    ]


async def read(
    connection: AsyncConnection, table: PlainTable, campaign: CampaignId
) -> AsyncIterator[Sequence[Sequence[Any]]]:
    """The campaign's rows in the order of their keys, some at a time."""
    of = Base.metadata.tables[table.name]
    columns = [_read_as(of.c[name]) for name in table.columns]
    if not _belongs_to_rollout(of):
        statement = select(*columns).where(_scope(of, campaign)).order_by(*of.primary_key)
        async for rows in _streamed(connection, statement):
            yield rows
        return
    # Some rollouts at a time: all calls of a campaign are not sorted at once.
    rollouts = list(
        await connection.scalars(
            select(RolloutRow.id).where(RolloutRow.campaign_id == campaign).order_by(RolloutRow.id)
        )
    )
    for first in range(0, len(rollouts), ROLLOUTS_AT_ONCE):
        chunk = rollouts[first : first + ROLLOUTS_AT_ONCE]
        statement = select(*columns).where(are(of.c.rollout_id, chunk)).order_by(*of.primary_key)
        async for rows in _streamed(connection, statement):
            yield rows


async def write(
    connection: AsyncConnection, table: PlainTable, rows: Sequence[Mapping[str, Any]]
) -> None:
    """Store what is not stored."""
    if not rows:
        return
    of = Base.metadata.tables[table.name]
    plain = Table(of.name, MetaData(), *(Column(name, _plain(of.c[name])) for name in rows[0]))
    values = {
        column.name: cast(bindparam(column.name, type_=Text), JSONB)
        if isinstance(column.type, JSONB)
        else bindparam(column.name, type_=column.type)
        for column in plain.columns
    }
    await connection.execute(insert(plain).values(values).on_conflict_do_nothing(), list(rows))


async def count(db: Database, table: PlainTable, campaign: CampaignId) -> int:
    """Number of the campaign's rows in this table."""
    of = Base.metadata.tables[table.name]
    async with db.transaction() as connection:
        return (
            await connection.scalar(
                select(func.count()).select_from(of).where(_scope(of, campaign))
            )
            or 0
        )


async def num_rollouts(connection: AsyncConnection, campaign: CampaignId) -> int:
    """Number of the campaign's rollouts."""
    statement = select(func.count()).where(RolloutRow.campaign_id == campaign)
    return await connection.scalar(statement) or 0


def are(column: SQLColumnExpression[Any], ids: Sequence[str]) -> ColumnElement[bool]:
    """One parameter, however many there are."""
    return column == any_(literal(list(ids), ARRAY(Text)))


def _belongs_to_rollout(table: Table) -> bool:
    """Not one that names rollouts of another campaign too, and refers to none."""
    return "rollout_id" in table.c and bool(table.c.rollout_id.foreign_keys)


def _is_archived(table: Table) -> bool:
    return table.name == TASKS or table.name not in {*SHARED, WORDS}


def _scope(table: Table, campaign: CampaignId) -> ColumnElement[bool]:
    if _belongs_to_rollout(table):
        own = select(RolloutRow.id).where(RolloutRow.campaign_id == campaign)
        return table.c.rollout_id.in_(own)
    if table.name == CAMPAIGNS:
        return table.c.id == campaign
    if table.name == TASKS:
        used = (
            select(row.task_id).where(row.campaign_id == campaign)
            for row in (SelectionRow, GroupRow, RolloutRow)
        )
        first, *rest = used
        return table.c.id.in_(first.union(*rest))
    return table.c.campaign_id == campaign


async def _streamed(
    connection: AsyncConnection, statement: Any
) -> AsyncIterator[Sequence[Sequence[Any]]]:
    async with connection.stream(
        statement, execution_options={"yield_per": ROWS_AT_ONCE}
    ) as result:
        async for rows in result.partitions():
            yield rows


def _plain(column: Column[Any]) -> TypeEngine[Any]:
    """The type that Postgres knows the column by."""
    plain: Any = column.type
    while isinstance(plain, TypeDecorator):
        plain = plain.impl_instance
    return plain


def _read_as(column: Column[Any]) -> ColumnElement[Any]:
    plain = _plain(column)
    if isinstance(plain, JSONB):
        return cast(column, Text).label(column.name)
    # Not as the domain's value, but as Postgres has it.
    return type_coerce(column, plain).label(column.name)


def _kind(column: Column[Any]) -> ColumnKind:
    plain = _plain(column)
    kinds: tuple[tuple[type[TypeEngine[Any]], ColumnKind], ...] = (
        (ARRAY, ColumnKind.TEXTS),
        (JSONB, ColumnKind.TEXT),
        (LargeBinary, ColumnKind.BYTES),
        (Boolean, ColumnKind.TRUTH),
        (BigInteger, ColumnKind.WHOLE),
        (Integer, ColumnKind.WHOLE),
        (Double, ColumnKind.NUMBER),
        (Text, ColumnKind.TEXT),
    )
    for type_, kind in kinds:
        if isinstance(plain, type_):
            return kind
    return ColumnKind.TIME
