"""Git repositories of tasks without an image: prepared once per content, copied per sandbox.

Owns a bounded directory of prepared repositories. Invariants: the same files give the same commit
id everywhere and always (fixed author and dates), so a replayed `git log` reads the same; an
entry appears complete or not at all, even when others prepare it too; it is removed only after the
last sandbox that began with it, whose patches are made against it. Imported by the bubblewrap
backend.
"""

import contextlib
import hashlib
import os
import shutil
import uuid
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path

from infra.sandbox.session import check_path
from mainspring.artifacts.program_files import program

MAX_ENTRIES = 4096
"""About 50 KB each for small tasks; the least recently used tenth goes when there are more."""
LENT = "prepared"
"""Link in a sandbox's directory to the entry that it began with."""
FILE_TIME_S = 1_577_836_800
"""2020-01-01: every file's mtime, so that listings do not differ between sandboxes."""

COMMIT_SCRIPT = program(__file__, "commit.sh")
"""Run with bash in the directory that holds the files."""


class RepositoryCache:
    """`commit(directory)` runs COMMIT_SCRIPT there, isolated; blocking, like everything here.
    `homes` has the directory of each sandbox of this node."""

    def __init__(self, directory: Path, commit: Callable[[Path], None], homes: Path) -> None:
        self._directory = directory
        self._commit = commit
        self._homes = homes
        directory.mkdir(parents=True, exist_ok=True)

    def find(self, files: Mapping[str, str], executables: Collection[str] = ()) -> Path | None:
        entry = self._entry(files, executables)
        try:
            os.utime(entry)  # the time of last use, for eviction
        except FileNotFoundError:
            return None
        return entry

    def prepare(self, files: Mapping[str, str], executables: Collection[str] = ()) -> Path:
        """A directory with `files` and their `.git`. Raises SandboxRefused for bad paths."""
        entry = self._entry(files, executables)
        self._evict()
        building = self._directory / f"new-{uuid.uuid4().hex}"
        building.mkdir()
        try:
            for path, content in files.items():
                target = building / check_path(path)
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(content.encode(errors="surrogateescape"))
            marked = {building / path for path in executables if path in files}
            for path in (building, *building.rglob("*")):
                path.chmod(0o755 if path.is_dir() or path in marked else 0o644)
                os.utime(path, (FILE_TIME_S, FILE_TIME_S))
            self._commit(building)
            os.utime(building, (FILE_TIME_S, FILE_TIME_S))
            building.rename(entry)
        except OSError:
            if not entry.exists():  # no other process was faster: a real failure
                raise
        finally:
            shutil.rmtree(building, ignore_errors=True)
        return entry

    def lend(self, entry: Path, home: Path, uid: int | None) -> None:
        """Keep `entry` until `home` is removed. shell.sh finds there what it writes of its own: an
        index and objects, which belong to `uid`."""
        (home / LENT).symlink_to(entry)
        objects, index = home / "run" / "objects", home / "run" / "index"
        objects.mkdir()
        shutil.copyfile(entry / ".git" / "index", index)
        shutil.copystat(entry / ".git" / "index", index)  # git compares its time with the files'
        if uid is not None:
            os.chown(objects, uid, uid)
            os.chown(index, uid, uid)

    def _lent(self) -> set[str]:
        lent: set[str] = set()
        for link in self._homes.glob(f"*/{LENT}"):
            with contextlib.suppress(FileNotFoundError):  # removed meanwhile
                lent.add(link.readlink().name)
        return lent

    def _entry(self, files: Mapping[str, str], executables: Collection[str]) -> Path:
        digest = hashlib.sha256()
        for path, content in sorted(files.items()):
            raw = content.encode(errors="surrogateescape")
            digest.update(f"{len(path)} {path} {len(raw)} ".encode(errors="surrogateescape"))
            digest.update(raw)
        for path in sorted(files.keys() & set(executables)):
            digest.update(f"{len(path)} {path} x ".encode(errors="surrogateescape"))
        return self._directory / digest.hexdigest()

    def _evict(self) -> None:
        entries = [path for path in self._directory.iterdir() if not path.name.startswith("new-")]
        if len(entries) < MAX_ENTRIES:
            return
        lent = self._lent()
        unused = sorted((path for path in entries if path.name not in lent), key=_used_at)
        for entry in unused[: MAX_ENTRIES // 10]:
            shutil.rmtree(entry, ignore_errors=True)


def has_rules(paths: Iterable[str]) -> bool:
    """Whether git takes one of these files for rules."""
    return any(path.endswith((".gitignore", ".gitattributes")) for path in paths)


def _used_at(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except FileNotFoundError:
        return 0.0
