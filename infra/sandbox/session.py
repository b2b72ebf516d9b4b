"""One open sandbox, whatever isolates it: turns that run once, files in, the patch out.

Invariants: a turn id starts its command once and all who ask share its result, also those who come
after this process died (the sandbox itself remembers); a sandbox whose shell is gone is destroyed
at once and every later call raises SandboxLost; `close` runs `destroy` until it succeeds. Built by
the sandbox backends; everyone else sees the protocol's Sandbox.
"""

import asyncio
import contextlib
import hashlib
import math
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import PurePosixPath
from typing import Any, TypeVar

import structlog

from infra.sandbox.archive import tar_of
from infra.sandbox.egress import Egress
from infra.sandbox.model_port import Gateways, ModelPort, Route
from infra.sandbox.node_faults import blamed
from infra.sandbox.protocol import (
    SandboxBroken,
    SandboxLost,
    SandboxRefused,
    SandboxSpec,
    SnapshotUnfit,
)
from infra.sandbox.run_once import RunOnce
from infra.sandbox.shell.channel import (
    CHANNEL_BYTES,
    CommandAnswer,
    Shell,
    ShellGone,
    ShellSetup,
    ShellStuck,
)
from mainspring.environments.protocol import CommandResult
from mainspring.errors import SandboxError
from mainspring.ids import SandboxId
from mainspring.protocol.timeouts import (
    ANSWER_GRACE_S,
    FILES_TIMEOUT_S,
    PACK_CPU_S,
    PACK_TIMEOUT_S,
    PATCH_TIMEOUT_S,
    UNPACK_CPU_S,
)

T = TypeVar("T")
log = structlog.get_logger()

PATCH_FILE_BYTES = 8 << 20
"""Larger files are left out of a patch: with them the whole patch would be refused."""
PATCH_BYTES = CHANNEL_BYTES - (1 << 20)
"""Size of a patch: what does not fit in is left out as well, the largest new files first."""
NOTE_BYTES = 2000
ARGUMENT_BYTES = 96 << 10
"""The kernel refuses a single argument over 128 KiB; longer commands go by file."""
CUT = b"\n[... output cut here ...]\n"
TIMED_OUT = -1
STOP_RETRY_S = 0.5
"""A shell that is told to stop between two of its turns takes it for the wind."""
FORGOTTEN = -2
"""shell.sh ran the turn, and a later one has taken the place of its output."""


class PatchRefused(SandboxRefused):
    """No patch can be made of what the agent left: too large, or the repository is destroyed."""


async def _none_listed() -> bytes:
    return b""


@dataclass(frozen=True, slots=True)
class Handle:
    """A backend's means to act on one sandbox from outside."""

    destroy: Callable[[], Awaitable[None]]
    find_pid: Callable[[], Awaitable[int]]
    """Find the pid of its first process, as this machine counts. Raises NoEntry, or SandboxLost."""
    interrupt: Callable[[], Awaitable[None]]
    """Send the first process SIGUSR1; of one that is gone nothing is to be said."""
    list_changes: Callable[[], Awaitable[bytes | None]] = _none_listed
    """Where the sandbox's root is an image's: what differs from the image, as shell.sh reads it;
    None when it cannot be said."""


class LiveSandbox:
    """Implements the Sandbox protocol on a booted shell."""

    def __init__(
        self,
        spec: SandboxSpec,
        run_dir: str,
        shell: Shell,
        handle: Handle,
    ) -> None:
        self._spec = spec
        self._run_dir = run_dir
        self._shell = shell
        self._handle = handle
        self._egress: Egress | None = None
        self._model_port: ModelPort | None = None
        self._one_opens = asyncio.Lock()
        self._turns = RunOnce()
        self._one_command = asyncio.Lock()
        self._running: str | None = None
        self._interrupting = asyncio.Lock()
        self._gone = ""
        self._closing: asyncio.Task[None] | None = None
        self._rejoining: asyncio.Task[None] | None = None

    @property
    def id(self) -> SandboxId:
        return self._spec.id

    async def run(self, turn_id: str, command: str, timeout_s: float) -> CommandResult:
        run = partial(self._run_once, turn_id, command, timeout_s)
        return await self._turns.result(turn_id, run)

    async def stop(self, turn_id: str) -> None:
        while (busy := self._busy_with(turn_id)) is not None:
            async with self._interrupting:
                if self._busy_with(turn_id) is busy:  # else the next turn would be interrupted
                    await self._handle.interrupt()
            await asyncio.wait([busy], timeout=STOP_RETRY_S)
        async with self._one_command:
            await self._call("stop", turn_id, timeout_s=ANSWER_GRACE_S)

    def _busy_with(self, turn_id: str) -> asyncio.Task[Any] | None:
        """The task that ends with the turn. A turn that a process that died left running is the
        only one that may be stopped, so it is taken for that."""
        if self._rejoining is not None and not self._rejoining.done():
            return self._rejoining
        return self._turns.task(turn_id) if self._running == turn_id else None

    async def open_model_port(self, gateways: Gateways, key: str) -> None:
        route = Route(gateways, key)
        async with self._one_opens:
            if self._gone:
                raise self._lost(self._gone)
            if self._model_port is not None:
                await self._model_port.lead(route)
                return
            port = await ModelPort.opened(await self._handle.find_pid(), route, self.id)
            if self._gone:
                await port.close()
                raise self._lost(self._gone)
            self._model_port = port

    async def close_model_port(self) -> None:
        async with self._one_opens:
            if self._model_port is not None:
                await self._model_port.close()
                self._model_port = None

    async def write_files(self, files: Mapping[str, bytes]) -> None:
        by_top: dict[str, dict[str, bytes]] = {}
        for path, content in files.items():
            tops = (top for top in self._spec.writable_dirs if path.startswith(f"{top}/"))
            top = next(tops, None)
            below = path if top is None else path.removeprefix(f"{top}/")
            by_top.setdefault(top or self._spec.workdir, {})[check_path(below)] = content
        # Verifiers run each other's scripts.
        mode_and_marked = {self._spec.workdir: (0o644, self._spec.executables)}
        archives = {
            top: tar_of(below, *mode_and_marked.get(top, (0o755, ())))
            for top, below in by_top.items()
        }
        async with self._one_command:
            for top, payload in archives.items():
                untar = ("tar", "-x", "-m", "--no-same-owner", "-C", top)
                took = await self._call(
                    "take", str(len(payload)), *untar, payload=payload, timeout_s=FILES_TIMEOUT_S
                )
                if took.status != 0:
                    reason = _tell(took.output)
                    raise blamed(
                        f"sandbox {self.id}: cannot write {len(files)} files: {reason}",
                        reason,
                        remedy="give the sandbox more disk_mb, or the node more space",
                    )

    async def diff(self) -> bytes:
        """Raises PatchRefused also for a patch that takes too long, which ends the sandbox."""
        async with self._one_command:
            try:
                limits = (f"{PATCH_TIMEOUT_S:.0f}", str(PATCH_FILE_BYTES), str(PATCH_BYTES))
                patch = await self._call("patch", *limits, timeout_s=PATCH_TIMEOUT_S)
            except SandboxLost as lost:
                if isinstance(lost.__cause__, ShellStuck):
                    raise PatchRefused(f"sandbox {self.id}: no patch: {lost.__cause__}") from None
                raise
        if patch.status != 0:
            raise PatchRefused(
                f"sandbox {self.id}: git cannot compare the working tree with the base commit "
                f"(status {patch.status})",
                remedy="the agent destroyed the repository: grade the rollout as without a patch",
            )
        return patch.output

    async def left_out(self) -> str:
        async with self._one_command:
            ran = await self._call("left_out", str(NOTE_BYTES), timeout_s=ANSWER_GRACE_S)
        return ran.output.decode(errors="replace").strip()

    async def snapshot(self, after: str, max_bytes: int) -> bytes | None:
        async with self._one_command:
            # Before the changes are listed: from here on nothing can add to them.
            if (await self._call("settle", after, timeout_s=ANSWER_GRACE_S)).status != 0:
                return self._no_snapshot("a process in it still runs, or a later turn has run")
            if not await self._leave_changes():
                return self._no_snapshot("what changed in it cannot be listed")
            packed = await self._call(
                "pack", str(PACK_CPU_S), str(max_bytes), timeout_s=PACK_TIMEOUT_S
            )
        if packed.status != 0 or len(packed.output) > max_bytes:
            return self._no_snapshot(f"its files are too many or unfit (status {packed.status})")
        return packed.output

    async def restore(self, snapshot: bytes) -> None:
        digest = hashlib.sha256(snapshot).hexdigest()
        async with self._one_command:
            if await self._leave_changes() and await self._leave_in_file("snapshot", snapshot):
                put_back = await self._call(
                    "restore", str(UNPACK_CPU_S), digest, timeout_s=FILES_TIMEOUT_S
                )
                if put_back.status == 0:
                    return
                reason = _tell(put_back.output) or f"status {put_back.status}"
            else:
                reason = "there is no room for it"
        raise SnapshotUnfit(
            f"sandbox {self.id}: the snapshot cannot be put back: {reason}",
            remedy="replay all commands in another sandbox",
        )

    async def boot(self, setup: ShellSetup, timeout_s: float) -> None:
        """Make a new sandbox ready. Raises SandboxRefused when it lacks what it needs, SandboxError
        when the node does, and SandboxBroken."""
        try:
            booted = await self._shell.boot(setup, timeout_s)
        except ShellGone as gone:
            raise SandboxBroken(
                f"sandbox {self.id}: {gone} while it started: {_tell(gone.said)}",
                remedy="when it happens again: does the image's login profile end the shell, or "
                "does the node lack memory?",
            ) from None
        if booted.status != 0:
            output = _tell(booted.output)
            raise blamed(f"sandbox {self.id}: {output}", output)

    async def let_out(self) -> None:
        """Open a way to what its task may reach, if anything. Raises NoEntry."""
        if self._spec.allow_hosts:
            pid = await self._handle.find_pid()
            self._egress = await Egress.opened(pid, self._spec.allow_hosts, self.id)

    async def ping(self) -> None:
        if not self._one_command.locked():
            async with self._one_command:
                await self._call("stay", timeout_s=ANSWER_GRACE_S)

    def rejoin(self, busy_s: float) -> None:
        """Resume a sandbox that another process opened; what is asked of it waits until the command
        that process left running has ended, for `busy_s` at most."""

        async def first() -> None:
            async with self._one_command:
                await self._talk(self._shell.rejoin(busy_s + ANSWER_GRACE_S))

        self._rejoining = asyncio.create_task(first())
        self._rejoining.add_done_callback(lambda done: done.cancelled() or done.exception())

    def rename(self, spec: SandboxSpec) -> None:
        """From a pool: it becomes the sandbox `spec` asks for."""
        self._spec = spec

    async def close(self) -> None:
        self._gone = self._gone or "it was closed"
        if self._closing is None or (self._closing.done() and self._closing.exception()):
            self._closing = asyncio.ensure_future(self._end())
        await asyncio.shield(self._closing)

    async def _end(self) -> None:
        if self._egress is not None:
            await self._egress.close()
        await self.close_model_port()
        await self._handle.destroy()

    async def _run_once(self, turn_id: str, command: str, timeout_s: float) -> CommandResult:
        async with self._one_command:
            raw = _encode(command)
            if len(raw) > ARGUMENT_BYTES:
                await self._leave_in_file("command", raw)
                raw = f". {self._run_dir}/command".encode()
            async with self._interrupting:
                self._running = turn_id
            try:
                ran = await self._call(
                    "turn",
                    turn_id,
                    f"{max(timeout_s, 0.001):.3f}",
                    str(math.ceil(timeout_s * self._spec.limits.cpus) + 1),
                    raw,
                    timeout_s=timeout_s + ANSWER_GRACE_S,
                )
            finally:
                self._running = None
            if ran.status == FORGOTTEN:
                raise self._lost(f"turn {turn_id} ran, and its output is gone")
            output = ran.output
            truncated = len(output) > self._spec.limits.output_bytes
            if truncated:
                output = await self._head_and_tail(output)
        return CommandResult(ran.status, output, truncated, ran.status == TIMED_OUT, ran.wall_s)

    async def _leave_in_file(self, name: str, content: bytes) -> bool:
        """In the shell's own directory. False when there is no room."""
        took = await self._call(
            "take",
            str(len(content)),
            "dd",
            f"of={self._run_dir}/{name}",
            "status=none",
            payload=content,
            timeout_s=FILES_TIMEOUT_S,
        )
        return took.status == 0

    async def _leave_changes(self) -> bool:
        changes = await self._handle.list_changes()
        return changes is not None and await self._leave_in_file("changed", changes)

    def _no_snapshot(self, reason: str) -> None:
        log.info("no snapshot", sandbox=self.id, reason=reason)

    async def _head_and_tail(self, head: bytes) -> bytes:
        room = self._spec.limits.output_bytes - len(CUT)
        tail_bytes = room // 2
        tail = await self._call("last_bytes", str(tail_bytes), timeout_s=ANSWER_GRACE_S)
        return head[: room - tail_bytes] + CUT + tail.output

    async def _call(
        self, function: str, *arguments: str | bytes, payload: bytes = b"", timeout_s: float
    ) -> CommandAnswer:
        if self._gone:
            raise self._lost(self._gone)
        return await self._talk(
            self._shell.call(function, *arguments, payload=payload, timeout_s=timeout_s)
        )

    async def _talk(self, talking: Awaitable[T]) -> T:
        try:
            return await talking
        except ShellGone as gone:
            self._gone = self._gone or str(gone)
            with contextlib.suppress(SandboxError):  # what is left is the reaper's
                await self.close()
            raise self._lost(self._gone) from gone

    def _lost(self, reason: str) -> SandboxLost:
        return SandboxLost(
            f"sandbox {self.id} is gone: {reason}",
            remedy="open it again and replay the recorded commands",
        )


def _encode(command: str) -> bytes:
    """Bytes as the shell gets them; like bash, without NULs."""
    try:
        raw = command.encode(errors="surrogateescape")
    except UnicodeEncodeError:  # half of a surrogate pair, straight from some JSON
        raw = command.encode(errors="replace")
    return raw.replace(b"\0", b"")


def check_path(path: str) -> str:
    """`path` if it stays inside the working tree and out of git's own. Raises SandboxRefused."""
    parts = PurePosixPath(path).parts
    if not parts or path.startswith("/") or ".." in parts or "\0" in path:
        raise SandboxRefused(f"{path!r} is not a path relative to the working tree")
    if any(part.lower() == ".git" for part in parts):
        raise SandboxRefused(f"{path!r} is inside a git directory, which files may not be")
    return path


def _tell(output: bytes) -> str:
    return output.decode(errors="replace").strip()[-500:]
