"""The system calls a bubblewrap sandbox is refused, as the program its kernel runs on each call.

Owns the deny list and its compilation to classic BPF; pure, no descriptor is opened here. What
ordinary work needs stays allowed, ptrace and process_vm_* included: a debugger is useful to an
agent, and sees only processes of its own sandbox and user. Machines without a column in the table
get no program. Imported by the bubblewrap backend.
"""

import functools
import platform
import struct
from errno import EAFNOSUPPORT, ENOSYS, EPERM

AUDIT_ARCHES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
"""The kernel's numbers for the machines of the table's columns, in the columns' order."""

DENIED: dict[str, tuple[int | None, int | None]] = {
    # namespaces and mounts: the ones bwrap made are final
    "unshare": (272, 97),
    "setns": (308, 268),
    "mount": (165, 40),
    "umount2": (166, 39),
    "pivot_root": (155, 41),
    "chroot": (161, 51),
    "open_tree": (428, 428),
    "open_tree_attr": (467, 467),
    "move_mount": (429, 429),
    "fsopen": (430, 430),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "fspick": (433, 433),
    "mount_setattr": (442, 442),
    # files past the path lookup, and notices about other processes' files
    "name_to_handle_at": (303, 264),
    "open_by_handle_at": (304, 265),
    "lookup_dcookie": (212, 18),
    "fanotify_init": (300, 262),
    # large parts of the kernel that have often been exploited and that programs do without
    "bpf": (321, 280),
    "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    "perf_event_open": (298, 241),
    "userfaultfd": (323, 282),
    # key rings belong to a user id, not to a namespace
    "add_key": (248, 217),
    "request_key": (249, 218),
    "keyctl": (250, 219),
    # placement of memory on the machine's nodes
    "mbind": (237, 235),
    "get_mempolicy": (239, 236),
    "set_mempolicy": (238, 237),
    "set_mempolicy_home_node": (450, 450),
    "migrate_pages": (256, 238),
    "move_pages": (279, 239),
    # the machine itself
    "acct": (163, 89),
    "clock_settime": (227, 112),
    "settimeofday": (164, 170),
    "sethostname": (170, 161),
    "setdomainname": (171, 162),
    "syslog": (103, 116),
    "quotactl": (179, 60),
    "quotactl_fd": (443, 443),
    "swapon": (167, 224),
    "swapoff": (168, 225),
    "reboot": (169, 142),
    "kexec_load": (246, 104),
    "kexec_file_load": (320, 294),
    "init_module": (175, 105),
    "finit_module": (313, 273),
    "delete_module": (176, 106),
    "iopl": (172, None),
    "ioperm": (173, None),
    "modify_ldt": (154, None),
    "uselib": (134, None),
}
EXAMINED: dict[str, tuple[int, int]] = {
    "clone": (56, 220),
    "clone3": (435, 435),
    "ioctl": (16, 29),
    "personality": (135, 92),
    "socket": (41, 198),
}
"""Calls that are refused for some arguments only, and clone3, which hides its own in memory."""
NEWEST = 469
"""Calls numbered above do not exist, as far as a sandbox can tell: they have not been judged yet.

Covers x86_64's second numbering (x32), which would lead around every rule here, as well.
"""

NAMESPACE_FLAGS = 0x7E02_0000
"""CLONE_NEWNS, -CGROUP, -UTS, -IPC, -USER, -PID and -NET."""
TERMINAL_REQUESTS = (0x5412, 0x541C)
"""TIOCSTI and TIOCLINUX: they type into a terminal as if its user had."""
PERSONALITIES = (0, 0xFFFF_FFFF, 0x004_0000)
"""Linux, a question that changes nothing, and addresses that debuggers want the same each run."""
SOCKET_FAMILIES = (1, 2, 10, 16)
"""AF_UNIX, AF_INET, AF_INET6, AF_NETLINK. AF_VSOCK would reach a virtual machine's host from
within any network namespace."""

# linux/bpf_common.h
LOAD_WORD, RETURN = 0x20, 0x06
EQUAL, AT_LEAST, ANY_BIT = 0x15, 0x35, 0x45
# linux/seccomp.h: offsets in struct seccomp_data, and what a program returns
NUMBER, ARCHITECTURE, ARGUMENTS = 0, 4, 16
KILL_PROCESS, ERRNO, ALLOWED = 0x8000_0000, 0x0005_0000, 0x7FFF_0000

Code = list[bytes]


@functools.cache
def program(machine: str = platform.machine()) -> bytes | None:
    """An array of struct sock_filter, or None where there is no table for `machine`."""
    if machine not in AUDIT_ARCHES:
        return None
    column = list(AUDIT_ARCHES).index(machine)
    number = {name: numbers[column] for name, numbers in EXAMINED.items()}
    allow = _return(ALLOWED)
    code = [
        *_load(ARCHITECTURE),
        # another architecture's numbers, such as those of 32-bit programs, mean other calls
        *_unless_equal(AUDIT_ARCHES[machine], _return(KILL_PROCESS)),
        *_load(NUMBER),
        *_if(AT_LEAST, NEWEST + 1, _refuse(ENOSYS)),
    ]
    for numbers in DENIED.values():
        if (denied := numbers[column]) is not None:
            code += _if(EQUAL, denied, _refuse(EPERM))
    # libc falls back to clone, whose flags can be seen
    code += _if(EQUAL, number["clone3"], _refuse(ENOSYS))
    flags = _if(ANY_BIT, NAMESPACE_FLAGS, _refuse(EPERM))
    code += _if(EQUAL, number["clone"], [*_argument(0), *flags, *allow])
    requests = _any_of(TERMINAL_REQUESTS, _refuse(EPERM))
    code += _if(EQUAL, number["ioctl"], [*_argument(1), *requests, *allow])
    personalities = _any_of(PERSONALITIES, allow)
    code += _if(EQUAL, number["personality"], [*_argument(0), *personalities, *_refuse(EPERM)])
    families = _any_of(SOCKET_FAMILIES, allow)
    code += _if(EQUAL, number["socket"], [*_argument(0), *families, *_refuse(EAFNOSUPPORT)])
    return b"".join([*code, *allow])


def _instruction(code: int, operand: int, if_true: int = 0, if_false: int = 0) -> bytes:
    return struct.pack("=HBBI", code, if_true, if_false, operand)


def _load(offset: int) -> Code:
    return [_instruction(LOAD_WORD, offset)]


def _argument(index: int) -> Code:
    """The low half of a 64-bit argument (little-endian), all the kernel looks at in these."""
    return _load(ARGUMENTS + 8 * index)


def _return(action: int) -> Code:
    return [_instruction(RETURN, action)]


def _refuse(errno: int) -> Code:
    return _return(ERRNO | errno)


def _if(test: int, operand: int, body: Code) -> Code:
    """`body`, which ends in a return, if the loaded word passes the test."""
    return [_instruction(test, operand, if_false=len(body)), *body]


def _unless_equal(operand: int, body: Code) -> Code:
    return [_instruction(EQUAL, operand, if_true=len(body)), *body]


def _any_of(operands: tuple[int, ...], body: Code) -> Code:
    return [instruction for operand in operands for instruction in _if(EQUAL, operand, body)]
