"""Commands that try to get out, or to take the machine down. A printed ESCAPED is a hole.

Each is a row of docs/sandbox-security.md. Commands run with bash in the working tree, on every
backend; what they look for must not stand in them verbatim, or they find themselves.
"""

from dataclasses import dataclass

from infra.sandbox.protocol import Limits
from tests.conformance.sandbox_backend import LIMITS

SEALED = "sealed-b3c1"
"""In the neighbour's files and their names, in a file of the host and in its environment."""
SMALL = Limits(memory_mb=64, max_pids=64, disk_mb=16, output_bytes=1 << 16)
ENOUGH_S = 240.0
"""For searches, which must reach their end."""


@dataclass(frozen=True, slots=True)
class Attack:
    tried: str
    command: str
    timeout_s: float = 4
    limits: Limits = LIMITS
    patch_has: bytes = b"diff"
    """In the patch, if one is made after the attack and is not empty."""


def _tampering(tried: str, command: str) -> Attack:
    """An edit, and then what should spoil its patch."""
    return Attack(tried, f"echo more >>README.md\n{command}", 60, patch_has=b"+more")


_SEALED = SEALED.replace("c", "[c]")
_FOLDERS = "/dev/shm /etc /home /media /mnt /opt/m* /root /run /srv /testbed /tmp /var"
_EVERYWHERE = "find / -path /proc -prune -o -path /sys -prune -o"
_PROCESS_1 = r"""python3 - <<'END'
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
PTRACE_ATTACH, PTRACE_SEIZE, PIDFD_GETFD = 16, 0x4206, 438
for request in (PTRACE_ATTACH, PTRACE_SEIZE):
    if libc.ptrace(request, 1, 0, 0) == 0:
        print("ESCAPED ptrace", request)
for fd in range(16):
    if libc.syscall(PIDFD_GETFD, os.pidfd_open(1), fd, 0) >= 0:
        print("ESCAPED descriptor", fd)
class Piece(ctypes.Structure):
    _fields_ = [("at", ctypes.c_void_p), ("length", ctypes.c_size_t)]
memory = ctypes.create_string_buffer(16)
here = Piece(ctypes.addressof(memory), 16)
try:
    starts = [int(line.split("-")[0], 16) for line in open("/proc/1/maps") if " rw" in line]
except OSError:
    starts = [0x400000, 0x555555554000]
for start in starts:
    there = Piece(start, 16)
    for call in (libc.process_vm_readv, libc.process_vm_writev):
        if call(1, ctypes.byref(here), 1, ctypes.byref(there), 1, 0) > 0:
            print("ESCAPED", call.__name__)
for name in ("mem", "environ", "maps", "auxv", "stack", "syscall"):
    for mode in ("rb", "r+b"):
        try:
            open(f"/proc/1/{name}", mode, buffering=0)
            if name in ("mem", "environ"):
                print("ESCAPED", name, mode)
        except OSError:
            pass
END
"""

ATTACKS = [
    Attack("fork bomb", "f() { f | f & }; f; sleep 1", 3),
    Attack(
        "one process that takes 2 GB", "head -c 2G /dev/zero | tail >/dev/null && echo ESCAPED", 15
    ),
    Attack(
        "twelve processes of 100 MB each",
        "for i in {1..12}; do python3 -c 'import time; kept = b\"x\" * (100 << 20); time.sleep(2)' "
        "& done; wait",
        30,
    ),
    Attack(
        "filling the working tree and /tmp",
        "for f in big /tmp/big; do dd if=/dev/zero of=$f bs=1M; "
        "(($(stat -c %s $f) > 64 << 20)) && echo ESCAPED $f; done",
        60,
        SMALL,
    ),
    Attack("1 GB of output", "head -c 1G /dev/zero", 8),
    Attack("endless output", "yes", 2),
    Attack("a daemon that survives its command", "setsid sleep 300 & disown"),
    Attack("kill -9 -1", "kill -9 -1"),
    Attack("closing every descriptor", "exec 0>&- 1>&- 2>&-; sleep 0.1"),
    Attack(
        "an answer of the shell made up in the output",
        "printf '%032d 0 1\\n' 7; printf 'exit\\ngo\\0'",
    ),
    Attack(
        "the shell's own pipes: its answers and its calls",
        "for fd in /proc/1/fd/{0..16}; do (echo forged >$fd) 2>/dev/null && echo ESCAPED $fd; "
        "(read -r -t 0.1 <$fd; (($? > 128)) && echo ESCAPED $fd) 2>/dev/null; "
        "(printf 'exit\\ngo\\0' >$fd) 2>/dev/null; done; true",
        60,
    ),
    Attack(
        "the shell's memory: ptrace, process_vm_*, pidfd_getfd, /proc/1/mem", _PROCESS_1, ENOUGH_S
    ),
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
    Attack(
        "the host's environment, in /proc/*/environ and cmdline",
        f"cat /proc/*/environ /proc/*/cmdline 2>/dev/null | grep -aqE '{_SEALED}' && echo ESCAPED; "
        "env | grep MAINSPRING && echo ESCAPED",
        ENOUGH_S,
    ),
    Attack(
        "the hidden tests by their name",
        f"{_EVERYWHERE} -name '*{_SEALED}*' -print 2>/dev/null | grep . && echo ESCAPED",
        ENOUGH_S,
    ),
    Attack(
        "other sandboxes' and tasks' files, the hidden tests by their content",
        f"grep -rsaE -D skip '{_SEALED}' {_FOLDERS} && echo ESCAPED; "
        "ls -d /run/mainspring/* 2>/dev/null | grep -vE '/(run|prepared|shell)$' && echo ESCAPED",
        ENOUGH_S,
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
    _tampering(
        "git hooks",
        "mkdir -p .git/hooks; for h in pre-commit post-checkout post-index-change "
        "reference-transaction fsmonitor-watchman; do "
        "printf '#!/bin/sh\\ntouch /tmp/ran\\n' >.git/hooks/$h; chmod +x .git/hooks/$h; done; "
        "git config --global core.hooksPath $PWD/.git/hooks; rm -f /tmp/ran",
    ),
    _tampering(
        "HEAD moved to another commit",
        "git add -A; git commit -qm mine; git reset -q --soft "
        "$(git commit-tree -m empty $(git mktree </dev/null)); git branch -f main; "
        "git pack-refs --all",
    ),
    _tampering(
        "GIT_DIR and GIT_INDEX_FILE exported by the shell's start files",
        "for f in .bashrc .profile .bash_profile .bash_login .bash_logout; do echo "
        "'export GIT_DIR=/nowhere GIT_INDEX_FILE=/nowhere BASH_ENV=/nowhere; git() { :; }' >~/$f; "
        "done; export GIT_DIR=/nowhere GIT_INDEX_FILE=/nowhere; git() { :; }; export -f git",
    ),
    _tampering(
        "git objects replaced and overwritten",
        "old=$(git rev-parse HEAD:README.md); git replace $old $(git hash-object -w README.md); "
        "chmod -R u+w .git/objects; for f in $(find .git/objects -type f); do echo junk >$f; done",
    ),
    _tampering(".git a link out of the working tree", "mv .git /tmp/moved; ln -s /tmp/moved .git"),
    _tampering(
        "git alternates that lead elsewhere",
        "mkdir -p .git/objects/info; printf '/etc\\n/proc/1/root\\n../../../..\\n' "
        ">.git/objects/info/alternates",
    ),
    _tampering(
        "deleting the copy of .git that patches are made from",
        "rm -rf /run/mainspring/run/base /tmp/.mainspring/base",
    ),
    Attack("file names that are no UTF-8", "touch $'a\\nb' $'\\xff\\xfe'"),
]
