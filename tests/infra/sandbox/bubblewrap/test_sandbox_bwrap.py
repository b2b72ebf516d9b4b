"""What is bubblewrap's own: users, leftover trees, the files of the host that are visible."""

import asyncio
import dataclasses
import json
import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import psutil
import pytest

from cli.operations.checks.machine_checks import contents_finding
from infra.sandbox.bubblewrap import command as bwrap_command
from infra.sandbox.bubblewrap.backend import BwrapBackend
from infra.sandbox.bubblewrap.owner import owner_of
from infra.sandbox.protocol import Limits, SandboxRefused, SandboxSpec
from infra.sources.fields import build_task
from infra.sources.protocol import ImportOptions, RowError
from mainspring.errors import SandboxError
from mainspring.ids import SandboxId

ROOT = Path(__file__).parents[4]
NOBODY = 65534


def spec(id: str, **kwargs) -> SandboxSpec:
    return SandboxSpec(
        SandboxId(id), "/testbed", files={"a.txt": "a\n", "d/b.txt": "b\n"}, **kwargs
    )


@pytest.fixture
def backend(tmp_path):
    return BwrapBackend(tmp_path)


async def test_the_user_is_never_root(backend):
    sandbox = await backend.open(spec("who"))
    result = await sandbox.run("t", "whoami; id -u; echo ~; touch mine; stat -c %U mine a.txt", 10)
    name, uid, home, *owners = result.output.decode().split()
    assert (name, home, owners) == ("agent", "/home/agent", ["agent", "agent"])
    assert int(uid) != 0
    if os.geteuid() == 0:
        [work] = (backend._open_dir).glob("*/work")
        outside = owner_of("who").uid
        assert (work / "mine").stat().st_uid == outside != 0
        assert int(uid) in (1000, outside)
    await sandbox.close()


async def test_many_small_files_do_not_fill_the_disk(backend, monkeypatch):
    monkeypatch.setattr("infra.sandbox.bubblewrap.disk_guard.CHECK_S", 0.2)
    sandbox = await backend.open(spec("greedy", limits=Limits(disk_mb=8)))
    grow = "while :; do ((i++)); head -c 256K /dev/zero >f$i; sleep 0.02; done"
    for turn in ("t0", "t1"):  # the second may have no more than it finds there
        grown = await sandbox.run(turn, grow, 120)
        assert (grown.returncode, grown.timed_out) == (137, False)
    removed = await sandbox.run("t2", "rm f* && echo hello", 60)
    assert removed.output == b"hello\n"
    kept = await sandbox.run("t3", "head -c 6M /dev/zero >f && sleep 1 && echo kept", 60)
    assert kept.output == b"kept\n"
    await sandbox.close()


async def test_only_what_programs_need_is_visible(backend):
    sandbox = await backend.open(spec("look"))
    listed = (await sandbox.run("t", "ls / /home /etc; python3 -c 'import json'", 10)).output
    assert not {b"root", b"work", b"srv", b"shadow", b"ssh", b"boot", b"var"} & set(listed.split())
    for command in ("touch /x", "touch /etc/x", "touch /dev/x", "touch /run/mainspring/prepared/x"):
        assert (await sandbox.run(command, command, 10)).returncode == 1, command
    for command in ("touch /tmp/x ~/x /dev/shm/x /testbed/x", "git commit -qam x --allow-empty"):
        result = await sandbox.run(command, command, 10)
        assert result.returncode == 0, result
    await sandbox.close()


async def test_base_commits_are_the_same_in_all_sandboxes(backend):
    seen = set()
    for id in ("one", "two"):
        sandbox = await backend.open(spec(id))
        seen.add((await sandbox.run("t", "git log; git status; ls -l; ls -l d", 10)).output)
        await sandbox.close()
    assert len(seen) == 1 and b"nothing to commit" in seen.pop()


async def test_a_hostile_tree_is_removed(backend, tmp_path):
    sandbox = await backend.open(spec("hostile"))
    deep = "mkdir -p locked/in && touch locked/in/x && chmod 0 locked/in locked; " + (
        "for i in {1..1200}; do mkdir d && cd d; done; ln -s / root; ln -s /etc/passwd p"
    )
    assert (await sandbox.run("t", deep, 30)).returncode == 0
    await sandbox.close()
    assert await backend.list_open() == []
    backend._deleter.shutdown(wait=True)
    assert list((tmp_path / "trash").iterdir()) == []
    assert Path("/etc/passwd").exists()


async def test_max_pids_counts_one_sandbox_alone(backend):
    first, second = [await backend.open(spec(id, limits=Limits(max_pids=16))) for id in "ab"]
    for sandbox in (first, second):
        crowd = "for i in {1..12}; do sleep 30 & done; echo $(jobs | wc -l)"
        result = await sandbox.run("t", crowd, 9)
        assert result.output == b"12\n", result
    await asyncio.gather(first.close(), second.close())


async def test_a_workdir_over_the_system_is_refused(backend):
    with pytest.raises(SandboxRefused, match="/usr/new"):
        await backend.open(SandboxSpec(SandboxId("x"), "/usr/new", files={"a": ""}))
    assert await backend.list_open() == []


async def test_no_process_and_no_descriptor_stays(backend):
    marker = f"1001.{os.getpid()}"

    async def cycle(id: str) -> None:
        sandbox = await backend.open(spec(id))
        assert (await sandbox.run("t", f"setsid sleep {marker} & echo x", 10)).returncode == 0
        await sandbox.close()

    await cycle("warm-up")
    before = len(os.listdir("/proc/self/fd"))
    await asyncio.gather(*(cycle(str(i)) for i in range(8)))
    await asyncio.sleep(0.2)
    assert len(os.listdir("/proc/self/fd")) < before + 8  # other tests' pools may grow by one
    assert not [p for p in psutil.process_iter(["cmdline"]) if marker in str(p.info)]


UNPRIVILEGED = """
import asyncio, json, os, pathlib, sys
from infra.sandbox.bubblewrap.backend import BwrapBackend
from infra.sandbox.protocol import Limits, SandboxSpec
async def main():
    backend = BwrapBackend(pathlib.Path(sys.argv[1]))
    await backend.probe()
    spec = SandboxSpec(
        "n",
        "/testbed",
        files={"a": "a\\n"},
        limits=Limits(max_pids=16),
        allow_hosts=("example.com:443",),
    )
    sandbox = await backend.open(spec)
    command = "id -un; id -u; echo b >> a; (for i in {1..40}; do sleep 5 & done) 2>&1 | tail -1"
    result = await sandbox.run("t", command, 20)
    nested = await sandbox.run("u", "unshare --user true", 60)
    proxy = await sandbox.run("p", "exec 3<>/dev/tcp/127.0.0.1/3128", 60)
    patch = await sandbox.diff()
    await sandbox.close()
    ended = nested.returncode, patch.decode(), proxy.returncode
    print(json.dumps([os.geteuid(), result.output.decode(), *ended]))
asyncio.run(main())
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="every other test here already runs unprivileged")
def test_an_unprivileged_owner(tmp_path_factory):
    """With the system's Python: this one may be where only root can read."""
    python = f"/usr/bin/python{sys.version_info.major}.{sys.version_info.minor}"
    if not Path(python).exists():
        pytest.skip(f"{python} is not installed")
    state = Path("/var/tmp") / f"mainspring-test-{os.getpid()}"
    state.mkdir()
    os.chown(state, NOBODY, NOBODY)
    try:
        done = subprocess.run(
            [python, "-c", UNPRIVILEGED, state],
            env={"PYTHONPATH": f"{ROOT}:{sysconfig.get_path('purelib')}", "PATH": os.defpath},
            user=NOBODY,
            group=NOBODY,
            extra_groups=[],
            cwd="/",
            capture_output=True,
            text=True,
            timeout=180,
        )
    finally:
        shutil.rmtree(state, ignore_errors=True)
    if "Permission denied" in done.stderr and "ModuleNotFoundError" in done.stderr:
        pytest.skip("the checkout is where only root can read")
    assert done.returncode == 0, done.stderr
    uid, output, nested, patch, proxy = json.loads(done.stdout)
    assert uid == NOBODY and output.startswith("agent\n1000\n")
    assert "fork" in output
    assert nested != 0 and "+b" in patch and proxy == 0


async def test_the_nodes_python_runs_in_sandboxes(backend):
    contents = await backend.contents()
    assert contents.is_python_of(bwrap_command.own_python())
    sandbox = await backend.open(spec("python"))
    look = "import ssl, json, sys; print(sys.version_info[:3])"
    ran = await sandbox.run("t", f"python3 -c '{look}'; bash --version | head -1", 30)
    await sandbox.close()
    said = ran.output.decode()
    assert said.startswith(str(sys.version_info[:3])) and "GNU bash" in said
    assert contents.version == sys.version.split()[0] and contents.git
    finding = await contents_finding(backend)
    assert finding.ok and f"Python {contents.version}" in finding.found


@pytest.mark.parametrize("workdir", ["/", "/usr/src/app", "/tmp", "/home/agent", "/proc/x", "/run"])
async def test_a_workdir_that_an_import_refuses_is_one_that_cannot_be(backend, workdir):
    row = {"id": "a", "source": "s", "split": "t", "issue": "x", "files": {"a": ""}}
    row |= {"test_command": "true", "workdir": workdir}
    with pytest.raises(RowError, match="is taken"):
        build_task(row, ImportOptions())
    with pytest.raises(SandboxRefused):
        await backend.open(dataclasses.replace(spec("taken"), workdir=workdir))


@pytest.mark.parametrize("workdir", ["/testbed", "/tmp/x", "/home/agent/x", "/opt/app", "/a b"])
async def test_a_workdir_that_an_import_takes_works(backend, workdir):
    row = {"id": "a", "source": "s", "split": "t", "issue": "x", "files": {"a": ""}}
    build_task(row | {"test_command": "true", "workdir": workdir}, ImportOptions())
    sandbox = await backend.open(dataclasses.replace(spec("free"), workdir=workdir))
    ran = await sandbox.run("t", "pwd; cat a.txt", 30)
    await sandbox.close()
    assert ran.output.decode() == f"{workdir}\na\n"


@pytest.fixture
def small_disk(request, tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir()
    size_kb = getattr(request, "param", 256)
    mount = ["mount", "-t", "tmpfs", "-o", f"size={size_kb}k", "none", disk]
    if subprocess.run(mount, capture_output=True).returncode != 0:
        pytest.skip("no file system can be mounted here")
    yield disk
    subprocess.run(["umount", "--lazy", disk], check=True)


async def test_a_full_disk_is_the_nodes_fault_and_a_bad_name_the_tasks(small_disk):
    backend = BwrapBackend(small_disk)
    with pytest.raises(SandboxRefused, match="File name too long"):
        await backend.open(dataclasses.replace(spec("named"), files={"n" * 300: ""}))
    (small_disk / "filler").write_bytes(b"x" * (100 << 10))
    with pytest.raises(SandboxError, match="No space left") as full:
        await backend.open(dataclasses.replace(spec("full"), files={"big": "x" * (200 << 10)}))
    assert not isinstance(full.value, SandboxRefused)
    assert await backend.list_open() == []


@pytest.mark.parametrize("small_disk", [8 << 10], indirect=True)
async def test_a_command_that_fills_the_disk_ends_and_the_next_one_is_heard(small_disk):
    backend = BwrapBackend(small_disk)
    sandbox = await backend.open(spec("filling"))
    fills = "cat /dev/zero > filler 2>/dev/null"
    for says in ("echo end", "head -c 300000 /dev/zero; echo end"):
        ran = await sandbox.run(says, f"{fills}; {says}", 30)
        assert (ran.returncode, ran.timed_out) == (0, False) and ran.wall_s < 5
        assert (await sandbox.run(f"then {says}", "rm filler; echo fine", 30)).returncode == 0
        assert (await sandbox.run(f"last {says}", "echo fine", 30)).output == b"fine\n"
    await sandbox.close()


async def test_no_command_reads_or_changes_the_program_of_the_shell(backend):
    sandbox = await backend.open(spec("hidden"))
    reads = "cat /run/mainspring/shell /proc/1/exe 2>/dev/null | grep -qc . && echo READ"
    changes = "(chmod +r /run/mainspring/shell || echo > /run/mainspring/shell) && echo CHANGED"
    ran = await sandbox.run("t", f"{reads}; {changes}; cat /proc/1/environ; cat /proc/1/maps", 10)
    assert b"READ" not in ran.output and b"CHANGED" not in ran.output
    assert ran.output.count(b"denied") >= 2
    await sandbox.close()
