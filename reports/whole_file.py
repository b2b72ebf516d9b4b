"""Files that appear under their name only when they are complete. Used by every export and by the
report, which several commands may write at the same time: each writes beside the place under a name
of its own."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """Where to write; it becomes `path` when the block ends, and goes away when it fails."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        yield partial
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def write_whole(path: Path, data: bytes | str) -> None:
    with whole_file(path) as partial:
        partial.write_bytes(data if isinstance(data, bytes) else data.encode())
