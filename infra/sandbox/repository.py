"""Git repositories of tasks without an image: prepared once per content, copied per sandbox.

Owns a bounded directory of prepared repositories. Invariants: the same files give the same commit
id everywhere and for ever (fixed author and dates), so a replayed `git log` reads the same; an
entry appears complete or not at all, whoever else prepares it; what a sandbox may write is a copy,
what it only reads (`base`) may share storage with the entry. Imported by the bubblewrap backend.
"""

import hashlib
import os
import shutil
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path

from infra.sandbox.live import check_path
from mainspring.errors import SandboxError

MAX_ENTRIES = 4096
"""About 50 KB each for small tasks; the least recently used tenth goes when there are more."""
FILE_TIME_S = 1_577_836_800
"""2020-01-01: every file's mtime, so that listings do not differ between sandboxes."""

COMMIT_SCRIPT = """
set -e
export GIT_AUTHOR_DATE=2020-01-01T00:00:00Z GIT_COMMITTER_DATE=2020-01-01T00:00:00Z
git -c init.defaultBranch=main init -q --template=
git add -A -f .
git -c core.logAllRefUpdates=false commit -q --no-verify --allow-empty -m 'Base commit'
git repack -adq
rm -f .git/COMMIT_EDITMSG
"""
"""Run with bash in the directory that holds the files."""


class RepositoryCache:
    """`commit(directory)` runs COMMIT_SCRIPT there, isolated; blocking, like everything here."""

    def __init__(self, directory: Path, commit: Callable[[Path], None]) -> None:
        self._directory = directory
        self._commit = commit
        directory.mkdir(parents=True, exist_ok=True)

    def copy(self, files: Mapping[str, str], work: Path, base: Path, owner: int | None) -> None:
        """Fill `work` (the working tree with .git) and `base` (a git directory for the patch).

        `work` is given to user `owner`. Raises SandboxRefused for paths outside the tree.
        """
        for _ in range(3):
            entry = self._prepared(files)
            try:
                _copy_tree(entry, work, owner)
                _link_tree(entry / ".git", base)
                return
            except FileNotFoundError:  # evicted meanwhile by another opening
                shutil.rmtree(work)
                shutil.rmtree(base)
                work.mkdir()
                base.mkdir()
        raise SandboxError(f"{entry}: prepared repositories keep disappearing while being copied")

    def _prepared(self, files: Mapping[str, str]) -> Path:
        digest = hashlib.sha256()
        for path, content in sorted(files.items()):
            raw = content.encode(errors="surrogateescape")
            digest.update(f"{len(path)} {path} {len(raw)} ".encode(errors="surrogateescape"))
            digest.update(raw)
        entry = self._directory / digest.hexdigest()
        try:
            os.utime(entry)
        except FileNotFoundError:
            self._prepare(files, entry)
        return entry

    def _prepare(self, files: Mapping[str, str], entry: Path) -> None:
        self._evict()
        building = self._directory / f"new-{uuid.uuid4().hex}"
        building.mkdir()
        try:
            for path, content in files.items():
                target = building / check_path(path)
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(content.encode(errors="surrogateescape"))
            self._commit(building)
            building.rename(entry)
        except OSError:
            if not entry.exists():  # nobody else was faster: a real failure
                raise
        finally:
            shutil.rmtree(building, ignore_errors=True)

    def _evict(self) -> None:
        entries = [path for path in self._directory.iterdir() if not path.name.startswith("new-")]
        if len(entries) < MAX_ENTRIES:
            return
        entries.sort(key=_used_at)
        for entry in entries[: MAX_ENTRIES // 10]:
            shutil.rmtree(entry, ignore_errors=True)


def _used_at(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except FileNotFoundError:
        return 0.0


def _copy_tree(source: Path, target: Path, owner: int | None) -> None:
    """Regular files and directories; the entry holds nothing else."""
    with os.scandir(source) as entries:
        for entry in entries:
            copied = target / entry.name
            if entry.is_dir(follow_symlinks=False):
                copied.mkdir()
                _copy_tree(Path(entry.path), copied, owner)
            else:
                shutil.copyfile(entry.path, copied)
                copied.chmod(0o644)
                os.utime(copied, (FILE_TIME_S, FILE_TIME_S))
                if owner is not None:
                    os.chown(copied, owner, owner)
    target.chmod(0o755)
    if owner is not None:
        os.chown(target, owner, owner)
    os.utime(target, (FILE_TIME_S, FILE_TIME_S))


def _link_tree(source: Path, target: Path) -> None:
    """Like _copy_tree, for a tree nobody will write."""
    with os.scandir(source) as entries:
        for entry in entries:
            linked = target / entry.name
            if entry.is_dir(follow_symlinks=False):
                linked.mkdir()
                _link_tree(Path(entry.path), linked)
            else:
                os.link(entry.path, linked)
