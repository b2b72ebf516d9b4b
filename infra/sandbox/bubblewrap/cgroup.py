"""A control group per sandbox, where the kernel lets this process make one.

Invariants: groups lie below the group this process is in, so that limits it lives under hold for
its sandboxes too, and only where the maker of that group left it to us; a controller that cannot be
had is in `Cgroups.missing` with the reason, never silently without effect; a group is recorded in
the sandbox's directory before it exists. Both versions of control groups, also mixed.
Imported by the bubblewrap backend and the doctor.
"""

import contextlib
import errno
import functools
import json
import os
import re
import subprocess
import time
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from infra.sandbox.protocol import Limits

CONTROLLERS: Mapping[str, str] = {
    "memory": "memory_mb summed over a sandbox's processes and its /tmp, without swap",
    "pids": "max_pids of a sandbox, whatever its user ids",
    "cpu": "cpus as a share of the machine at any moment",
}
"""Controllers with what each limits."""
CPU_PERIOD_US = 100_000
"""The kernel's default; a group that used up its share waits at most this long."""
MIN_CPU_QUOTA_US = 1_000
"""The kernel refuses less."""
REMOVE_TIMEOUT_S = 5.0
RETRY_S = 0.02
ABANDONED_S = 3600.0
"""An empty group this old is abandoned: those in use have a process within a second."""
PREFIX = "mainspring-"
RECORD = "cgroup.json"
_DELEGATION = ("trusted.delegate", "user.delegate")
"""How systemd marks a group that is its unit's own to divide (Delegate=yes)."""
_OPTIONAL = frozenset({"memory.memsw.limit_in_bytes", "memory.swap.max"})
"""Kernels without swap accounting lack them."""


@dataclass(frozen=True, slots=True)
class Mount:
    """A mounted hierarchy and where in it this process is."""

    path: Path
    own: Path
    controllers: tuple[str, ...]
    """Version 1. Empty: version 2, whose controllers are a file's content."""


@dataclass(frozen=True, slots=True)
class CgroupPlace:
    """A directory we may make groups in."""

    directory: Path
    version: int
    controllers: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Cgroup:
    """One sandbox's directories, one per hierarchy; none where no group can be had."""

    directories: tuple[Path, ...] = ()

    @classmethod
    def load(cls, home: Path) -> Self:
        """The group of the sandbox in `home`, whichever process made it."""
        with contextlib.suppress(FileNotFoundError, ValueError):
            return cls(tuple(map(Path, json.loads((home / RECORD).read_text()))))
        return cls()

    def save(self, home: Path) -> None:
        (home / RECORD).write_text(json.dumps([str(path) for path in self.directories]))

    def join(self, pid: int) -> None:
        """Put `pid` into the group, with what it starts from now on. Raises OSError."""
        for directory in self.directories:
            _write(directory / "cgroup.procs", str(pid))

    def remove(self) -> None:
        """After its last process; gone already is fine. Blocks. What the kernel holds on to for
        longer than REMOVE_TIMEOUT_S is left to `Cgroups.sweep`."""
        deadline = time.monotonic() + REMOVE_TIMEOUT_S
        for directory in self.directories:
            while not _removed(directory) and time.monotonic() < deadline:
                time.sleep(RETRY_S)


@dataclass(frozen=True, slots=True)
class Cgroups:
    """Control groups that this process can have. Made by `find`."""

    places: tuple[CgroupPlace, ...]
    missing: Mapping[str, str]
    """Why, for each controller that cannot be had."""

    @classmethod
    def find(cls, proc: Path = Path("/proc/self")) -> Self:
        """Really makes a group, puts a process into it and removes it."""
        places: list[CgroupPlace] = []
        missing = dict.fromkeys(CONTROLLERS, "no hierarchy with it is mounted")
        mounts = _mounts(proc)
        held_by_v1 = {name for mount in mounts for name in mount.controllers}
        for mount in mounts:
            names = mount.controllers or tuple(name for name in missing if name not in held_by_v1)
            if not names:
                continue
            try:
                place = _place_v1(mount) if mount.controllers else _place_v2(mount, names)
                _try(place)
            except OSError as error:
                missing.update(dict.fromkeys(names, f"{error.strerror} ({error.filename})"))
            else:
                places.append(place)
                for controller in place.controllers:
                    del missing[controller]
        return cls(tuple(places), missing)

    def enclose(self, home: Path, pid: int, limits: Limits, extra_pids: int) -> Cgroup:
        """A new group for the sandbox in `home`, with its first process. Raises OSError."""
        group = _named(self.places)
        if self.places:
            group.save(home)
        try:
            _make(group, self.places, limits, extra_pids)
            group.join(pid)
        except OSError:
            group.remove()  # who ended the process meanwhile may have looked for it too early
            raise
        return group

    def sweep(self) -> None:
        """Remove groups whose record was deleted before they were."""
        for place in self.places:
            for directory in place.directory.glob(f"{PREFIX}*"):
                with contextlib.suppress(OSError):  # it is in use, or gone
                    if time.time() - directory.stat().st_mtime > ABANDONED_S:
                        directory.rmdir()


available = functools.cache(Cgroups.find)
"""Found once: neither this process's group nor what the kernel offers changes."""


def parse_mounts(mountinfo: str, own_groups: str) -> list[Mount]:
    """From /proc/self/mountinfo and /proc/self/cgroup."""
    own: dict[str, str] = {}
    for line in own_groups.splitlines():
        _, names, group = line.split(":", 2)
        own.update(dict.fromkeys(names.split(","), group))
    mounts: list[Mount] = []
    for line in mountinfo.splitlines():
        fields, _, tail = line.partition(" - ")
        kind, _, options = tail.split(" ", 2)
        root, path = (_unescape(field) for field in fields.split(" ")[3:5])
        names = tuple(name for name in CONTROLLERS if name in options.split(","))
        if kind == "cgroup2" and "" in own:
            mounts.append(Mount(Path(path), _below(path, root, own[""]), ()))
        elif kind == "cgroup" and names and names[0] in own:
            mounts.append(Mount(Path(path), _below(path, root, own[names[0]]), names))
    return mounts


def settings(controller: str, version: int, limits: Limits, extra_pids: int) -> dict[str, str]:
    """Values by the file to write each to, in order."""
    memory = str(limits.memory_mb << 20)
    quota_us = str(max(MIN_CPU_QUOTA_US, round(limits.cpus * CPU_PERIOD_US)))
    files = {
        ("memory", 1): {"memory.limit_in_bytes": memory, "memory.memsw.limit_in_bytes": memory},
        ("memory", 2): {"memory.max": memory, "memory.swap.max": "0"},
        ("cpu", 1): {"cpu.cfs_period_us": str(CPU_PERIOD_US), "cpu.cfs_quota_us": quota_us},
        ("cpu", 2): {"cpu.max": f"{quota_us} {CPU_PERIOD_US}"},
    }
    pids = {"pids.max": str(limits.max_pids + extra_pids)}
    return pids if controller == "pids" else files[controller, version]


def _mounts(proc: Path) -> list[Mount]:
    try:
        return parse_mounts((proc / "mountinfo").read_text(), (proc / "cgroup").read_text())
    except FileNotFoundError:  # another kernel than Linux
        return []


def _place_v1(mount: Mount) -> CgroupPlace:
    if not _is_ours(mount.own, mount):
        raise _not_ours(mount.own)
    return CgroupPlace(mount.own, 1, mount.controllers)


def _place_v2(mount: Mount, controllers: Iterable[str]) -> CgroupPlace:
    """A group with processes of its own cannot give its children controllers, nor can one whose
    parent gave it none: then its parent is asked, as far up as all is ours."""
    refusal: OSError | None = None
    for base in (mount.own, *mount.own.parents):
        if not base.is_relative_to(mount.path):
            break
        if not _is_ours(base, mount):
            refusal = refusal or _not_ours(base)
            break
        try:
            offered = (base / "cgroup.controllers").read_text().split()
            if names := tuple(controller for controller in controllers if controller in offered):
                enable = " ".join(f"+{controller}" for controller in names)
                _write(base / "cgroup.subtree_control", enable)
                return CgroupPlace(base, 2, names)
        except OSError as error:
            refusal = refusal or error
    raise refusal or FileNotFoundError(errno.ENOENT, "it does not offer it", str(mount.path))


def _is_ours(group: Path, mount: Mount) -> bool:
    """Whether we may make groups below it. In a group made by others only when it was delegated: by
    giving the directory to our user, by a mark on it or above it, or by a namespace that shows us a
    group of the machine as the topmost one. The machine's own group has no maker, and we may be in
    it."""
    if group == mount.own == mount.path or (mount.path / "cgroup.type").exists():
        return True
    if os.geteuid() != 0:
        return os.access(group, os.W_OK)
    within = (path for path in (group, *group.parents) if path.is_relative_to(mount.path))
    return any(_xattr(path, name) == b"1" for path in within for name in _DELEGATION)


def _not_ours(group: Path) -> OSError:
    return PermissionError(errno.EPERM, "the group is not delegated to us", str(group))


def _xattr(path: Path, name: str) -> bytes:
    with contextlib.suppress(OSError):
        return os.getxattr(path, name)
    return b""


def _named(places: Sequence[CgroupPlace]) -> Cgroup:
    name = PREFIX + uuid.uuid4().hex
    return Cgroup(tuple(place.directory / name for place in places))


def _make(group: Cgroup, places: Sequence[CgroupPlace], limits: Limits, extra_pids: int) -> None:
    for directory, place in zip(group.directories, places, strict=True):
        directory.mkdir()
        for controller in place.controllers:
            values = settings(controller, place.version, limits, extra_pids)
            for file, value in values.items():
                _set(directory / file, value)


def _write(file: Path, value: str) -> None:
    try:
        file.write_text(value)
    except OSError as error:
        error.filename = str(file)  # the kernel refuses the value, and not the file
        raise


def _set(file: Path, value: str) -> None:
    if file.name in _OPTIONAL and not file.exists():
        return
    try:
        _write(file, value)
    except OSError as error:
        # The group above has less already, and that holds for all below.
        if error.errno != errno.EINVAL or file.name != "cpu.cfs_quota_us":
            raise


def _try(place: CgroupPlace) -> None:
    group = _named([place])
    try:
        _make(group, [place], Limits(), 0)
        with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as guest:
            group.join(guest.pid)
    finally:
        group.remove()


def _removed(directory: Path) -> bool:
    try:
        directory.rmdir()
    except OSError:
        return not directory.exists()
    return True


def _below(path: str, root: str, own: str) -> Path:
    """Where `own` is when `root` of its hierarchy is mounted at `path`."""
    if root != "/" and Path(own).is_relative_to(root):
        return Path(path) / Path(own).relative_to(root)
    return Path(path) / own.lstrip("/")


def _unescape(field: str) -> str:
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), field)
