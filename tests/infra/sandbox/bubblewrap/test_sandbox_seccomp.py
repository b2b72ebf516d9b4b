"""The system call filter, asked of the kernel from inside real sandboxes."""

import json
import platform
import re
import shlex
import signal
import subprocess
from errno import EAFNOSUPPORT, ENOSYS, EPERM
from pathlib import Path

import pytest

from infra.sandbox.bubblewrap import command as bwrap_command
from infra.sandbox.bubblewrap import seccomp
from infra.sandbox.bubblewrap.backend import ENFORCED, NOT_ENFORCED, BwrapBackend
from infra.sandbox.bubblewrap.owner import owner_of
from infra.sandbox.protocol import BackendUnavailable, SandboxSpec
from mainspring.ids import SandboxId

MACHINE = platform.machine()
pytestmark = pytest.mark.skipif(
    seccomp.program() is None, reason=f"there is no system call filter for {MACHINE}"
)

COLUMN = list(seccomp.AUDIT_ARCHES).index(MACHINE) if MACHINE in seccomp.AUDIT_ARCHES else 0
NUMBERS = {name: row[COLUMN] for name, row in (seccomp.DENIED | seccomp.EXAMINED).items()}
CLONE_NEWUSER, CLONE_NEWNET, CLONE_THREAD = 0x1000_0000, 0x4000_0000, 0x1_0000
TIOCSTI, AF_PACKET, PER_LINUX32, X32 = 0x5412, 17, 8, 0x4000_0000
ERRNOS = """
import ctypes, json, sys
libc = ctypes.CDLL(None, use_errno=True)
def errno_of(call):
    failed = libc.syscall(*map(ctypes.c_long, call)) == -1
    return ctypes.get_errno() if failed else 0
print(json.dumps([errno_of(call) for call in json.loads(sys.argv[1])]))
"""


@pytest.fixture(scope="module")
async def backend(tmp_path_factory):
    backend = BwrapBackend(tmp_path_factory.mktemp("filtered"))
    try:
        await backend.probe()
    except BackendUnavailable as unavailable:
        pytest.skip(str(unavailable))
    return backend


async def opened(backend: BwrapBackend, id: str):
    return await backend.open(SandboxSpec(SandboxId(id), "/testbed", files={"a.txt": "a\n"}))


@pytest.fixture(scope="module")
async def sandbox(backend):
    sandbox = await opened(backend, "filtered")
    yield sandbox
    await sandbox.close()


@pytest.fixture
async def unfiltered(backend, monkeypatch):
    """What other machines get; shows which refusals are the filter's and not the kernel's."""
    monkeypatch.setattr(seccomp, "program", lambda: None)
    sandbox = await opened(backend, "unfiltered")
    yield sandbox
    await sandbox.close()


async def python(sandbox, script: str, *arguments: str) -> str:
    command = shlex.join(["python3", "-c", script, *arguments])
    result = await sandbox.run(command, command, 30)
    assert result.returncode == 0, result
    return result.output.decode()


async def errnos(sandbox, calls: list[list[int | None]]) -> list[int]:
    return json.loads(await python(sandbox, ERRNOS, json.dumps(calls)))


async def test_every_process_is_filtered(sandbox):
    status = await sandbox.run("t", "grep -h Seccomp: /proc/1/status /proc/self/status", 10)
    assert status.output.split() == [b"Seccomp:", b"2"] * 2
    assert any("seccomp" in line for line in ENFORCED)
    assert not any("seccomp" in line for line in NOT_ENFORCED)


async def test_all_denied_calls_are_refused(sandbox):
    denied = [name for name in seccomp.DENIED if NUMBERS[name] is not None]
    answers = await errnos(sandbox, [[NUMBERS[name], 0, 0, 0, 0, 0] for name in denied])
    assert dict(zip(denied, answers, strict=True)) == dict.fromkeys(denied, EPERM)


async def test_programs_meet_the_refusal(sandbox):
    for command in ("unshare --user true", "dmesg", "linux32 true", "chroot / true"):
        result = await sandbox.run(command, command, 10)
        assert result.returncode != 0 and b"not permitted" in result.output, result


TELLING = [
    ([NUMBERS["unshare"], 0], EPERM),
    ([NUMBERS["keyctl"], 0, -3, 0], EPERM),
    ([NUMBERS["io_uring_setup"], 1, 0], EPERM),
    ([NUMBERS["name_to_handle_at"], -1, 0, 0, 0, 0], EPERM),
    ([NUMBERS["clone3"], 0, 0], ENOSYS),
    ([NUMBERS["clone"], CLONE_NEWUSER | CLONE_THREAD], EPERM),
    ([NUMBERS["ioctl"], 0, TIOCSTI, 0], EPERM),
    ([NUMBERS["ioctl"], 0, TIOCSTI | 1 << 32, 0], EPERM),
    ([NUMBERS["personality"], PER_LINUX32], EPERM),
    ([NUMBERS["socket"], AF_PACKET, 3, 0], EAFNOSUPPORT),
]


async def test_refused_by_the_filter(sandbox):
    calls = [call for call, _ in TELLING]
    assert await errnos(sandbox, calls) == [errno for _, errno in TELLING]
    ask, debugger = [NUMBERS["personality"], 0xFFFF_FFFF], [NUMBERS["personality"], 0x4_0000]
    beyond = [[seccomp.NEWEST + 1], [2**31], [(1 << 32) - 1], [X32 + NUMBERS["unshare"], 0]]
    namespaces = [[NUMBERS["clone"], CLONE_NEWUSER | 17], [NUMBERS["clone"], CLONE_NEWNET | 17]]
    answers = await errnos(sandbox, [ask, debugger, *beyond, *namespaces])
    assert answers == [0, 0, ENOSYS, ENOSYS, ENOSYS, ENOSYS, EPERM, EPERM]


async def test_and_not_by_the_kernel(unfiltered):
    status = await unfiltered.run("t", "grep -h Seccomp: /proc/self/status", 10)
    host = re.findall("Seccomp:\t(.)", Path("/proc/self/status").read_text())
    if host != ["0"]:
        pytest.skip("this process runs under somebody's filter itself")
    assert status.output == b"Seccomp:\t0\n"
    answers = await errnos(unfiltered, [call for call, _ in TELLING])
    assert not [
        (call, answer)
        for (call, refusal), answer in zip(TELLING, answers, strict=True)
        if answer == refusal
    ]


@pytest.mark.skipif(MACHINE != "x86_64", reason="only x86_64 has a second, 32-bit entry")
async def test_32_bit_calls_kill(sandbox):
    script = """
import ctypes, mmap
page = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
page.write(bytes.fromhex("b814000000cd80c3"))  # mov eax, 20 (getpid); int 0x80; ret
print(ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(page)))())
"""
    result = await sandbox.run(script, shlex.join(["python3", "-c", script]), 10)
    # a kernel without 32-bit programs raises SIGSEGV
    assert result.returncode in (128 + signal.SIGSYS, 128 + signal.SIGSEGV), result


def test_the_filter_of_another_machine_kills(backend, monkeypatch):
    """The kernel takes it for a well-formed program all the same."""
    [other] = set(seccomp.AUDIT_ARCHES) - {MACHINE}
    foreign = seccomp.program(other)
    monkeypatch.setattr(seccomp, "program", lambda: foreign)
    with bwrap_command.filter_fds() as filters:
        owner = owner_of("foreign")
        done = subprocess.run(
            bwrap_command.command_line(owner, [], 16, ["true"], filters),
            pass_fds=filters,
            timeout=120,
        )
    assert done.returncode == 128 + signal.SIGSYS


WORK = """
import asyncio, concurrent.futures, ctypes, multiprocessing, os, signal, socket, subprocess
import threading

threads = [threading.Thread(target=print) for _ in range(3)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
with concurrent.futures.ProcessPoolExecutor(2) as pool:
    assert list(pool.map(abs, [-1, -2])) == [1, 2]
assert subprocess.check_output("echo out | sed s/o/O/", shell=True) == b"Out\\n"

async def echo():
    async def answer(reader, writer):
        writer.write(await reader.readline())
        writer.close()
    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
    writer.write(b"line\\n")
    assert await reader.readline() == b"line\\n"
    child = await asyncio.create_subprocess_exec("true")
    assert await child.wait() == 0
asyncio.run(echo())
socket.socketpair(), socket.socket(socket.AF_INET6), socket.if_nameindex()

libc, PTRACE_TRACEME, PTRACE_CONT = ctypes.CDLL(None), 0, 7
child = os.fork()
if child == 0:
    libc.ptrace(PTRACE_TRACEME, 0, None, None)
    os.kill(os.getpid(), signal.SIGSTOP)
    os._exit(7)
_, status = os.waitpid(child, 0)  # returns at a stop only for a tracer
assert os.WIFSTOPPED(status), status
assert libc.ptrace(PTRACE_CONT, child, None, None) == 0
_, status = os.waitpid(child, 0)
assert os.WEXITSTATUS(status) == 7
"""


async def test_ordinary_work_goes_on(sandbox):
    await python(sandbox, WORK)
    test = "import unittest\nclass T(unittest.TestCase):\n  def test(self): self.assertTrue(1)\n"
    await sandbox.write_files({"test_it.py": test.encode()})
    work = (
        "set -e; python3 -m unittest -q; git checkout -qb side; git add -A; git commit -qm side",
        "set -e; sed -i s/a/b/ a.txt; git stash -q; git stash pop -q; git gc -q; git fsck",
        "tar cz . | tar tz | sort | xargs stat; for i in {1..20}; do /bin/true; done",
        'python3 -c \'import pty; pty.spawn(["echo", "pty"])\'',
    )
    for command in work:
        result = await sandbox.run(command, command, 30)
        assert result.returncode == 0, result
    assert b"pty" in result.output
    assert b"+b" in await sandbox.diff()


def test_the_numbers_are_the_kernels():
    """Of the headers installed here; a header older than a call does not name it."""
    headers = {
        "x86_64": Path("/usr/include/x86_64-linux-gnu/asm/unistd_64.h"),
        "aarch64": Path("/usr/include/asm-generic/unistd.h"),
    }
    if not (installed := {name: path for name, path in headers.items() if path.exists()}):
        pytest.skip("the kernel's headers (linux-libc-dev) are not installed")
    for column, machine in enumerate(seccomp.AUDIT_ARCHES):
        if machine in installed:
            text = installed[machine].read_text()
            defined = dict(re.findall(r"#define __NR(?:3264)?_(\w+)\s+(\d+)", text))
            for name, row in (seccomp.DENIED | seccomp.EXAMINED).items():
                assert name not in defined or int(defined[name]) == row[column], (machine, name)
