"""What every backend promises of opening, closing and losing sandboxes, tried on each."""

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import docker
import psutil
import pytest
from sandbox_backend import (
    FILES,
    WORKDIR,
    make_backend,
    make_spec,
    output,
    run,
)

from infra.sandbox.docker import ID_LABEL
from infra.sandbox.protocol import (
    CommandResult,
    Sandbox,
    SandboxBackend,
    SandboxLost,
    SandboxRefused,
    SandboxSpec,
)
from mainspring.ids import SandboxId
from mainspring.tasks import BackendName

OPENER = """
import asyncio, os, pathlib, signal, sys
sys.path[:0] = [{tests!r}, {root!r}]
from sandbox_backend import make_backend, make_spec
async def main():
    backend = make_backend({name!r}, pathlib.Path({state!r}))
    sandbox = await backend.open(make_spec({name!r}, "left/over"))
    result = await sandbox.run("t", "sleep {marker} & echo up", 10)
    assert result.output == b"up\\n", result
    {end}
asyncio.run(main())
"""


async def test_closing_twice_and_using_after(backend):
    sandbox = await backend.open(make_spec(backend.name, "brief"))
    assert SandboxId("brief") in await backend.list_open()
    running = asyncio.create_task(sandbox.run("t", "sleep 100", 200))
    await asyncio.sleep(0.3)
    await sandbox.close()
    await sandbox.close()
    with pytest.raises(SandboxLost, match="brief"):
        await running
    for use in (sandbox.run("u", "true", 5), sandbox.diff(), sandbox.write_files({"a": b""})):
        with pytest.raises(SandboxLost, match="closed"):
            await use
    assert SandboxId("brief") not in await backend.list_open()
    await backend.remove(SandboxId("brief"))


async def test_opening_again_replaces(backend):
    first = await backend.open(make_spec(backend.name, "again"))
    await output(first, "echo changed > README.md")
    second, third = await asyncio.gather(
        backend.open(make_spec(backend.name, "again")),
        backend.open(make_spec(backend.name, "again")),
    )
    with pytest.raises(SandboxLost):
        await run(first, "true")
    alive = [s for s in (second, third) if not isinstance(await _try(s), SandboxLost)]
    assert len(alive) == 1
    assert await output(alive[0], "head -1 README.md") == b"one\n"
    assert (await backend.list_open()).count(SandboxId("again")) == 1
    await first.close()
    assert await output(alive[0], "head -1 README.md") == b"one\n"
    await alive[0].close()


async def _try(sandbox: Sandbox) -> CommandResult | SandboxLost:
    try:
        return await run(sandbox, "true")
    except SandboxLost as lost:
        return lost


async def test_a_sandbox_killed_from_outside_is_lost(backend):
    sandbox = await backend.open(make_spec(backend.name, "victim"))
    running = asyncio.create_task(sandbox.run("t", "sleep 100", 200))
    await asyncio.sleep(0.3)
    await asyncio.to_thread(kill_from_outside, backend, "victim")
    with pytest.raises(SandboxLost, match="victim"):
        await running
    with pytest.raises(SandboxLost, match="open it again"):
        await run(sandbox, "true")
    await sandbox.close()


def kill_from_outside(backend: SandboxBackend, id: str) -> None:
    if backend.name == BackendName.DOCKER:
        client = docker.from_env()
        for container in client.containers.list(filters={"label": f"{ID_LABEL}={id}"}):
            container.kill()
        client.close()
        return
    for process in psutil.Process().children():
        if process.name() == "bwrap" and any(id in part for part in process.cmdline()):
            process.children()[0].kill()


@pytest.mark.parametrize("end", ["os.kill(os.getpid(), signal.SIGKILL)", "await asyncio.sleep(99)"])
async def test_leftovers_are_found_and_removed(backend, tmp_path, end):
    """Also those of a process that still lives."""
    marker = f"{1000 + len(end)}.{os.getpid()}"
    script = OPENER.format(
        marker=marker,
        tests=str(Path(__file__).parent),
        root=str(Path(__file__).parents[2]),
        name=str(backend.name),
        state=str(tmp_path),
        end=f"print('open', flush=True); {end}",
    )
    with subprocess.Popen(  # noqa: ASYNC220
        [sys.executable, "-c", script], stdout=subprocess.PIPE
    ) as owner:
        assert owner.stdout is not None and owner.stdout.readline() == b"open\n"
        try:
            if "SIGKILL" in end:
                assert owner.wait(10) == -signal.SIGKILL
            successor = make_backend(backend.name, tmp_path)
            assert await successor.list_open() == ["left/over"]
            assert SandboxId("left/over") not in await backend.list_open()
            await successor.remove(SandboxId("left/over"))
            assert await successor.list_open() == []
            await successor.remove(SandboxId("left/over"))
        finally:
            owner.kill()
    if backend.name == BackendName.BWRAP:
        assert not [p for p in psutil.process_iter(["cmdline"]) if marker in str(p.info)]


async def test_what_cannot_be_opened_says_why(backend):
    if backend.name == BackendName.DOCKER:
        spec = SandboxSpec(SandboxId("x"), WORKDIR, image="mainspring.invalid/nothing:1")
        match = "mainspring.invalid/nothing:1"
    else:
        spec = SandboxSpec(SandboxId("x"), WORKDIR, files={"../x": ""})
        match = r"\.\./x"
    with pytest.raises(SandboxRefused, match=match) as refused:
        await backend.open(spec)
    assert refused.value.remedy or backend.name == BackendName.BWRAP
    wrong = SandboxSpec(SandboxId("x"), WORKDIR, files=FILES) if spec.image else make_spec("x", "x")
    with pytest.raises(SandboxRefused, match="image"):
        await backend.open(wrong)
    nowhere = make_spec(backend.name, "nowhere")
    with pytest.raises(SandboxRefused, match="nowhere"):
        await backend.open(SandboxSpec(nowhere.id, "/proc/x", nowhere.image, nowhere.files))
    assert "x" not in await backend.list_open()
