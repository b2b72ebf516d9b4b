"""The files of a supervised run: JSON lines, a JSON list, or parquet, one line or row at a time.

Invariant: what cannot be read is one UsageError with the file and the line or row, numbered from 1;
at most one line of MAX_LINE_BYTES is in memory. Imported by `sft_data`.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from mainspring.errors import UsageError
from mainspring.trajectories.imported import ImportedChat, ImportedTokens, read_line, read_object

MAX_LINE_BYTES = 64 << 20
"""Far above what fits into any model's context."""
_BOM = b"\xef\xbb\xbf"
_ROWS_AT_ONCE = 64


def read_file(path: Path) -> Iterator[tuple[str, ImportedChat | ImportedTokens]]:
    """Each with its place. Raises UsageError."""
    try:
        if path.suffix == ".parquet":
            yield from _rows(path)
            return
        with path.open("rb") as file:
            if path.suffix == ".json" and _begins_a_list(file):
                yield from _listed(path, file)
            else:
                yield from _lines(path, file)
    except (OSError, ValueError) as error:  # a NUL in the path is a ValueError
        reason = error.strerror if isinstance(error, OSError) else error
        raise UsageError(f"{path}: cannot be read: {reason}") from None


def _lines(path: Path, file: BinaryIO) -> Iterator[tuple[str, ImportedChat | ImportedTokens]]:
    number = 0
    while raw := file.readline(MAX_LINE_BYTES + 1):
        number += 1
        where = f"{path}:{number}"
        if len(raw) > MAX_LINE_BYTES:
            raise UsageError(
                f"{where}: the line has more than {MAX_LINE_BYTES >> 20} MiB",
                remedy="write one chat a line, as in .jsonl files",
            )
        line = raw.removeprefix(_BOM) if number == 1 else raw
        if line.strip():
            yield where, read_line(_decoded(line, where), where)


def _begins_a_list(file: BinaryIO) -> bool:
    head = file.read(4096).removeprefix(_BOM).lstrip()
    file.seek(0)
    return head.startswith(b"[")


def _listed(path: Path, file: BinaryIO) -> Iterator[tuple[str, ImportedChat | ImportedTokens]]:
    try:
        rows: list[Any] = json.loads(_decoded(file.read().removeprefix(_BOM), str(path)))
    except (ValueError, RecursionError) as error:
        raise UsageError(
            f"{path}: not JSON: {error}", remedy="if the file was cut short, copy it again"
        ) from None
    for number, row in enumerate(rows, start=1):
        yield f"{path}:{number}", read_object(row, f"{path}:{number}")


def _rows(path: Path) -> Iterator[tuple[str, ImportedChat | ImportedTokens]]:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise UsageError(
            f"{path}: reading parquet needs pyarrow", remedy="pip install 'mainspring[swe]'"
        ) from None
    number = 0
    try:
        with pyarrow.parquet.ParquetFile(path) as file:
            for batch in file.iter_batches(_ROWS_AT_ONCE):
                for row in batch.to_pylist():
                    number += 1
                    where = f"{path}:{number}"
                    yield where, read_object(row, where)
    except pyarrow.ArrowException as error:
        raise UsageError(
            f"{path}: cannot be read as parquet: {str(error).splitlines()[0]}",
            remedy="if the file was cut short, copy it again",
        ) from None


def _decoded(raw: bytes, where: str) -> str:
    try:
        return raw.decode()
    except UnicodeDecodeError as error:
        raise UsageError(f"{where}: not UTF-8: {error}") from None
