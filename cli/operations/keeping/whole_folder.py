"""A folder that appears under its name only when it is complete: of archives and backups.

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
def whole_folder(folder: Path) -> Iterator[Path]:
    """Where to write; it becomes `folder` when the block ends, and goes away when it fails. Raises
    UsageError when `folder` holds something, ServiceError when the disk refuses."""
    folder = folder.absolute()
    partial = folder.with_name(f".{folder.name}.partial")
    try:
        _refuse_used(folder)
        folder.parent.mkdir(parents=True, exist_ok=True)
        with _owned(partial):
            try:
                yield partial
                _refuse_used(folder)
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


def _refuse_used(folder: Path) -> None:
    if folder.is_dir() and not any(folder.iterdir()):
        return
    if folder.exists() or folder.is_symlink():
        what = "is not empty" if folder.is_dir() else "is a file"
        raise UsageError(f"{folder} {what}", remedy="give a folder that is new or empty")


@contextmanager
def _owned(partial: Path) -> Iterator[None]:
    """An empty folder for this process alone; the lock dies with it."""
    partial.mkdir(mode=0o700, exist_ok=True)  # for its owner alone, as the store is
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
