"""Commands that try to get out, or to take the machine down. A printed ESCAPED is a hole."""

from dataclasses import dataclass

import pytest

from infra.sandbox.live import PatchRefused
from tests.conformance.sandbox_backend import output, run


@dataclass(frozen=True, slots=True)
class Attack:
    tried: str
    command: str
    timeout_s: float = 4


ATTACKS = [
    Attack("fork bomb", "f() { f | f & }; f; sleep 1", 3),
    Attack(
        "one process that takes 2 GB", "head -c 2G /dev/zero | tail >/dev/null && echo ESCAPED", 15
    ),
    Attack("1 GB of output", "head -c 1G /dev/zero", 8),
    Attack("endless output", "yes", 2),
    Attack("a daemon that survives its command", "setsid sleep 300 & disown"),
    Attack("kill -9 -1", "kill -9 -1"),
    Attack("closing every descriptor", "exec 0>&- 1>&- 2>&-; sleep 0.1"),
    Attack(
        "writing to sysrq-trigger, core_pattern and control groups",
        "for f in /proc/sysrq-trigger /proc/sys/kernel/core_pattern /sys/fs/cgroup/cgroup.procs "
        "/sys/fs/cgroup/pids/cgroup.procs; do (echo 0 >$f) 2>/dev/null && echo ESCAPED $f; done",
    ),
    Attack(
        "TCP and DNS to the outside",
        "(echo >/dev/tcp/1.1.1.1/53) 2>/dev/null && echo ESCAPED; "
        "timeout 2 getent hosts example.com && echo ESCAPED",
    ),
    Attack(
        "the host's root home, memory, disks and docker.sock",
        "for f in /root/.bash_history /proc/kcore /dev/sda /dev/vda; do "
        "head -c 1 $f 2>/dev/null | grep -q . && echo ESCAPED $f; done; "
        "ls /var/run/docker.sock 2>/dev/null && echo ESCAPED",
    ),
    Attack("mknod", "mknod /tmp/d b 8 0 2>/dev/null && echo ESCAPED"),
    Attack("mount", "mount -t tmpfs x /tmp 2>/dev/null && echo ESCAPED"),
    Attack("a user namespace", "unshare -Ur true 2>/dev/null && echo ESCAPED"),
    Attack("su to root", "echo | su -c 'id -u' 2>/dev/null | grep -qx 0 && echo ESCAPED"),
    Attack("deleting .git", "rm -rf .git"),
    Attack(
        "git configured to run programs",
        "printf '[core]\\n\\tfsmonitor = touch /tmp/ran\\n[diff]\\n\\texternal = touch /tmp/ran\\n"
        "' >>.git/config; echo '* filter=x diff=x' >.gitattributes; "
        "git config filter.x.clean 'touch /tmp/ran; cat'; rm -f /tmp/ran",
    ),
    Attack("file names that are no UTF-8", "touch $'a\\nb' $'\\xff\\xfe'"),
]


@pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: attack.tried.replace(" ", "-"))
async def test_contained(attack, backend, neighbour, victim, happened):
    result = await run(victim, attack.command, attack.timeout_s)
    assert b"ESCAPED" not in result.output, result.output[-500:]
    assert len(result.output) <= 1 << 16
    assert await output(neighbour, "echo alive") == b"alive\n"
    await run(victim, "kill -9 -1")  # what the attack left running; the shell survives it
    assert await output(victim, "echo alive") == b"alive\n"
    try:
        await victim.diff()
        patch = "patch made"
    except PatchRefused:
        patch = "patch refused"
    await output(victim, "test ! -e /tmp/ran")  # nothing that diff runs is the agent's to name
    ended = "killed at the timeout" if result.timed_out else f"ended with {result.returncode}"
    happened(f"no escape; {ended}; {patch}")
