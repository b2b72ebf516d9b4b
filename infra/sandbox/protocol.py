"""The seam between rollouts and whatever isolates their commands.

Invariants: a command runs once under its turn id (a second `run` of the same id re-attaches or
returns the recorded result, it never starts the command again), also across the death of the node's
process, which sandboxes survive (`attach`); a command that times out is killed with its whole
process group; nothing of a sandbox outlives `close`; the agent reaches neither the network (but for
hosts its task names), nor the host's files and environment, nor the hidden tests.
Imported by the sandbox activities and by the backends beside this file.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Protocol

from infra.sandbox.containers.image_edit import NO_ALTERATION, Alteration
from infra.sandbox.model_port import Gateways
from mainspring.environments.protocol import CommandResult, WorldLost
from mainspring.errors import SandboxError
from mainspring.ids import SandboxId
from mainspring.status import FaultKind


class BackendUnavailable(SandboxError):
    """This kernel or host cannot run the backend; the message tells what is missing."""


class SandboxLost(WorldLost):
    """The sandbox is gone, or its shell died and cannot be brought back."""


class SandboxRefused(SandboxError):
    """The sandbox cannot be made as asked, on no node: the task is at fault, not the machine."""

    fault = FaultKind.TASK_INVALID


class SandboxBroken(SandboxError):
    """Its first process died while it started. May well work the next time."""


class ImageUnknown(SandboxRefused):
    """No registry has the image, or nothing can have that name."""


class ImageDenied(SandboxRefused):
    """A registry refuses the image to this node; many report that of what they do not have."""


class ImageUnfit(SandboxRefused):
    """The image is there and cannot run as a sandbox: no bash, no git, another architecture."""


class ImageUnreachable(SandboxError):
    """The image cannot be had now: a registry does not answer. Worth asking again."""

    fault = FaultKind.IMAGE_UNREACHABLE


class DiskFull(ImageUnreachable):
    """Docker has no room on this node's disk."""


class SnapshotUnfit(SandboxError):
    """It cannot be put back. The sandbox is neither fresh nor restored now: close it."""


@dataclass(frozen=True, slots=True)
class Limits:
    memory_mb: int = 1024
    max_pids: int = 256
    cpus: float = 1.0
    disk_mb: int = 2048
    output_bytes: int = 1 << 20
    """Most that is kept of one command's output; the rest is counted as truncated."""


@dataclass(frozen=True, slots=True)
class SandboxSpec:
    id: SandboxId
    """Chosen by the caller, deterministic: opening twice under one id replaces the first."""
    workdir: str
    """Absolute path inside the sandbox where the repository is."""
    image: str | None = None
    files: Mapping[str, str] = field(default_factory=dict)
    """Without an image: the repository's files, committed to git as the base commit."""
    executables: tuple[str, ...] = ()
    """Paths of `files`, and of what is written to the workdir, that have the executable bit."""
    alteration: Alteration = NO_ALTERATION
    """Change of the image: the sandbox begins with its result."""
    labels: Mapping[str, str] = field(default_factory=dict)
    """Owner: campaign, rollout, epoch, node."""
    allow_hosts: tuple[str, ...] = ()
    """Hosts it may reach, as `mainspring.tasks.allow_list` reads them. Empty: no network at all."""
    writable_dirs: tuple[str, ...] = ()
    """Absolute paths of further empty directories, whatever the image has there; for grading, and
    for agents that take them for given."""
    mounts: Mapping[str, Path] = field(default_factory=dict)
    """Absolute path inside to a folder of the node, read-only; `mounts` has what may be where."""
    limits: Limits = Limits()
    environment: Mapping[str, str] = field(default_factory=dict)
    """Variables of its commands, beside the backend's own."""
    clock: datetime | None = None
    """Time that its commands read when it opens; it runs from there. None: the node's."""


class Sandbox(Protocol):
    """One live sandbox. Methods raise SandboxLost when it is gone."""

    @property
    def id(self) -> SandboxId: ...

    async def run(self, turn_id: str, command: str, timeout_s: float) -> CommandResult:
        """Run `command` with bash in the workdir, in a fresh subshell, once per `turn_id`. At most
        `Limits.output_bytes` of its output are kept."""
        ...

    async def stop(self, turn_id: str) -> None:
        """End the command of this turn as its timeout would, and all processes that any turn left
        behind. May be called while `run` waits, which returns then; the result stays. A turn that
        has not begun never will. After `attach` it ends what the sandbox still runs."""
        ...

    async def open_model_port(self, gateways: Gateways, key: str) -> None:
        """Carry what its commands send to 127.0.0.1:8400 to a gateway, as requests of `key`, until
        the sandbox is closed or this process ends: after `attach` it is to be opened again. Opened
        twice it sends the later key, and what is under way is cut. Raises NoEntry."""
        ...

    async def close_model_port(self) -> None:
        """Shut it; what is under way is cut. Closing twice is fine."""
        ...

    async def write_files(self, files: Mapping[str, bytes]) -> None:
        """Write files at paths relative to the workdir, or in the spec's `writable_dirs` (grading:
        tests and the patch)."""
        ...

    async def diff(self) -> bytes:
        """The working tree against the base commit as a git patch, binary files included. Ends
        what commands left running first: nothing changes the tree afterwards, nor keeps git from
        starting."""
        ...

    async def left_out(self) -> str:
        """Files that the last `diff` could not take, a line each; empty when it has everything."""
        ...

    async def snapshot(self, after: str, max_bytes: int) -> bytes | None:
        """All files that commands may have changed until the turn `after` ended, for `restore`, in
        no form that others read.

        It holds the working tree with its .git, /tmp, /dev/shm, the home directory and, where an
        image's root is writable, whatever else differs from the image: deletions, links, modes and
        times included; extended attributes and System V IPC are not. None, and never a wrong one,
        when it would be larger, when a later turn has run, when a process of the agent's still runs
        (files cannot bring that back), or when what changed cannot be put back: files that cannot
        be read or that another user owns, the files Docker mounts over /etc, devices, volumes, and
        in an image names that are not UTF-8.
        """
        ...

    async def restore(self, snapshot: bytes) -> None:
        """Bring a sandbox that was just opened from the same image or files to where another one
        was; once, a second `restore` of the same snapshot finds it done. The agent made the
        snapshot: nothing of it is read but inside the sandbox. `diff` is against the same base as
        ever, and of earlier turns the sandbox knows nothing. Raises SnapshotUnfit."""
        ...

    async def ping(self) -> None:
        """Tell it that its node lives: a sandbox that hears nothing for ten minutes ends itself."""
        ...

    async def close(self) -> None:
        """Remove the sandbox and everything in it. Closing twice is fine."""
        ...


@dataclass(frozen=True, slots=True)
class BackendPlace:
    """Facts that a backend is made of, on one node."""

    name: str
    """Its name in the campaign file."""
    state_dir: Path
    """Its own on this node, the same in each process: it holds, or names, its sandboxes."""
    mirrors: Sequence[str] = ()
    """Where images are pulled from first."""


class SandboxBackend(Protocol):
    @property
    def name(self) -> str:
        """As the campaign names it: a lease holds it, and the node's next process asks by it."""
        ...

    async def probe(self) -> None:
        """Find out whether this machine can run it. Raises BackendUnavailable."""
        ...

    async def open(self, spec: SandboxSpec) -> Sandbox:
        """Raises SandboxRefused, or BackendUnavailable."""
        ...

    async def attach(self, spec: SandboxSpec, busy_s: float) -> Sandbox:
        """Resume the sandbox `spec.id`, opened by a process that died. What is asked of it
        waits for the command it still runs, for `busy_s` at most. Raises SandboxLost."""
        ...

    async def rename(self, sandbox: SandboxId, spec: SandboxSpec) -> Sandbox:
        """Give a sandbox that this process opened, from a spec alike but for the id, to the owner
        `spec` names. Raises SandboxLost."""
        ...

    async def list_open(self) -> list[SandboxId]:
        """Every sandbox of this node that exists now, owned or not, for the reaper."""
        ...

    async def remove(self, sandbox: SandboxId) -> None:
        """Remove by id, whichever process made it. Unknown ids are fine."""
        ...
