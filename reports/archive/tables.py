"""One table of an archive as a parquet file, written and read some rows at a time.

Invariant: memory is bounded by a row group, however large the table is. Imports pyarrow when used.
"""

from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from infra.db.runs.campaign_rows import ColumnKind, PlainTable
from mainspring.errors import UsageError

GROUP_BYTES = 8 << 20
"""Size of a row group, which is held in memory before it is written."""
GROUP_ROWS = 10_000
ROWS_AT_ONCE = 64
"""Read from a row group."""


def require_pyarrow() -> None:
    try:
        import pyarrow  # noqa: F401
    except ImportError:
        raise UsageError(
            "archives need pyarrow, which is not installed", remedy="pip install 'mainspring[swe]'"
        ) from None


async def write_table(
    file: Path, table: PlainTable, batches: AsyncIterator[Sequence[Sequence[Any]]]
) -> int:
    """How many rows."""
    import pyarrow
    from pyarrow.parquet import ParquetWriter

    schema = _schema(table)

    def flush() -> None:
        columns = zip(*pending, strict=True) if pending else ([] for _ in schema)
        arrays = [pyarrow.array(c, f.type) for c, f in zip(columns, schema, strict=True)]
        writer.write_table(pyarrow.Table.from_arrays(arrays, schema=schema))
        pending.clear()

    num, size = 0, 0
    pending: list[Sequence[Any]] = []
    with ParquetWriter(file, schema, compression="zstd") as writer:
        async for rows in batches:
            num += len(rows)
            for row in rows:
                pending.append(row)
                size += sum(len(value) for value in row if isinstance(value, bytes | str))
                if size >= GROUP_BYTES or len(pending) >= GROUP_ROWS:
                    flush()
                    size = 0
        flush()
    return num


def read_table(file: Path, table: PlainTable) -> Iterator[list[dict[str, Any]]]:
    """Rows by column, some at a time. Raises UsageError when the file has other columns."""
    import pyarrow
    from pyarrow.parquet import ParquetFile

    try:
        with ParquetFile(file) as opened:
            if opened.schema_arrow.names != list(table.columns):
                raise UsageError(
                    f"{file} has other columns than table {table.name} of this version",
                    remedy="use the version of Mainspring that wrote the archive",
                )
            for batch in opened.iter_batches(ROWS_AT_ONCE):
                yield batch.to_pylist()
    except pyarrow.ArrowException as error:
        raise UsageError(
            f"{file} cannot be read: {str(error).splitlines()[0]}",
            remedy="take another copy of the archive",
        ) from None


def _schema(table: PlainTable) -> Any:
    import pyarrow as pa

    types: Mapping[ColumnKind, Any] = {
        ColumnKind.TEXT: pa.string(),
        ColumnKind.TEXTS: pa.list_(pa.string()),
        ColumnKind.BYTES: pa.binary(),
        ColumnKind.WHOLE: pa.int64(),
        ColumnKind.NUMBER: pa.float64(),
        ColumnKind.TRUTH: pa.bool_(),
        ColumnKind.TIME: pa.timestamp("us", tz="UTC"),
    }
    return pa.schema([(name, types[kind]) for name, kind in table.columns.items()])
