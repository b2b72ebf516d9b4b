"""`mainspring bench sandbox`: what opening, using and closing sandboxes costs, backend by backend.

The project's own backends beside `docker_exec_cli`, a plain way to do the same: one container per
sandbox and one `docker exec` process per command. Invariants: a backend that cannot run here
reports why and has no figures; every command and patch is checked, so a failure never counts as
fast; no sandbox, container or file outlives the run, also when it is cancelled.
"""

import asyncio
import shutil
import subprocess
import tempfile
import time
import uuid
from collections.abc import Awaitable, Coroutine, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, TypeVar

import numpy as np

from infra.sandbox.backends import available_backends
from infra.sandbox.pool import WarmPool
from infra.sandbox.protocol import (
    BackendUnavailable,
    SandboxBackend,
    SandboxLost,
    SandboxRefused,
    SandboxSpec,
)
from mainspring.environments.protocol import CommandResult
from mainspring.errors import SandboxError
from mainspring.ids import SandboxId
from mainspring.tasks.sandbox_choice import BWRAP, DOCKER

T = TypeVar("T")

PLAN: Mapping[int, int] = {1: 12, 8: 48, 32: 96}
"""Sandboxes at once -> cycles in all: each runner makes at least three."""
BUDGET_S = 20.0
"""No cycle starts later than this at one concurrency, except each runner's first."""
TIMEOUT_S = 60.0
NOTHING = "true"
COMMANDS = (
    NOTHING,
    "printf 'one\\ntwo\\n' > bench.txt",
    "cat bench.txt",
    "sed -i s/two/three/ bench.txt",
    "grep -n three bench.txt",
    "ls -la",
    "wc -l bench.txt",
    "git status --short",
)
"""Small ones, of the kind agents send, so that the way to the sandbox is what is measured."""
FILES = {"README.md": "A repository to measure with.\n"}
EXEC_CLI = "docker_exec_cli"
LABEL = "mainspring.bench"
Figures = dict[str, Any]


class Opened(Protocol):
    """As much of a sandbox as a cycle needs."""

    async def run(self, turn_id: str, command: str, timeout_s: float) -> CommandResult: ...

    async def diff(self) -> bytes: ...

    async def close(self) -> None: ...


class Opener(Protocol):
    async def open(self, spec: SandboxSpec) -> Opened: ...


async def measure(
    image: str | None, workdir: str, plan: Mapping[int, int] = PLAN
) -> dict[str, Figures]:
    """By backend, then by concurrency: open_p50_ms, open_warm_p50_ms, exec_p50_ms, exec_p95_ms,
    exec_overhead_p50_ms, diff_p50_ms, close_p50_ms, cycles_per_s, max_alive.

    `open_p50_ms` is a sandbox made from nothing, with its wait for a turn to start; so `max_alive`
    can be below the concurrency. `open_warm_p50_ms` is one taken from a pool of sandboxes kept
    ready, as many at once as the concurrency. A backend, or one concurrency of it, that cannot
    run has `skipped` with the reason instead. `exec_overhead_p50_ms` is a command that does
    nothing.
    """
    with tempfile.TemporaryDirectory(prefix="mainspring-bench-") as state:
        available = await available_backends(Path(state))
        figures: dict[str, Figures] = {}
        for name, backend in sorted(available.items()):
            own_image = None if name == BWRAP else image
            if (reason := _unavailable(name, backend, image)) is not None:
                figures[name] = {"skipped": reason}
            elif not isinstance(backend, BackendUnavailable):
                try:
                    figures[name] = await _backend(backend, own_image, workdir, plan)
                    await _open_warm(backend, own_image, workdir, figures[name])
                finally:
                    await _remove_all(backend)
        reason = _unavailable(DOCKER, available[DOCKER], image)
        if reason is None and shutil.which("docker") is None:
            reason = "there is no `docker` program here"
        if reason is not None:
            figures[EXEC_CLI] = {"skipped": reason}
        else:
            cli = DockerExecCli(uuid.uuid4().hex)
            try:
                figures[EXEC_CLI] = await _backend(cli, image, workdir, plan)
            finally:
                await cli.remove_all()
        return figures


def _unavailable(
    name: str, backend: SandboxBackend | BackendUnavailable, image: str | None
) -> str | None:
    if isinstance(backend, BackendUnavailable):
        return backend.message
    if name != BWRAP and image is None:
        return "no image given: name one with --image"
    return None


async def _remove_all(backend: SandboxBackend) -> None:
    for sandbox in await backend.list_open():
        await backend.remove(sandbox)


async def _backend(
    backend: Opener, image: str | None, workdir: str, plan: Mapping[int, int]
) -> Figures:
    try:
        # Pulls the image or prepares the repository: once a node, so not part of any figure.
        await Cycles(backend, image, workdir).run(concurrency=1, num_cycles=1)
    except SandboxError as error:
        return {"skipped": error.message}
    figures: Figures = {}
    for concurrency, num_cycles in plan.items():
        cycles = Cycles(backend, image, workdir)
        try:
            figures[str(concurrency)] = await cycles.run(concurrency, num_cycles)
        except SandboxError as error:
            figures[str(concurrency)] = {"skipped": error.message}
    return figures


async def _open_warm(
    backend: SandboxBackend, image: str | None, workdir: str, figures: Figures
) -> None:
    """Fill in what opening from a pool takes, in the rows that have figures."""
    for concurrency, row in figures.items():
        if not isinstance(row, dict) or "skipped" in row:
            continue
        specs = [_spec(image, workdir) for _ in range(int(concurrency))]
        pool = WarmPool(backend, len(specs))
        await pool.prepare(specs)
        opens_s: list[float] = []
        opened = await asyncio.gather(*(_timed(opens_s, pool.open(spec)) for spec in specs))
        await asyncio.gather(*(sandbox.close() for sandbox in opened))
        row["open_warm_p50_ms"] = _percentile_ms(opens_s, 50)


def _spec(image: str | None, workdir: str) -> SandboxSpec:
    return SandboxSpec(
        SandboxId(f"bench-{uuid.uuid4().hex}"),
        workdir,
        image=image,
        files=FILES if image is None else {},
    )


@dataclass(slots=True)
class Cycles:
    """Cycles of open, COMMANDS, diff and close on one backend, and how long each part took."""

    backend: Opener
    image: str | None
    workdir: str
    opens_s: list[float] = field(default_factory=list)
    execs_s: list[float] = field(default_factory=list)
    overheads_s: list[float] = field(default_factory=list)
    """Times of the command that does nothing: all of it is the way there and back."""
    diffs_s: list[float] = field(default_factory=list)
    closes_s: list[float] = field(default_factory=list)
    alive: int = 0
    max_alive: int = 0

    async def run(self, concurrency: int, num_cycles: int) -> Figures:
        """Raises the first SandboxError, after every sandbox is closed."""
        started = time.monotonic()
        left = iter(range(num_cycles))
        try:
            async with asyncio.TaskGroup() as runners:
                for _ in range(concurrency):
                    runners.create_task(self._runner(left, started + BUDGET_S))
        except ExceptionGroup as failed:
            raise failed.exceptions[0] from None
        wall_s = time.monotonic() - started
        return {
            "open_p50_ms": _percentile_ms(self.opens_s, 50),
            "open_warm_p50_ms": None,
            "exec_p50_ms": _percentile_ms(self.execs_s, 50),
            "exec_p95_ms": _percentile_ms(self.execs_s, 95),
            "exec_overhead_p50_ms": _percentile_ms(self.overheads_s, 50),
            "diff_p50_ms": _percentile_ms(self.diffs_s, 50),
            "close_p50_ms": _percentile_ms(self.closes_s, 50),
            "cycles_per_s": round(len(self.closes_s) / wall_s, 2),
            "max_alive": self.max_alive,
        }

    async def _runner(self, left: Iterator[int], deadline: float) -> None:
        for _ in left:
            await self._cycle()
            if time.monotonic() > deadline:
                return

    async def _cycle(self) -> None:
        spec = _spec(self.image, self.workdir)
        sandbox = await _timed(self.opens_s, self.backend.open(spec))
        self.alive += 1
        self.max_alive = max(self.max_alive, self.alive)
        try:
            for number, command in enumerate(COMMANDS):
                result = await _timed(self.execs_s, sandbox.run(str(number), command, TIMEOUT_S))
                if result.returncode != 0:
                    output = result.output.decode(errors="replace").strip()
                    raise SandboxError(f"`{command}` ended with {result.returncode}: {output}")
                if command == NOTHING:
                    self.overheads_s.append(self.execs_s[-1])
            patch = await _timed(self.diffs_s, sandbox.diff())
            if b"three" not in patch:
                raise SandboxError("the patch lacks what the commands changed")
        finally:
            await _timed(self.closes_s, _to_the_end(sandbox.close()))
            self.alive -= 1


async def _timed(into_s: list[float], work: Awaitable[T]) -> T:
    started = time.monotonic()
    done = await work
    into_s.append(time.monotonic() - started)
    return done


async def _to_the_end(work: Coroutine[Any, Any, T]) -> T:
    """A cancellation continues only after `work` has ended by itself."""
    task = asyncio.create_task(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await task
        raise


def _percentile_ms(values_s: list[float], percent: int) -> float:
    return round(float(np.percentile(values_s, percent)) * 1000, 2)


@dataclass(frozen=True, slots=True)
class DockerExecCli:
    """Containers by the `docker` program alone. `run_id` labels those of this run."""

    run_id: str

    async def open(self, spec: SandboxSpec) -> Opened:
        assert spec.image is not None
        keep_alive = ["--entrypoint", "sleep", spec.image, "infinity"]
        where = [
            "--network",
            "none",
            "--workdir",
            spec.workdir,
            "--label",
            f"{LABEL}={self.run_id}",
        ]
        status, output = await _docker("run", "-d", *where, *keep_alive)
        if status != 0:
            raise SandboxRefused(f"image {spec.image} cannot run: {output.decode().strip()}")
        return ExecCliSandbox(output.decode().strip())

    async def remove_all(self) -> None:
        _, output = await _docker("ps", "-aq", "--filter", f"label={LABEL}={self.run_id}")
        if containers := output.decode().split():
            await _docker("rm", "-f", "-v", *containers)


@dataclass(frozen=True, slots=True)
class ExecCliSandbox:
    container: str

    async def run(self, turn_id: str, command: str, timeout_s: float) -> CommandResult:
        started = time.monotonic()
        status, output = await _docker("exec", self.container, "bash", "-lc", command)
        return CommandResult(status, output, False, False, time.monotonic() - started)

    async def diff(self) -> bytes:
        script = "git add -A && git diff --cached --binary HEAD"
        status, patch = await _docker("exec", self.container, "bash", "-lc", script)
        if status != 0:
            raise SandboxRefused(f"no patch: {patch.decode(errors='replace').strip()}")
        return patch

    async def close(self) -> None:
        status, output = await _docker("rm", "-f", "-v", self.container)
        if status != 0:
            raise SandboxLost(f"container {self.container}: {output.decode().strip()}")


async def _docker(*arguments: str) -> tuple[int, bytes]:
    """Status and output; a cancelled `run` still ends first, so no container comes later."""
    return await _to_the_end(_run_docker(arguments))


async def _run_docker(arguments: tuple[str, ...]) -> tuple[int, bytes]:
    process = await asyncio.create_subprocess_exec(
        "docker",
        *arguments,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,  # Ctrl-C is for the bench, which then cleans up
    )
    output, _ = await process.communicate()
    assert process.returncode is not None
    return process.returncode, output
