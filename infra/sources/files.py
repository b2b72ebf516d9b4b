"""Rows in local files: JSON lines, a JSON list or dict of rows, parquet.

A line that is not JSON is that row's error; a JSON or parquet file that is cut short cannot be read
at all and is one error that names it. A parquet file in verl's columns is read to its end before
its first row is given: one bad row, and none is. Imported by `resolve`.
"""

import json
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any

from infra.db.tasks.tasks import UNSTORABLE, is_storable
from infra.sources.kinds import verl
from infra.sources.protocol import ImportOptions, Place, RowError, RowProblem, SourceRow
from infra.sources.rows import read_row
from mainspring.errors import UsageError
from mainspring.tasks.any_task import AnyTask

JSON_LINES = (".jsonl", ".ndjson")
PARQUET = ".parquet"
SUFFIXES = (*JSON_LINES, ".json", PARQUET)
MAX_LINE_BYTES = 256 << 20
"""Far above a repository that is kept as text."""
_BOM = b"\xef\xbb\xbf"
_ROWS_AT_ONCE = 64


class FileSource:
    def __init__(self, path: Path, options: ImportOptions) -> None:
        self._path = path
        self._options = options

    def rows(self) -> Iterator[SourceRow]:
        try:
            if self._path.suffix == PARQUET:
                self._refuse_bad_verl()
            for place, raw in self._raw():
                if isinstance(raw, RowError):
                    yield SourceRow(place, "", raw)
                elif row := read_row(raw, place, self._options, source=self._path.stem):
                    yield row
        except OSError as error:
            raise UsageError(f"{self._path}: {error.strerror or error}") from None

    def _refuse_bad_verl(self) -> None:
        """Raises UsageError for the first bad row of a file in verl's columns."""
        first: dict[str, tuple[int, str]] = {}
        for number, raw in enumerate(self._parquet(), start=1):
            if number == 1 and not verl.is_verl(raw):
                return
            place = Place(str(self._path), number)
            row = read_row(raw, place, self._options, source=self._path.stem)
            if row is None:
                continue
            error = row.result if isinstance(row.result, RowError) else None
            if isinstance(row.result, AnyTask):
                content = row.result.content_hash
                before, same = first.setdefault(row.id, (number, content))
                if not is_storable(row.result):
                    error = RowError(RowProblem.NOT_STORABLE, f"one of its columns {UNSTORABLE}")
                elif same != content:
                    error = RowError(
                        RowProblem.OTHER_CONTENT,
                        f"its id {row.id} is that of row {before}, which has other content: "
                        f"{verl.EXTRA}.index must be another one in each row",
                    )
            if error is not None:
                remedy = f"{error.remedy}; " if error.remedy else ""
                raise UsageError(
                    f"{place}: {error.message}; nothing was imported",
                    remedy=f"{remedy}correct the row, or leave it out, and repeat the command",
                )

    def _raw(self) -> Iterator[tuple[Place, object]]:
        if self._path.suffix in JSON_LINES:
            return self._lines()
        listed = self._list() if self._path.suffix == ".json" else self._parquet()
        return ((Place(str(self._path), i), raw) for i, raw in enumerate(listed, start=1))

    def _lines(self) -> Iterator[tuple[Place, object]]:
        with self._path.open("rb") as file:
            number = 0
            while line := file.readline(MAX_LINE_BYTES + 1):
                number += 1
                if len(line) > MAX_LINE_BYTES:
                    raise UsageError(
                        f"{self._path}:{number}: the line has more than {MAX_LINE_BYTES >> 20} MiB",
                        remedy="files with one list of rows end in .json",
                    )
                line = line.removeprefix(_BOM) if number == 1 else line
                if line.strip():
                    yield Place(str(self._path), number), _parsed(line)

    def _list(self) -> list[object]:
        try:
            parsed = json.loads(self._path.read_bytes().removeprefix(_BOM))
        except (ValueError, RecursionError) as error:
            raise UsageError(
                f"{self._path} is not JSON: {error}",
                remedy="if the file was cut short, copy it again",
            ) from None
        if isinstance(parsed, dict) and all(isinstance(row, dict) for row in parsed.values()):
            return [{"instance_id": key, **row} for key, row in parsed.items()]
        if not isinstance(parsed, list):
            raise UsageError(
                f"{self._path} holds neither a list of rows nor rows by their id",
                remedy="files with one row a line end in .jsonl",
            )
        return parsed

    def _parquet(self) -> Iterator[dict[str, Any]]:
        try:
            import pyarrow
            import pyarrow.parquet
        except ImportError:
            raise UsageError(
                f"{self._path}: reading parquet needs pyarrow",
                remedy="pip install 'mainspring[swe]'",
            ) from None
        try:
            with pyarrow.parquet.ParquetFile(self._path) as file:
                batches = file.iter_batches(_ROWS_AT_ONCE)
                yield from chain.from_iterable(batch.to_pylist() for batch in batches)
        except (pyarrow.ArrowException, OSError) as error:
            raise UsageError(
                f"{self._path} cannot be read as parquet: {str(error).splitlines()[0]}",
                remedy="if the file was cut short, copy it again",
            ) from None


def _parsed(line: bytes) -> object:
    try:
        return json.loads(line)
    except (ValueError, RecursionError) as error:
        return RowError(RowProblem.NOT_JSON, f"the line is not JSON: {error}")
