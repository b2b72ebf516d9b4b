"""What a migration does to the statements of the programs before it, read from two catalogs.

A program of the version before inserts rows without the new columns, names constraints' columns in
ON CONFLICT, and reads the words that it knows. Imported by the tests of migrations.
"""

from dataclasses import dataclass

from sqlalchemy import Connection, text

_COLUMNS = text(
    "SELECT table_name, column_name, udt_name, is_nullable = 'NO' AS is_needed, "
    "column_default IS NOT NULL AS has_default FROM information_schema.columns "
    "WHERE table_schema = 'public' AND table_name <> 'alembic_version'"
)
_CONSTRAINTS = text(
    "SELECT conrelid::regclass::text AS table_name, contype::text AS kind, "
    "pg_get_constraintdef(oid) AS rule FROM pg_constraint "
    "WHERE connamespace = 'public'::regnamespace AND conrelid <> 0 AND contype <> 'n'"
)
_UNIQUE_INDEXES = text(
    "SELECT indrelid::regclass::text AS table_name, 'i' AS kind, "
    "regexp_replace(pg_get_indexdef(indexrelid), 'INDEX .* ON', 'INDEX ON') AS rule "
    "FROM pg_index JOIN pg_class ON pg_class.oid = indrelid WHERE indisunique "
    "AND relnamespace = 'public'::regnamespace AND relname <> 'alembic_version'"
)


@dataclass(frozen=True, slots=True)
class Column:
    kind: str
    is_needed: bool
    has_default: bool


@dataclass(frozen=True, slots=True)
class Catalog:
    columns: dict[tuple[str, str], Column]
    rules: frozenset[tuple[str, str, str]]
    """Table, kind and text of each constraint and unique index."""

    @property
    def tables(self) -> set[str]:
        return {table for table, _ in self.columns}


def read(connection: Connection) -> Catalog:
    columns = {
        (row.table_name, row.column_name): Column(row.udt_name, row.is_needed, row.has_default)
        for row in connection.execute(_COLUMNS)
    }
    rules = [*connection.execute(_CONSTRAINTS), *connection.execute(_UNIQUE_INDEXES)]
    return Catalog(columns, frozenset((row.table_name, row.kind, row.rule) for row in rules))


def breaking(before: Catalog, after: Catalog) -> list[str]:
    """Changes that a program of the version before may fail at; empty for one that only adds."""
    found = [f"table {table} is gone" for table in sorted(before.tables - after.tables)]
    kept = before.tables & after.tables
    for (table, name), column in sorted(before.columns.items()):
        now = after.columns.get((table, name))
        if table not in kept:
            continue
        if now is None:
            found.append(f"column {table}.{name} is gone")
        elif now.kind != column.kind:
            found.append(f"column {table}.{name} was {column.kind}, is {now.kind}")
        elif now.is_needed and not column.is_needed:
            found.append(f"column {table}.{name} must have a value now")
        elif column.has_default and not now.has_default and now.is_needed:
            found.append(f"column {table}.{name} has lost its default")
    for (table, name), column in sorted(after.columns.items()):
        is_new = table in kept and (table, name) not in before.columns
        if is_new and column.is_needed and not column.has_default:
            found.append(f"new column {table}.{name} needs a value, and has no default")
    # A new rule may refuse an old program's rows; one that is gone may be named in ON CONFLICT; a
    # changed list of words lets new programs write what old ones cannot read.
    found += [f"rule of {table} is new: {rule}" for table, _, rule in _of(after, before, kept)]
    found += [f"rule of {table} is gone: {rule}" for table, _, rule in _of(before, after, kept)]
    return found


def _of(one: Catalog, other: Catalog, kept: set[str]) -> list[tuple[str, str, str]]:
    return sorted(rule for rule in one.rules - other.rules if rule[0] in kept)
