"""A sandbox reads and runs what a folder of the node has, and cannot change it, on each backend."""

import asyncio
import dataclasses
import os
import signal
import sys
from pathlib import Path

import pytest
from sandbox_backend import make_backend, make_spec, output, run

from infra.sandbox.protocol import SandboxRefused, SandboxSpec
from mainspring.errors import SandboxError
from mainspring.programs.profile import BUNDLES

HERE = Path(__file__).parent
INSIDE = f"{BUNDLES}/tool-1.0"
OWNER = """
import asyncio, os, pathlib, signal, sys
sys.path[:0] = {paths!r}
from test_sandbox_mounts import make_backend, mounted
async def main():
    backend = make_backend({name!r}, pathlib.Path({state!r}))
    await backend.open(mounted({name!r}, "kept", pathlib.Path({folder!r})))
    os.kill(os.getpid(), signal.SIGKILL)
asyncio.run(main())
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "tool"
    made.mkdir()
    (made / "hello").write_text("#!/bin/sh\necho hello from $0\n")
    (made / "hello").chmod(0o4755)
    return made


def mounted(name: str, id: str, folder: Path) -> SandboxSpec:
    return dataclasses.replace(make_spec(name, id), mounts={INSIDE: folder})


async def test_it_can_be_read_and_run_and_not_changed(backend, folder: Path) -> None:
    sandbox = await backend.open(mounted(backend.name, "mounted", folder))
    try:
        assert await output(sandbox, f"{INSIDE}/hello") == f"hello from {INSIDE}/hello\n".encode()
        for change in (
            f"touch {INSIDE}/more",
            f"rm -f {INSIDE}/hello",
            f"chmod 755 {INSIDE}/hello",
        ):
            assert (await run(sandbox, change)).returncode != 0
        assert [path.name for path in folder.iterdir()] == ["hello"]
        assert await sandbox.diff() == b""
        (folder / "hello").write_text("#!/bin/sh\necho " + "x" * 100_000)
        packed = await sandbox.snapshot("none", 1 << 20)
        assert packed is None or b"hello" not in packed
    finally:
        await sandbox.close()
    assert os.listdir(folder) == ["hello"]


async def test_a_snapshot_is_put_back_beside_it(backend, folder: Path) -> None:
    sandbox = await backend.open(mounted(backend.name, "before", folder))
    await sandbox.run("t1", "echo more >> README.md", 60)
    packed = await sandbox.snapshot("t1", 1 << 24)
    await sandbox.close()
    assert packed is not None
    other = await backend.open(mounted(backend.name, "after", folder))
    await other.restore(packed)
    assert await output(other, f"tail -n 1 README.md; {INSIDE}/hello | cut -c 1-5") == (
        b"more\nhello\n"
    )
    await other.close()


async def test_it_is_there_for_the_next_process(backend, folder: Path, tmp_path: Path) -> None:
    program = OWNER.format(
        paths=[str(HERE), str(HERE.parents[1])],
        name=backend.name,
        state=str(tmp_path / "state"),
        folder=str(folder),
    )
    owner = await asyncio.create_subprocess_exec(sys.executable, "-c", program)
    assert await owner.wait() == -signal.SIGKILL
    successor = make_backend(backend.name, tmp_path / "state")
    sandbox = await successor.attach(mounted(backend.name, "kept", folder), busy_s=1)
    assert (await output(sandbox, f"{INSIDE}/hello")).startswith(b"hello")
    await sandbox.close()


async def test_what_cannot_be_mounted_is_refused(backend, folder: Path) -> None:
    spec = make_spec(backend.name, "refused")
    for inside in ("/", "/testbed/tool", "/tmp/tool", "/usr/tool", "opt", "/opt/../etc", "/opt/"):
        with pytest.raises(SandboxRefused, match="nothing can be mounted"):
            await backend.open(dataclasses.replace(spec, mounts={inside: folder}))
    with pytest.raises(SandboxError, match="no folder of this node"):
        await backend.open(mounted(backend.name, "missing", folder / "missing"))
    assert not [id for id in await backend.list_open() if id in ("refused", "missing")]
