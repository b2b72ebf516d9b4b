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

from infra.sandbox.protocol import (
    Sandbox,
    SandboxBackend,
    SandboxLost,
    SandboxRefused,
    SandboxSpec,
)
from mainspring.environments.protocol import CommandResult
from mainspring.errors import SandboxError
from mainspring.ids import SandboxId
from mainspring.tasks.sandbox_choice import BWRAP, DOCKER

OPENER = """
import asyncio, os, pathlib, signal, sys
sys.path[:0] = [{tests!r}, {root!r}]
from sandbox_backend import make_backend, make_spec
async def main():
    backend = make_backend({name!r}, pathlib.Path({state!r}))
    sandbox = await backend.open(make_spec({name!r}, "left/over"))
    result = await sandbox.run("t0", "sleep {marker} & echo up", 10)
    assert result.output == b"up\\n", result
    running = asyncio.create_task(sandbox.run("t1", {command!r}, 20))
    await asyncio.sleep(0.5)
    print("open", flush=True)
    {end}
asyncio.run(main())
"""
DIE = "os.kill(os.getpid(), signal.SIGKILL)"
SLOW = "echo ran >> /tmp/ran; sleep 1.5; wc -l < /tmp/ran"


def owner_of_a_sandbox(
    name: str, state: Path, marker: str, end: str, command: str = "true"
) -> subprocess.Popen[bytes]:
    """Another process that opened a sandbox, ran a turn in it, and is in the middle of the next."""
    script = OPENER.format(
        marker=marker,
        tests=str(Path(__file__).parent),
        root=str(Path(__file__).parents[2]),
        name=str(name),
        state=str(state),
        end=end,
        command=command,
    )
    owner = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE)
    assert owner.stdout is not None and owner.stdout.readline() == b"open\n"
    return owner


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
    if backend.name == DOCKER:
        client = docker.from_env()
        for container in client.containers.list(filters={"name": f"-{id}$"}):
            container.kill()
        client.close()
        return
    for process in psutil.Process().children():
        if process.name() == "bwrap" and any(id in part for part in process.cmdline()):
            process.children()[0].kill()


@pytest.mark.parametrize("end", [DIE, "await asyncio.sleep(99)"])
async def test_leftovers_are_found_and_removed(backend, tmp_path, end):
    """Also those of a process that still lives."""
    marker = f"{1000 + len(end)}.{os.getpid()}"
    with owner_of_a_sandbox(backend.name, tmp_path, marker, end) as owner:
        try:
            if end == DIE:
                assert owner.wait(120) == -signal.SIGKILL
            successor = make_backend(backend.name, tmp_path)
            assert await successor.list_open() == ["left/over"]
            assert SandboxId("left/over") not in await backend.list_open()
            await successor.remove(SandboxId("left/over"))
            assert await successor.list_open() == []
            await successor.remove(SandboxId("left/over"))
        finally:
            owner.kill()
    if backend.name == BWRAP:
        assert not [p for p in psutil.process_iter(["cmdline"]) if marker in str(p.info)]


async def test_a_sandbox_survives_its_owner(backend, tmp_path):
    """The turn in flight is not run again; those before it are remembered; daemons live on."""
    marker = f"1234.{os.getpid()}"
    with owner_of_a_sandbox(backend.name, tmp_path, marker, DIE, SLOW) as owner:
        assert owner.wait(120) == -signal.SIGKILL
    successor = make_backend(backend.name, tmp_path)
    spec = make_spec(backend.name, "left/over")
    sandbox = await successor.attach(spec, busy_s=20)
    in_flight = await sandbox.run("t1", SLOW, 20)
    assert (in_flight.output.strip(), in_flight.returncode) == (b"1", 0)
    assert 1.4 < in_flight.wall_s < 60
    assert (await sandbox.run("t1", SLOW, 20)).output.strip() == b"1"
    assert await output(sandbox, "grep -sla ^sleep /proc/[0-9]*/cmdline | wc -l") == b"1\n"
    await output(sandbox, "echo more >> README.md")
    assert b"+more" in await sandbox.diff()
    await sandbox.ping()
    await sandbox.close()
    assert await successor.list_open() == []


async def test_a_turn_whose_output_is_gone_is_not_run_again(backend, tmp_path):
    with owner_of_a_sandbox(backend.name, tmp_path, "1", DIE) as owner:
        assert owner.wait(120) == -signal.SIGKILL
    sandbox = await make_backend(backend.name, tmp_path).attach(
        make_spec(backend.name, "left/over"), busy_s=20
    )
    with pytest.raises(SandboxLost, match="t0"):
        await sandbox.run("t0", "touch /tmp/again", 20)
    assert (await run(sandbox, "ls /tmp/again")).returncode != 0
    await sandbox.close()


async def test_what_is_gone_cannot_be_attached(backend):
    with pytest.raises(SandboxLost, match="nobody"):
        await backend.attach(make_spec(backend.name, "nobody"), busy_s=1)


async def test_a_sandbox_gets_another_name(backend):
    sandbox = await backend.open(make_spec(backend.name, "warm-1"))
    await output(sandbox, "echo kept > /tmp/kept")
    renamed = await backend.rename(SandboxId("warm-1"), make_spec(backend.name, "new/name"))
    assert renamed.id == "new/name"
    assert await output(renamed, "cat /tmp/kept") == b"kept\n"
    assert SandboxId("new/name") in await backend.list_open()
    assert SandboxId("warm-1") not in await backend.list_open()
    await renamed.close()
    assert SandboxId("new/name") not in await backend.list_open()


async def test_without_a_word_from_its_node_a_sandbox_ends(backend, monkeypatch):
    monkeypatch.setattr("infra.sandbox.shell.channel.ORPHAN_S", 5)
    sandbox = await backend.open(make_spec(backend.name, "orphan"))
    for _ in range(3):
        await asyncio.sleep(2)
        await sandbox.ping()
    await asyncio.sleep(7)
    with pytest.raises(SandboxLost, match="orphan"):
        await run(sandbox, "true")
    await sandbox.close()


async def test_what_cannot_be_opened_says_why(backend):
    if backend.name == DOCKER:
        spec = SandboxSpec(SandboxId("x"), WORKDIR, image="mainspring.invalid/nothing:1")
        match = "mainspring.invalid/nothing:1"
    else:
        spec = SandboxSpec(SandboxId("x"), WORKDIR, files={"../x": ""})
        match = r"\.\./x"
    with pytest.raises(SandboxError, match=match) as refused:
        await backend.open(spec)
    assert refused.value.remedy or backend.name == BWRAP
    wrong = SandboxSpec(SandboxId("x"), WORKDIR, files=FILES) if spec.image else make_spec("x", "x")
    with pytest.raises(SandboxRefused, match="image"):
        await backend.open(wrong)
    nowhere = make_spec(backend.name, "nowhere")
    with pytest.raises(SandboxRefused, match="nowhere"):
        await backend.open(SandboxSpec(nowhere.id, "/proc/x", nowhere.image, nowhere.files))
    assert "x" not in await backend.list_open()
