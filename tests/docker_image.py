"""The image tests run in Docker, made of this machine's own Debian packages.

No network and no registry: the files of PACKAGES and of all they depend on, as dpkg knows them, go
into an archive and the daemon imports it. MAINSPRING_TEST_IMAGE names another image to use: one
with bash, git, tar and python3 that the daemon holds already. Imported by tests that need Docker.
"""

import io
import os
import re
import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Iterable
from functools import cache
from pathlib import PurePath

import docker
import pytest
from docker.errors import APIError, DockerException, ImageNotFound

VARIABLE = "MAINSPRING_TEST_IMAGE"
NAME = "mainspring-test"
PACKAGES = (
    *("base-files", "bash", "coreutils", "dash", "diffutils", "findutils", "git", "grep"),
    *("hostname", "libc-bin", "patch", "procps", "python3", "sed", "tar", "util-linux"),
)
NEEDED = frozenset({"bash", "dash", "git", "tar"})
LEFT_OUT = tuple(f"/usr/share/{folder}/" for folder in ("doc", "info", "locale", "man"))
FOLDERS = {"/tmp": 0o1777, "/var/tmp": 0o1777, "/root": 0o700}
FILES = {
    "/etc/passwd": "root:x:0:0:root:/root:/bin/bash\nnobody:x:65534:65534::/nonexistent:/bin/sh\n",
    "/etc/group": "root:x:0:\nnogroup:x:65534:\n",
}
_FIELDS = "${db:Status-Status}\t${Architecture}\t${Package}\t${binary:Package}\t${Provides}\t"
_DEPENDENCIES = "${Pre-Depends},${Depends}\n"
_PACKAGE_NAME = re.compile(r"\s*([a-z0-9][a-z0-9+.-]*)")


class CannotBuild(Exception):
    """This machine does not have what the image is made of."""


@cache
def base_image() -> str:
    """The image's name, once the daemon has it and can run it. Skips the test where it cannot."""
    named = os.environ.get(VARIABLE)
    name = named or NAME
    try:
        client = docker.from_env(timeout=60)
    except DockerException as error:
        pytest.skip(f"no Docker daemon answers: {error}")
    try:
        client.images.get(name)
    except ImageNotFound:
        if named:
            pytest.skip(f"Docker has no image {name} ({VARIABLE})")
        try:
            build(client, name)
        except CannotBuild as reason:
            pytest.skip(f"image {name} cannot be built: {reason}")
    try:
        _try_run(client, name)
    except APIError as error:
        pytest.skip(f"Docker cannot run a container with limits here: {error.explanation}")
    finally:
        client.close()
    return name


def build(client: docker.DockerClient, name: str) -> None:
    """Raises CannotBuild."""
    paths = list_files(find_installed(PACKAGES))
    with tempfile.NamedTemporaryFile(prefix="mainspring-image-") as file:
        with tarfile.open(fileobj=file, mode="w") as archive:
            write_archive(archive, paths)
        file.flush()
        said = client.api.import_image(src=file.name, repository=name)
    try:
        client.images.get(name)
    except ImageNotFound:
        raise CannotBuild(said) from None


def find_installed(packages: Iterable[str]) -> set[str]:
    """Those of `packages` that are installed, and all they depend on. Raises CannotBuild."""
    if shutil.which("dpkg-query") is None:
        raise CannotBuild("this machine has no dpkg, whose packages it is made of")
    native = _output("dpkg", "--print-architecture").strip()
    by_name: dict[str, str] = {}
    dependencies: dict[str, str] = {}
    for line in _output("dpkg-query", "-W", "-f", _FIELDS + _DEPENDENCIES).splitlines():
        status, architecture, package, full_name, provides, depends = line.split("\t")
        if status != "installed" or architecture not in (native, "all"):
            continue
        by_name[package] = full_name
        dependencies[full_name] = depends
        for virtual in provides.split(","):
            if match := _PACKAGE_NAME.match(virtual):
                by_name.setdefault(match[1], full_name)
    if missing := NEEDED - by_name.keys():
        raise CannotBuild(f"this machine lacks the packages {', '.join(sorted(missing))}")
    found: set[str] = set()
    wanted = {by_name[name] for name in packages if name in by_name}
    while wanted:
        full_name = wanted.pop()
        found.add(full_name)
        for clause in dependencies[full_name].split(","):
            names = [match[1] for each in clause.split("|") if (match := _PACKAGE_NAME.match(each))]
            wanted.update([by_name[name] for name in names if name in by_name][:1])
        wanted -= found
    return found


def list_files(packages: Iterable[str]) -> list[str]:
    """Real paths of what the packages consist of, folders before what they hold."""
    real_folder = cache(os.path.realpath)  # /bin/bash is /usr/bin/bash
    listed = {
        os.path.join(real_folder(os.path.dirname(path)), os.path.basename(path))
        for path in _output("dpkg-query", "--listfiles", *sorted(packages)).splitlines()
        if path.startswith("/") and path != "/."
    }
    # awk and the like: links that packages make when they are installed
    for alternative in os.scandir("/etc/alternatives"):
        if os.path.realpath(alternative.path) in listed:
            command = f"/usr/bin/{alternative.name}"
            if os.path.islink(command) and os.readlink(command) == alternative.path:
                listed |= {"/etc/alternatives", alternative.path, command}
    # /lib64 is a link here, so no package lists the folder it leads to.
    listed |= {str(folder) for path in listed for folder in PurePath(path).parents} - {"/"}
    return sorted(
        path
        for path in listed - FOLDERS.keys() - FILES.keys()
        if not path.startswith(LEFT_OUT)
        and (os.path.islink(path) or os.access(path, os.R_OK))  # without root not all is readable
    )


def write_archive(archive: tarfile.TarFile, paths: Iterable[str]) -> None:
    for path in paths:
        archive.add(path, recursive=False)
    for path, mode in FOLDERS.items():
        folder = tarfile.TarInfo(path.lstrip("/"))
        folder.type, folder.mode = tarfile.DIRTYPE, mode
        archive.addfile(folder)
    for path, text in FILES.items():
        file = tarfile.TarInfo(path.lstrip("/"))
        file.size = len(text)
        archive.addfile(file, io.BytesIO(text.encode()))


def _try_run(client: docker.DockerClient, name: str) -> None:
    """A daemon may answer and yet lack the cgroups its containers need."""
    container = client.containers.create(
        name, ["true"], network_mode="none", mem_limit="64m", pids_limit=16, nano_cpus=10**9
    )
    try:
        container.start()
        container.wait()
    finally:
        container.remove(force=True)


def _output(*command: str) -> str:
    environment = os.environ | {"LC_ALL": "C"}
    return subprocess.run(
        command, stdout=subprocess.PIPE, text=True, check=True, env=environment
    ).stdout
