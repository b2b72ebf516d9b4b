"""A folder that appears under its name only when it is complete: archives, backups, frozen pages.

Invariants: it is written beside its place and renamed at the end; what a killed command left there
is removed by the next one; two commands never write the same folder; a folder that holds something
is never written into.
"""

import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from mainspring.errors import ServiceError, UsageError


@contextmanager
def whole_folder(folder: Path, *, mode: int = 0o700) -> Iterator[Path]:
    """Where to write; it becomes `folder` when the block ends, and goes away when it fails. `mode`:
    of the folder; as it is given, for its owner alone, as the store is. Raises UsageError when
    `folder` holds something, ServiceError when the disk refuses."""
    folder = folder.absolute()
    partial = folder.with_name(f".{folder.name}.partial")
    try:
        refuse_used(folder)
        folder.parent.mkdir(parents=True, exist_ok=True)
        with _owned(partial, mode):
            try:
                yield partial
                refuse_used(folder)
                if folder.exists():
                    folder.rmdir()
                partial.rename(folder)
            except BaseException:
                shutil.rmtree(partial, ignore_errors=True)
                raise
    except OSError as error:
        raise ServiceError(
            f"{folder} cannot be written: {error}",
            remedy="free space there, or give a folder that can be written",
        ) from error


def refuse_used(folder: Path) -> None:
    """Raises UsageError unless `folder` is new or empty."""
    if folder.is_dir() and not any(folder.iterdir()):
        return
    if folder.exists() or folder.is_symlink():
        what = "is not empty" if folder.is_dir() else "is a file"
        raise UsageError(f"{folder} {what}", remedy="give a folder that is new or empty")


@contextmanager
def _owned(partial: Path, mode: int) -> Iterator[None]:
    """An empty folder for this process alone; the lock dies with it."""
    partial.mkdir(mode=mode, exist_ok=True)
    handle = os.open(partial, os.O_RDONLY | os.O_DIRECTORY)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UsageError(
                f"another process is writing {partial}",
                remedy="wait for it, or give another folder",
            ) from None
        for left in partial.iterdir():
            shutil.rmtree(left) if left.is_dir() and not left.is_symlink() else left.unlink()
        yield
    finally:
        os.close(handle)
