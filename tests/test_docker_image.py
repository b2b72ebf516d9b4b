"""The image made of this machine's packages: whole, small, and runnable."""

import shutil
import tarfile
import time
from pathlib import Path

import docker
import pytest

from tests import docker_image

MAX_BYTES = 400_000_000
PROGRAMS = "bash sh git tar patch python3 awk sed grep find ps diff nl timeout setsid hostname"
needs_dpkg = pytest.mark.skipif(shutil.which("dpkg-query") is None, reason="no dpkg here")


@pytest.fixture(scope="module")
def paths() -> list[str]:
    try:
        return docker_image.list_files(docker_image.find_installed(docker_image.PACKAGES))
    except docker_image.CannotBuild as reason:
        pytest.skip(str(reason))


def test_files_are_the_closure_and_no_more(paths: list[str]) -> None:
    found = set(paths)
    assert {"/usr/bin/bash", "/usr/bin/git", "/usr/bin/awk"} <= found
    assert any(path.endswith("/libc.so.6") for path in paths)
    assert paths == sorted(found), "folders come before what they hold"
    assert {str(Path(path).parent) for path in found} - docker_image.FOLDERS.keys() <= found | {"/"}
    size = sum(path.lstat().st_size for path in map(Path, paths) if path.is_file())
    assert size < MAX_BYTES
    assert not any(path.startswith(("/usr/local/", "/home/")) for path in paths)


@needs_dpkg
def test_a_package_that_is_needed_and_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(docker_image, "NEEDED", frozenset({"bash", "no-such-package"}))
    with pytest.raises(docker_image.CannotBuild, match="no-such-package"):
        docker_image.find_installed(["bash"])


def test_a_machine_without_dpkg_is_told_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(docker_image.CannotBuild, match="dpkg"):
        docker_image.find_installed(["bash"])


def test_archive_has_what_packages_make_when_installed(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "a.tar", "w") as archive:
        docker_image.write_archive(archive, [])
    with tarfile.open(tmp_path / "a.tar") as archive:
        assert archive.getmember("tmp").mode == 0o1777
        assert archive.extractfile("etc/passwd").read().startswith(b"root:")


@pytest.mark.docker
def test_it_is_built_quickly_and_runs() -> None:
    docker_image.base_image()  # skips where there is no Docker
    client = docker.from_env(timeout=60)
    name = "mainspring-test-built"
    started = time.monotonic()
    docker_image.build(client, name)
    wall_s = time.monotonic() - started
    try:
        program = f"for each in {PROGRAMS}; do command -v $each || echo no $each; done"
        check = f"set -e; {program}; cd /tmp; git init -q .; python3 -c 'import json, ssl, sqlite3'"
        said = client.containers.run(name, ["bash", "-c", check], network_mode="none", remove=True)
        assert b"no " not in said
        assert client.images.get(name).attrs["Size"] < MAX_BYTES
        assert wall_s < 60
    finally:
        client.images.remove(name, force=True)
        client.close()
