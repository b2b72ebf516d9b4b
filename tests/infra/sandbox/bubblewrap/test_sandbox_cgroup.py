"""Control groups: what is read and written on a tree of plain files, the rest asked of the kernel
where it gives this process groups."""

import asyncio
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from cli.operations.checks.machine_checks import group_findings
from infra.sandbox.bubblewrap import cgroup
from infra.sandbox.bubblewrap.backend import SPARE_PIDS, BwrapBackend
from infra.sandbox.bubblewrap.cgroup import (
    ABANDONED_S,
    PREFIX,
    Cgroup,
    Cgroups,
    parse_mounts,
    settings,
)
from infra.sandbox.pool import WarmPool
from infra.sandbox.protocol import Limits, SandboxSpec
from infra.sandbox.shell.channel import OWN_PROCESSES
from mainspring.ids import SandboxId
from tests.conformance.sandbox_backend import cleared
from tests.waiting import until

ROOT = Path(__file__).parents[4]
LIMITS = Limits(memory_mb=256, max_pids=64, cpus=0.5)


def fake_v2(tmp_path: Path, own: str) -> tuple[Path, Path]:
    tree, proc = tmp_path / "cg", tmp_path / "proc"
    for group in (tree, tree / "a", tree / "a/b"):
        group.mkdir(exist_ok=True)
        (group / "cgroup.controllers").write_text("cpuset cpu memory pids\n")
    proc.mkdir()
    (proc / "mountinfo").write_text(f"30 23 0:26 / {tree} rw - cgroup2 cgroup2 rw\n")
    (proc / "cgroup").write_text(f"0::{own}\n")
    return tree, proc


def test_it_says_why_there_is_none(tmp_path):
    tree, proc = fake_v2(tmp_path, own="/")
    (tree / "cgroup.controllers").write_text("io\n")
    assert all("does not offer it" in reason for reason in Cgroups.find(proc).missing.values())
    (tree / "cgroup.controllers").unlink()
    missing = Cgroups.find(proc).missing
    assert set(missing) == {"memory", "pids", "cpu"}
    assert all("No such file" in reason for reason in missing.values())
    (proc / "mountinfo").write_text("")
    assert all("mounted" in reason for reason in Cgroups.find(proc).missing.values())
    assert Cgroups.find(tmp_path / "no proc").places == ()


@pytest.mark.skipif(os.geteuid() != 0, reason="to others, a group belongs by its directory's owner")
def test_a_group_that_others_made_is_left_alone(tmp_path):
    tree, proc = fake_v2(tmp_path, own="/a/b")
    before = sorted(tree.rglob("*"))
    assert all("not delegated" in reason for reason in Cgroups.find(proc).missing.values())
    assert sorted(tree.rglob("*")) == before


def test_a_group_marked_as_ours_is_used(tmp_path, monkeypatch):
    monkeypatch.setattr(cgroup, "REMOVE_TIMEOUT_S", 0)  # plain directories do not go as groups do
    tree, proc = fake_v2(tmp_path, own="/a/b")
    try:
        os.setxattr(tree / "a", "user.delegate", b"1")
    except OSError as error:
        pytest.skip(f"no extended attributes at {tmp_path}: {error}")
    assert [place.directory for place in Cgroups.find(proc).places] == [tree / "a/b"]
    assert (tree / "a/b/cgroup.subtree_control").read_text() == "+memory +pids +cpu"
    (tree / "a/b/cgroup.subtree_control").unlink()
    (tree / "a/b/cgroup.subtree_control").mkdir()  # writing fails, as where processes live
    (tree / "a/b/cgroup.controllers").write_text("\n")  # nor has its parent passed any on yet
    groups = Cgroups.find(proc)
    assert ([place.directory for place in groups.places], groups.missing) == ([tree / "a"], {})
    (tree / "a/cgroup.subtree_control").unlink()
    (tree / "a/cgroup.subtree_control").mkdir()
    (tree / "a/b/cgroup.controllers").write_text("memory pids\n")
    assert "Is a directory" in Cgroups.find(proc).missing["memory"]
    assert not (tree / "cgroup.subtree_control").exists()


def test_a_namespace_gives_us_all_it_shows(tmp_path, monkeypatch):
    monkeypatch.setattr(cgroup, "REMOVE_TIMEOUT_S", 0)
    tree, proc = fake_v2(tmp_path, own="/a")
    (tree / "cgroup.type").write_text("domain\n")  # the machine's topmost group has none
    (tree / "a/cgroup.subtree_control").mkdir()
    assert [place.directory for place in Cgroups.find(proc).places] == [tree]


def test_mounts_below_a_namespace_and_of_both_versions():
    mountinfo = (
        "1 0 0:1 / /cg/unified rw - cgroup2 cgroup2 rw\n"
        "2 0 0:2 /docker/x /cg/memory rw - cgroup cgroup rw,memory\n"
        "3 0 0:3 / /cg/a\\040b rw - cgroup cgroup rw,cpu,cpuacct\n"
    )
    mounts = parse_mounts(mountinfo, "3:cpu,cpuacct:/\n2:memory:/docker/x/y\n0::/\n")
    assert [(str(mount.own), mount.controllers) for mount in mounts] == [
        ("/cg/unified", ()),
        ("/cg/memory/y", ("memory",)),
        ("/cg/a b", ("cpu",)),
    ]


def test_what_is_written():
    assert settings("memory", 2, LIMITS, 8) == {
        "memory.max": str(256 << 20),
        "memory.swap.max": "0",
    }
    assert settings("cpu", 2, LIMITS, 8) == {"cpu.max": "50000 100000"}
    assert settings("pids", 2, LIMITS, 8) == settings("pids", 1, LIMITS, 8) == {"pids.max": "72"}
    assert settings("cpu", 1, Limits(cpus=0.0001), 8)["cpu.cfs_quota_us"] == "1000"


def test_the_doctor_names_every_controller():
    groups = Cgroups((), {"memory": "because", "cpu": "of that"})
    found = {finding.check: finding for finding in group_findings(groups)}
    assert {check: finding.ok for check, finding in found.items()} == {
        "control group memory": False,
        "control group pids": True,
        "control group cpu": False,
    }
    memory = found["control group memory"]
    assert memory.found.startswith("not enforced: memory_mb summed")
    assert "because" in memory.found and "Delegate=yes" in memory.found and not memory.required
    assert found["control group pids"].found.startswith("enforced: max_pids")


def needs(controller: str) -> Cgroups:
    groups = cgroup.available()
    if controller in groups.missing:
        pytest.skip(f"no {controller} group: {groups.missing[controller]}")
    return groups


def any_groups() -> Cgroups:
    groups = cgroup.available()
    if not groups.places:
        pytest.skip(f"no control group: {groups.missing}")
    return groups


@pytest.fixture
async def backend(tmp_path):
    backend = BwrapBackend(tmp_path)
    async with cleared(backend):
        yield backend


def spec(id: str, limits: Limits = LIMITS) -> SandboxSpec:
    return SandboxSpec(SandboxId(id), "/testbed", files={"a.txt": "a\n"}, limits=limits)


def group_of(backend: BwrapBackend, id: str) -> Cgroup:
    group = Cgroup.load(backend._home(SandboxId(id)))
    assert group.directories and all(path.is_dir() for path in group.directories)
    return group


def read(group: Cgroup, *names: str) -> str:
    """The first of `names` that is there; the versions name things differently."""
    files = [path / name for path in group.directories for name in names]
    return next(file for file in files if file.exists()).read_text()


def is_gone(group: Cgroup) -> bool:
    return not any(path.exists() for path in group.directories)


async def test_many_small_processes_share_memory_mb(backend):
    needs("memory")
    limits = Limits(memory_mb=128, max_pids=128)
    crowded, neighbour = [await backend.open(spec(id, limits)) for id in ("crowded", "neighbour")]
    holder = "(head -c 20000000 /dev/zero; sleep 3) | tail -c 20000000 | wc -c"
    crowd = await crowded.run("t", f"for i in {{1..12}}; do {holder} & done; wait", 120)
    group = group_of(backend, "crowded")
    peak = int(read(group, "memory.peak", "memory.max_usage_in_bytes", "memory.current"))
    assert peak <= 128 << 20
    assert crowd.output.count(b"20000000") < 12, crowd  # some were killed, each far below 128 MB
    for sandbox in (crowded, neighbour):
        assert (await sandbox.run("after", "echo alive", 60)).output == b"alive\n"
    alone = await neighbour.run("alone", holder, 60)
    assert alone.output == b"20000000\n", alone


async def test_files_in_memory_count_and_leave_room_for_the_shell(backend):
    groups = cgroup.available()
    sandbox = await backend.open(spec("shm", Limits(memory_mb=64, max_pids=64)))
    fill = "for d in /tmp /dev/shm ~; do head -c 40000000 /dev/zero > $d/x; done; wc -c < /tmp/x"
    filled = await sandbox.run("t", fill, 60)
    assert filled.output.count(b"No space left") == 3
    assert int(filled.output.split()[-1]) == 16 << 20
    if "memory" not in groups.missing:
        counted = read(group_of(backend, "shm"), "memory.usage_in_bytes", "memory.current")
        assert int(counted) > 48 << 20


async def test_all_processes_of_a_sandbox_are_in_its_group(backend):
    needs("pids")
    sandbox = await backend.open(spec("full"))
    group = group_of(backend, "full")
    assert read(group, "pids.max") == f"{64 + OWN_PROCESSES + SPARE_PIDS}\n"
    await sandbox.run("t", "for i in {1..9}; do setsid sleep 600 >/dev/null 2>&1 & done", 60)
    directory = next(path for path in group.directories if (path / "pids.max").exists())

    def num_sleepers() -> int:
        inside = (directory / "cgroup.procs").read_text().split()
        lines = (Path(f"/proc/{pid}/cmdline") for pid in inside)
        return sum(b"sleep" in line.read_bytes() for line in lines if line.exists())

    await until(lambda: num_sleepers() == 9)


def test_pids_of_a_group_are_capped(tmp_path):
    groups = needs("pids")
    many = "read; for i in {1..20}; do sleep 600 & done; read"
    bomb = subprocess.Popen(
        ["bash", "-c", many],
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert bomb.stdin is not None and bomb.stderr is not None
    group = groups.enclose(tmp_path, bomb.pid, Limits(max_pids=8), 0)
    try:
        assert Cgroup.load(tmp_path) == group
        bomb.stdin.write("\n")
        bomb.stdin.flush()
        assert "fork" in bomb.stderr.readline()
        assert int(read(group, "pids.current")) <= 8
    finally:
        os.killpg(bomb.pid, 9)
        bomb.communicate()
        group.remove()
    assert is_gone(group)
    group.remove()  # once more is fine


async def test_cpus_are_a_share_at_any_moment(backend):
    needs("cpu")
    sandbox = await backend.open(spec("busy", Limits(cpus=0.25)))
    burn = "for i in 1 2 3; do timeout 2 bash -c 'while :; do :; done' & done; wait"
    await sandbox.run("t", burn, 60)
    told = read(group_of(backend, "busy"), "cpu.stat").splitlines()
    assert int(dict(line.split() for line in told)["nr_throttled"]) > 0, told


async def test_no_group_stays(backend):
    any_groups()
    sandbox = await backend.open(spec("closed"))
    group = group_of(backend, "closed")
    await sandbox.close()
    assert is_gone(group)

    await backend.open(spec("twice"))
    first = group_of(backend, "twice")
    again = await backend.open(spec("twice"))
    assert is_gone(first)
    second = group_of(backend, "twice")
    await again.run("t", "kill -9 -1; exit", 60)  # what a command can end
    await again.close()
    assert is_gone(second)


async def test_no_group_stays_of_a_pool(backend):
    any_groups()
    pool = WarmPool(backend, size=2)
    await pool.prepare([spec("any"), spec("other")])
    idle = [Cgroup.load(home) for home in backend._open_dir.iterdir()]
    taken = await pool.open(spec("taken"))
    group = group_of(backend, "taken")
    assert len(idle) == 2 and group in idle
    await taken.close()
    assert is_gone(group)
    await pool.close()
    assert all(map(is_gone, idle))


SPAWNER = """
import asyncio, pathlib, sys
from infra.sandbox.bubblewrap.backend import BwrapBackend
from infra.sandbox.pool import WarmPool
from infra.sandbox.protocol import SandboxSpec
async def main():
    pool = WarmPool(BwrapBackend(pathlib.Path(sys.argv[1])), size=1)
    await pool.prepare([SandboxSpec("idle", "/testbed", files={"a": ""})])
    await pool.open(SandboxSpec("left", "/testbed", files={"a": ""}))
    await pool.prepare([SandboxSpec("idle", "/testbed", files={"b": ""})])
    print("open", flush=True)
    await asyncio.sleep(600)
asyncio.run(main())
"""


async def test_no_group_stays_of_a_killed_worker(tmp_path):
    any_groups()
    worker = await asyncio.create_subprocess_exec(
        sys.executable, "-c", SPAWNER, tmp_path, cwd=ROOT, stdout=subprocess.PIPE
    )
    assert worker.stdout is not None and await worker.stdout.readline() == b"open\n"
    worker.kill()
    await worker.wait()
    after = BwrapBackend(tmp_path)
    left = await after.list_open()
    groups = [group_of(after, id) for id in left]
    assert len(groups) == 2
    for id in left:  # as the reaper does
        await after.remove(id)
    assert all(map(is_gone, groups))


async def test_what_was_thrown_away_with_a_group_is_found_at_the_next_start(tmp_path):
    [place, *_] = any_groups().places
    group = Cgroup((place.directory / f"{PREFIX}thrown-away-{os.getpid()}",))
    group.directories[0].mkdir()
    home = tmp_path / "trash/x"
    home.mkdir(parents=True)
    group.save(home)
    BwrapBackend(tmp_path)
    await until(lambda: is_gone(group) and not home.exists())


def test_no_group_stays_for_a_process_that_has_ended(tmp_path):
    groups = any_groups()
    ended = subprocess.Popen(["true"])
    ended.wait()
    with pytest.raises(ProcessLookupError):
        groups.enclose(tmp_path, ended.pid, LIMITS, 0)
    assert Cgroup.load(tmp_path).directories and is_gone(Cgroup.load(tmp_path))


def test_a_group_nobody_remembers_is_swept(tmp_path):
    groups = any_groups()
    fresh, old = (
        groups.places[0].directory / f"{PREFIX}{name}-{os.getpid()}" for name in ("fresh", "old")
    )
    for directory in (fresh, old):
        directory.mkdir()
    long_ago = time.time() - 2 * ABANDONED_S
    os.utime(old, (long_ago, long_ago))
    groups.sweep()
    found = fresh.exists(), old.exists()
    fresh.rmdir()
    assert found == (True, False)
