"""What every sandbox backend promises (infra/sandbox/protocol.py), tried on each that runs here.

Docker takes part when a daemon answers and holds the image MAINSPRING_TEST_IMAGE names (default
"mainspring-test"): any image with bash, git and tar.
"""

import asyncio
import io
import os
import signal
import subprocess
import sys
import tarfile
import time
from pathlib import Path

import docker
import psutil
import pytest
from docker.errors import DockerException, ImageNotFound

from infra.sandbox.bwrap import BwrapBackend
from infra.sandbox.docker import ID_LABEL, DockerBackend
from infra.sandbox.live import PatchRefused
from infra.sandbox.protocol import (
    BackendUnavailable,
    CommandResult,
    Limits,
    Sandbox,
    SandboxBackend,
    SandboxLost,
    SandboxRefused,
    SandboxSpec,
)
from mainspring.ids import SandboxId
from mainspring.tasks import BackendName

FILES = {
    "README.md": "one\ntwo\nthree\n",
    "pkg/calc.py": "def add(a, b):\n    return a - b\n",
    "pkg/doomed.py": "x = 1\n",
    "pkg/moved.py": "".join(f"line {i}\n" for i in range(30)),
    "tool.sh": "#!/bin/sh\necho tool\n",
    ".gitignore": "*.log\n",
}
WORKDIR = "/testbed"
LIMITS = Limits(memory_mb=512, max_pids=64, disk_mb=256, output_bytes=1 << 16)
IMAGE = "mainspring-conformance"
OPENER = """
import asyncio, os, pathlib, signal, sys
sys.path[:0] = [{tests!r}, {root!r}]
from test_sandbox_backends import make_backend, make_spec
async def main():
    backend = make_backend({name!r}, pathlib.Path({state!r}))
    sandbox = await backend.open(make_spec({name!r}, "left/over"))
    result = await sandbox.run("t", "sleep {marker} & echo up", 10)
    assert result.output == b"up\\n", result
    {end}
asyncio.run(main())
"""


def make_backend(name: str, state: Path) -> BwrapBackend | DockerBackend:
    return BwrapBackend(state) if name == BackendName.BWRAP else DockerBackend(state)


def make_spec(name: str, id: str, limits: Limits = LIMITS) -> SandboxSpec:
    if name == BackendName.BWRAP:
        return SandboxSpec(SandboxId(id), WORKDIR, files=FILES, limits=limits)
    labels = {"mainspring.rollout": "r"}
    return SandboxSpec(SandboxId(id), WORKDIR, image=IMAGE, labels=labels, limits=limits)


def build_image() -> None:
    """The same repository as an image. Skips where that is impossible."""
    base = os.environ.get("MAINSPRING_TEST_IMAGE", "mainspring-test")
    try:
        client = docker.from_env(timeout=60)
        client.images.get(base)
    except ImageNotFound:
        pytest.skip(f"Docker has no image {base} (MAINSPRING_TEST_IMAGE)")
    except DockerException as error:
        pytest.skip(f"no Docker daemon answers: {error}")
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


@pytest.fixture(scope="module", params=["bwrap", pytest.param("docker", marks=pytest.mark.docker)])
async def backend(request, tmp_path_factory):
    if request.param == BackendName.DOCKER:
        build_image()
    backend = make_backend(request.param, tmp_path_factory.mktemp("sandboxes"))
    try:
        await backend.probe()
    except BackendUnavailable as unavailable:
        pytest.skip(str(unavailable))
    yield backend
    for left in await backend.list_open():
        await backend.remove(left)


@pytest.fixture(scope="module")
async def shared(backend):
    """For tests that leave no trace in the sandbox."""
    sandbox = await backend.open(make_spec(backend.name, "shared"))
    yield sandbox
    await sandbox.close()


@pytest.fixture
async def fresh(backend, request):
    sandbox = await backend.open(make_spec(backend.name, request.node.name))
    yield sandbox
    await sandbox.close()


async def run(sandbox: Sandbox, command: str, timeout_s: float = 20) -> CommandResult:
    return await sandbox.run(f"t{time.monotonic_ns()}", command, timeout_s)


async def output(sandbox: Sandbox, command: str, timeout_s: float = 20) -> bytes:
    result = await run(sandbox, command, timeout_s)
    assert result.returncode == 0, result
    return result.output


@pytest.mark.parametrize(
    ("command", "returncode"),
    [
        ("true", 0),
        ("false", 1),
        ("exit 3", 3),
        ("kill -TERM $$", 143),
        ("kill -9 $$", 137),
        ("no-such-program-here", 127),
        ("if", 2),
        ("", 0),
        ("echo hidden; exit 255", 255),
    ],
)
async def test_exit_codes(shared, command, returncode):
    result = await run(shared, command)
    assert (result.returncode, result.timed_out) == (returncode, False)


async def test_output_is_interleaved_as_written(shared):
    command = "for i in 1 2 3; do echo out$i; echo err$i >&2; done; echo last > /dev/stderr"
    expected = b"out1\nerr1\nout2\nerr2\nout3\nerr3\nlast\n"
    assert await output(shared, command) == expected


async def test_any_bytes_pass_in_and_out(shared):
    assert await output(shared, r"printf '\000\377\n\001'") == b"\x00\xff\n\x01"
    assert await output(shared, "printf '%s' 'caf\u00e9 \udcff'") == b"caf\xc3\xa9 \xff"
    assert await output(shared, "printf '%s' 'a\0b'; echo \"'\"") == b"ab'\n"
    assert (await run(shared, "echo '\ud800'")).output == b"?\n"
    long = "x" * 300_000
    assert await output(shared, f"x={long}; echo ${{#x}}") == b"300000\n"


async def test_here_documents_and_sentinel_like_text(shared):
    command = "cat <<'EOF'\nreply 0\n}\nEOF\ncat <<EOF\n$((1 + 1))\nEOF"
    assert await output(shared, command) == b"reply 0\n}\n2\n"


async def test_commands_share_nothing_but_files(shared):
    await output(shared, "cd /; export LEAK=1; leak=2; set -e; alias ls=false; umask 077")
    assert await output(shared, 'echo "$PWD $LEAK$leak $-"; umask') == b"/testbed  hBc\n0022\n"
    assert await output(shared, "echo ${NONCE-unset} ${RUN-unset}") == b"unset unset\n"
    assert await output(shared, "cat; readlink /proc/self/fd/0") == b"/dev/null\n"
    open_files = "for fd in {0..30}; do [ ! -e /proc/$$/fd/$fd ] || echo -n $fd; done"
    assert await output(shared, open_files) == b"012"


async def test_a_timeout_kills_the_whole_group(fresh):
    command = "echo begun; (sleep 987 & sleep 986); echo never"
    result = await run(fresh, command, 0.5)
    assert (result.returncode, result.timed_out, result.output) == (-1, True, b"begun\n")
    assert 0.5 <= result.wall_s < 5
    assert await output(fresh, "grep -l 98[67] /proc/[0-9]*/cmdline || echo none") == b"none\n"


async def test_a_stubborn_command_is_killed_too(shared):
    result = await run(shared, "trap '' TERM INT HUP; while :; do sleep 0.05; done", 0.3)
    assert result.timed_out
    assert (await run(shared, "kill -STOP $$", 0.5)).returncode != 0


async def test_long_output_keeps_head_and_tail(fresh):
    command = "head -c 50000000 /dev/zero | tr '\\0' x; echo; echo the end"
    result = await run(fresh, command, 60)
    assert (result.returncode, result.truncated) == (0, True)
    assert len(result.output) == LIMITS.output_bytes
    assert result.output.startswith(b"xxx") and result.output.endswith(b"x\nthe end\n")
    assert b"cut here" in result.output
    whole = await run(fresh, f"head -c {LIMITS.output_bytes} /dev/zero")
    assert (whole.output, whole.truncated) == (bytes(LIMITS.output_bytes), False)
    assert await output(fresh, "echo clean") == b"clean\n"


async def test_endless_output_ends_with_its_timeout(shared):
    result = await run(shared, "yes", 1)
    assert result.timed_out and result.truncated
    assert await output(shared, "echo fine") == b"fine\n"


async def test_a_turn_runs_once(fresh):
    count = "echo ran >> /tmp/count; wc -l < /tmp/count"
    first = await fresh.run("once", count, 20)
    assert await fresh.run("once", count, 20) == first
    assert first.output.strip() == b"1"
    slow = "sleep 0.3; echo ran >> /tmp/slow; wc -l < /tmp/slow"
    both = await asyncio.gather(fresh.run("slow", slow, 20), fresh.run("slow", slow, 20))
    assert both[0] == both[1] and both[0].output.strip() == b"1"


async def test_a_cancelled_caller_reattaches(fresh):
    command = "echo ran >> /tmp/count; sleep 0.5; wc -l < /tmp/count"
    attempt = asyncio.create_task(fresh.run("turn", command, 20))
    await asyncio.sleep(0.2)
    attempt.cancel()
    with pytest.raises(asyncio.CancelledError):
        await attempt
    assert (await fresh.run("turn", command, 20)).output.strip() == b"1"


async def test_a_cancelled_call_leaves_no_answer_behind(fresh):
    await output(fresh, "echo more >> README.md")
    asking = asyncio.create_task(fresh.diff())
    await asyncio.sleep(0.001)
    asking.cancel()
    assert await output(fresh, "echo mine") == b"mine\n"
    assert b"+more" in await fresh.diff()


async def test_daemons_live_on_and_block_nothing(fresh):
    started = time.monotonic()
    assert await output(fresh, "(sleep 0.6; echo late; sleep 600) & echo up") == b"up\n"
    assert await output(fresh, "setsid sleep 601 & echo up") == b"up\n"
    assert time.monotonic() - started < 5
    await asyncio.sleep(0.8)
    assert await output(fresh, "grep -l 60[01] /proc/[0-9]*/cmdline | wc -l") == b"2\n"
    assert await output(fresh, "echo clean") == b"clean\n"


@pytest.mark.parametrize(
    "command",
    [
        "exec >&- 2>&-; sleep 0.1",
        "kill -9 -1",
        "kill -9 1; kill -STOP 1; kill -TERM 1; exit 3",
        "kill -9 $PPID; sleep 0.1",
        "trap 'kill 0' EXIT",
        'for fd in /proc/self/fd/*; do eval "exec ${fd##*/}>&-"; done',
    ],
)
async def test_the_sandbox_survives_its_commands(fresh, command):
    result = await run(fresh, command, 10)
    assert not result.timed_out and result.wall_s < 5
    assert await output(fresh, "echo alive; git status --short") == b"alive\n"


async def test_no_network(shared):
    async with await asyncio.start_server(lambda r, w: w.close(), "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        for host in ("127.0.0.1", "1.1.1.1"):
            result = await run(shared, f": < /dev/tcp/{host}/{port}", 5)
            assert result.returncode == 1, result
    assert (await output(shared, "cat /proc/net/route | tail -n +2")) == b""


async def test_host_is_out_of_reach(backend, monkeypatch, tmp_path):
    monkeypatch.setenv("MAINSPRING_TEST_SECRET", "sesame")
    (tmp_path / "secret").write_text("sesame")
    sandbox = await backend.open(make_spec(backend.name, "curious"))
    try:
        seen = await run(sandbox, "env; cat /proc/[0-9]*/environ; cat /proc/[0-9]*/cmdline")
        assert b"sesame" not in seen.output and b"pytest" not in seen.output
        hidden = (tmp_path / "secret", Path(__file__), Path("/etc/shadow"))
        for path in hidden if backend.name == BackendName.BWRAP else hidden[:2]:
            assert (await run(sandbox, f"cat {path}")).returncode == 1
        assert (await run(sandbox, "touch /usr/bin/x; echo > /proc/sys/kernel/hostname")).returncode
        status = await output(sandbox, "grep -E 'CapEff|NoNewPrivs' /proc/self/status")
        assert status.split() == [b"CapEff:", b"0000000000000000", b"NoNewPrivs:", b"1"]
    finally:
        await sandbox.close()


async def test_a_fork_bomb_stays_inside(backend):
    bomb = await backend.open(make_spec(backend.name, "bomb", Limits(max_pids=24)))
    try:
        await run(bomb, "bomb() { bomb | bomb & }; bomb", 2)
        other = await backend.open(make_spec(backend.name, "beside-a-bomb"))
        assert await output(other, "echo fine") == b"fine\n"
        await other.close()
    finally:
        started = time.monotonic()
        await bomb.close()
    assert time.monotonic() - started < 20


async def test_limits_of_memory_and_file_size(backend):
    limits = Limits(memory_mb=64, disk_mb=4)
    sandbox = await backend.open(make_spec(backend.name, "small", limits))
    try:
        hungry = "python3 -c 'print(len(bytearray(200 << 20)))'"
        assert (await run(sandbox, hungry)).returncode != 0
        big = await run(sandbox, "head -c 10000000 /dev/zero > big; wc -c < big")
        assert big.output.split()[-1] == str(4 << 20).encode()
        assert await output(sandbox, "echo fine") == b"fine\n"
    finally:
        await sandbox.close()


async def test_a_patch_carries_every_kind_of_change(backend, fresh):
    assert await fresh.diff() == b""
    await output(
        fresh,
        r"""
        sed -i 's/a - b/a + b/' pkg/calc.py; rm pkg/doomed.py; chmod +x tool.sh
        git mv pkg/moved.py pkg/elsewhere.py; git commit -qam 'an agent may commit'
        printf 'new\nno newline' > 'a new "file" é.txt'; : > empty.txt; ln -s README.md link
        printf '\000\001\377' > blob.bin; printf 'caf\351\n' > latin1.txt; echo noise > debug.log
        git config --global diff.noprefix true; git config core.fileMode false
        """,
    )
    patch = await fresh.diff()
    assert await fresh.diff() == patch and b"debug.log" not in patch
    other = await backend.open(make_spec(backend.name, "apply"))
    try:
        await other.write_files({"incoming/the.patch": patch})
        await output(other, "git apply --index incoming/the.patch && rm -r incoming")
        assert await other.diff() == patch
        listing = "ls -l tool.sh link | cut -c1-10; cat blob.bin latin1.txt | od -c; ls pkg"
        assert await output(other, listing) == await output(fresh, listing)
    finally:
        await other.close()


async def test_odd_files_do_not_spoil_the_patch(fresh):
    await output(
        fresh, "git init -q nested; mkfifo pipe; mkdir shut; echo x > shut/x; chmod 0 shut"
    )
    await output(fresh, "echo more >> README.md; touch .git/index.lock; echo junk > .git/config")
    patch = await fresh.diff()
    assert b"+more" in patch and b"nested" not in patch and b"pipe" not in patch


async def test_a_destroyed_repository_is_no_infrastructure_fault(backend, fresh):
    await output(fresh, "echo more >> README.md; rm -rf .git")
    if backend.name == BackendName.DOCKER:  # the image's objects stay where the agent reaches them
        with pytest.raises(PatchRefused, match="destroyed"):
            await fresh.diff()
    else:
        assert b"+more" in await fresh.diff()


async def test_a_patch_too_large_is_refused(backend):
    sandbox = await backend.open(make_spec(backend.name, "bulky", Limits()))
    try:
        await output(sandbox, "yes lots of text | head -c 40000000 > big", 60)
        with pytest.raises(PatchRefused, match="32 MiB"):
            await sandbox.diff()
    finally:
        await sandbox.close()


async def test_files_go_in_whatever_stands_there(fresh):
    await output(fresh, "ln -sf /etc/passwd target; mkdir -p tests/b; echo old > tests/a")
    content = bytes(range(256)) * 1000
    await fresh.write_files({"target": content, "tests/a": b"new\n", "tests/deep/c": b""})
    assert await output(fresh, "wc -c < target; cat tests/a; ls tests; test ! -L target") == (
        b"256000\nnew\na\nb\ndeep\n"
    )
    for path in ("../up", "/abs", "", ".git/config", "a/.GIT/x"):
        with pytest.raises(SandboxRefused, match=r"path|git"):
            await fresh.write_files({path: b""})
    with pytest.raises(SandboxRefused, match="cannot write"):
        await fresh.write_files({"README.md/below": b"x" * 100_000})
    assert await output(fresh, "echo fine") == b"fine\n"


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
