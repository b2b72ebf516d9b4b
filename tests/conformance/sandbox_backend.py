"""The backends under test, the repository in their sandboxes, and how tests run commands.

Docker takes part when a daemon answers; tests/docker_image.py makes the image it runs.
"""

import io
import tarfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import docker
import pytest

from infra.sandbox.bubblewrap.backend import BwrapBackend
from infra.sandbox.containers.docker import DockerBackend
from infra.sandbox.protocol import (
    BackendUnavailable,
    Limits,
    Sandbox,
    SandboxSpec,
)
from mainspring.environments.protocol import CommandResult
from mainspring.ids import SandboxId
from mainspring.tasks.sandbox_choice import BWRAP
from tests.docker_image import base_image

FILES = {
    "README.md": "one\ntwo\nthree\n",
    "pkg/calc.py": "def add(a, b):\n    return a - b\n",
    "pkg/doomed.py": "x = 1\n",
    "pkg/moved.py": "".join(f"line {i}\n" for i in range(30)),
    "pkg/data.bin": "\0\1\2" * 100,
    "pkg/dos.txt": "one\r\ntwo\r\n",
    "tool.sh": "#!/bin/sh\necho tool\n",
    ".gitignore": "*.log\n",
}
WORKDIR = "/testbed"
LIMITS = Limits(memory_mb=512, max_pids=64, disk_mb=256, output_bytes=1 << 16)
IMAGE = "mainspring-conformance"


def make_backend(name: str, state: Path) -> BwrapBackend | DockerBackend:
    return BwrapBackend(state) if name == BWRAP else DockerBackend(state)


@asynccontextmanager
async def cleared(backend: BwrapBackend | DockerBackend) -> AsyncIterator[None]:
    """Whatever is open in `backend` is removed in the end. Skips where it cannot run."""
    try:
        await backend.probe()
    except BackendUnavailable as unavailable:
        pytest.skip(str(unavailable))
    yield
    for left in await backend.list_open():
        await backend.remove(left)


def make_spec(name: str, id: str, limits: Limits = LIMITS) -> SandboxSpec:
    if name == BWRAP:
        return SandboxSpec(SandboxId(id), WORKDIR, files=FILES, limits=limits)
    labels = {"mainspring.rollout": "r"}
    return SandboxSpec(SandboxId(id), WORKDIR, image=IMAGE, labels=labels, limits=limits)


def build_image() -> None:
    """The same repository as an image. Skips where that is impossible."""
    base = base_image()
    client = docker.from_env(timeout=60)
    recipe = (
        f"FROM {base}\nCOPY repository {WORKDIR}\nRUN cd {WORKDIR} && git init -q && git add -A "
        "&& git -c user.name=a -c user.email=b commit -qm base\n"
    )
    context = io.BytesIO()
    with tarfile.open(fileobj=context, mode="w") as archive:
        contents = {f"repository/{path}": text for path, text in FILES.items()}
        for path, text in {"Dockerfile": recipe, **contents}.items():
            member = tarfile.TarInfo(path)
            member.size = len(text)
            archive.addfile(member, io.BytesIO(text.encode()))
    context.seek(0)
    client.images.build(
        fileobj=context, custom_context=True, tag=IMAGE, network_mode="none", rm=True
    )
    client.close()


async def run(sandbox: Sandbox, command: str, timeout_s: float = 60) -> CommandResult:
    return await sandbox.run(f"t{time.monotonic_ns()}", command, timeout_s)


async def output(sandbox: Sandbox, command: str, timeout_s: float = 60) -> bytes:
    result = await run(sandbox, command, timeout_s)
    assert result.returncode == 0, result
    return result.output


class Reset:
    """A sandbox as a fresh one: its tree is clean, and it has run nothing yet."""

    def __init__(self, sandbox: Sandbox) -> None:
        self._sandbox = sandbox
        self.id = sandbox.id
        self.write_files = sandbox.write_files
        self.diff = sandbox.diff

    async def run(self, turn_id: str, command: str, timeout_s: float) -> CommandResult:
        return await run(self._sandbox, command, timeout_s)
