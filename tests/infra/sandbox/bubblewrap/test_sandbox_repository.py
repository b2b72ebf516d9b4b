"""Prepared repositories: the same everywhere, complete at once, bounded."""

import asyncio
import os
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from infra.sandbox.bubblewrap import repository
from infra.sandbox.bubblewrap.repository import COMMIT_SCRIPT, RepositoryCache
from infra.sandbox.protocol import SandboxRefused

NO_HOMES = Path("/no/homes")
IDENTITY = (
    "export GIT_AUTHOR_NAME=A GIT_AUTHOR_EMAIL=a@b GIT_COMMITTER_NAME=A GIT_COMMITTER_EMAIL=a@b\n"
)


def commit(directory: Path) -> None:
    subprocess.run(["bash", "-c", IDENTITY + COMMIT_SCRIPT], cwd=directory, check=True)


def git(directory: Path, *arguments: str) -> str:
    return subprocess.check_output(["git", "-C", directory, *arguments], text=True)


def test_the_same_files_are_the_same_commit(tmp_path):
    files = {"b.txt": "b\n", "sub/a.txt": "a\n", ".gitignore": "*.txt\n"}
    first = RepositoryCache(tmp_path / "1", commit, NO_HOMES).prepare(files)
    second = RepositoryCache(tmp_path / "2", commit, NO_HOMES).prepare(
        dict(reversed(files.items()))
    )
    assert first.name == second.name
    assert git(first, "rev-parse", "HEAD") == git(second, "rev-parse", "HEAD")
    assert git(first, "status", "--short") == ""
    assert git(first, "ls-files").split() == [".gitignore", "b.txt", "sub/a.txt"]
    assert RepositoryCache(tmp_path / "1", commit, NO_HOMES).find(files) == first
    assert RepositoryCache(tmp_path / "1", commit, NO_HOMES).find({"b.txt": "b"}) is None


def test_executables_are_committed_as_such_and_are_another_repository(tmp_path):
    cache = RepositoryCache(tmp_path, commit, NO_HOMES)
    files = {"tool": "#!/bin/sh\n", "b.txt": "b"}
    plain, marked = cache.prepare(files), cache.prepare(files, ("tool",))
    assert plain != marked and cache.find(files, ("tool",)) == marked
    assert cache.find(files, ("absent",)) == plain == cache.find(files)
    assert git(marked, "ls-files", "-s", "tool").startswith("100755 ")
    assert git(marked, "status", "--short") == ""


def test_files_and_contents_cannot_be_confused(tmp_path):
    cache = RepositoryCache(tmp_path, commit, NO_HOMES)
    assert cache.prepare({"a": "1 b 1 2"}) != cache.prepare({"a": "1", "b": "2"})


def test_prepared_by_many_at_once(tmp_path):
    cache = RepositoryCache(tmp_path, commit, NO_HOMES)
    with ThreadPoolExecutor(8) as threads:
        entries = list(threads.map(cache.prepare, [{"a": "x"}] * 8))
    assert len(set(entries)) == 1
    assert [path.name for path in tmp_path.iterdir()] == [entries[0].name]
    assert git(entries[0], "log", "--format=%s") == "Base commit\n"


def test_the_least_recently_used_go(tmp_path, monkeypatch):
    monkeypatch.setattr(repository, "MAX_ENTRIES", 10)
    cache = RepositoryCache(tmp_path, lambda directory: None, NO_HOMES)
    for i in range(10):
        cache.prepare({"a": str(i)})
        cache.find({"a": str(i)})
    cache.find({"a": "0"})
    cache.prepare({"a": "new"})
    assert len(list(tmp_path.iterdir())) == 10
    assert cache.find({"a": "0"}) and cache.find({"a": "1"}) is None


def test_one_that_a_sandbox_began_with_stays(tmp_path, monkeypatch):
    monkeypatch.setattr(repository, "MAX_ENTRIES", 10)
    entries, home = tmp_path / "entries", tmp_path / "homes" / "=sandbox"
    home.mkdir(parents=True)
    (home / "run").mkdir()
    cache = RepositoryCache(entries, commit, home.parent)
    lent = cache.prepare({"a": "0"})
    cache.lend(lent, home, None)
    for i in range(1, 30):
        os.utime(cache.prepare({"a": str(i)}))
    assert lent.exists()
    shutil.rmtree(home)
    for i in range(30, 60):
        os.utime(cache.prepare({"a": str(i)}))
    assert not lent.exists()


@pytest.mark.parametrize("path", ["../a", "/a", "a/../../b", ".git/hooks/pre-commit", "", "a\0"])
def test_paths_outside_the_tree_are_refused(tmp_path, path):
    with pytest.raises(SandboxRefused):
        RepositoryCache(tmp_path, commit, NO_HOMES).prepare({path: "x"})
    assert list(tmp_path.iterdir()) == []


async def test_a_file_that_is_also_a_directory(tmp_path):
    with pytest.raises(OSError, match="a"):
        await asyncio.to_thread(
            RepositoryCache(tmp_path, commit, NO_HOMES).prepare, {"a": "x", "a/b": "y"}
        )


def test_a_commit_keeps_its_id_over_releases(tmp_path):
    """Replayed commands print it: another id would be a divergence."""
    entry = RepositoryCache(tmp_path, commit, NO_HOMES).prepare({"a.txt": "a\n"})
    assert git(entry, "rev-parse", "HEAD").strip() == "7e8d23007a753f4c7a6efb1f93c91e21c34b3cbc"
