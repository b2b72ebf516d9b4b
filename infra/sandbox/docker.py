"""Sandboxes by Docker: one container per sandbox from the task's image, with bash as its process 1.

The host talks to that bash over the container's attached stdin and stdout, about ten times
faster than an exec per command. Labels name the sandbox, its owner and the node's state directory:
whoever comes after a crash finds containers by them. Podman's Docker API works too. The SDK blocks,
so its calls run in threads. Imported by the sandbox activities through `infra.sandbox.select`.
"""

import asyncio
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, ParamSpec, TypeVar
from weakref import WeakValueDictionary

import docker
from docker.errors import APIError, DockerException, ImageNotFound
from docker.models.containers import Container
from docker.types import LogConfig
from requests.exceptions import RequestException

from infra.sandbox.attachment import Attachment
from infra.sandbox.live import LiveSandbox
from infra.sandbox.protocol import BackendUnavailable, Sandbox, SandboxRefused, SandboxSpec
from infra.sandbox.shell import OWN_PROCESSES, Shell, ShellGone, ShellSetup
from mainspring.ids import SandboxId
from mainspring.tasks import BackendName

ENFORCED: tuple[str, ...] = (
    "no network, no capabilities, no new privileges, Docker's seccomp filter",
    "max_pids, memory_mb (no swap) and cpus of the whole container (cgroup)",
    "disk_mb: size of each file (RLIMIT_FSIZE)",
)
NOT_ENFORCED: tuple[str, ...] = (
    "disk_mb summed over a container's files, unless the storage driver has quotas",
)
PING_TIMEOUT_S = 2
CALL_TIMEOUT_S = 120
BOOT_TIMEOUT_S = 120.0
"""The image's login profile runs, and a big working tree is compared with its index."""
STARTS_AT_ONCE = 2 * (os.cpu_count() or 1)
"""More starts at once only wait for each other in the daemon."""
THREADS = 32
RUN_DIR = "/tmp/.mainspring"  # inside the container
ID_LABEL = "mainspring.sandbox"
STATE_LABEL = "mainspring.state"
IMAGE_REMEDY = "an image needs bash, git, tar and the repository at the task's workdir"
ENVIRONMENT = {
    "LANG": "C.UTF-8",
    "PAGER": "cat",
    "PYTHONDONTWRITEBYTECODE": "1",
    "GIT_CONFIG_COUNT": "3",
    "GIT_CONFIG_KEY_0": "safe.directory",
    "GIT_CONFIG_VALUE_0": "*",
    "GIT_CONFIG_KEY_1": "user.name",
    "GIT_CONFIG_VALUE_1": "Agent",
    "GIT_CONFIG_KEY_2": "user.email",
    "GIT_CONFIG_VALUE_2": "agent@localhost",
}

P = ParamSpec("P")
T = TypeVar("T")


class DockerBackend:
    """All containers of one daemon whose state label is `state_dir`."""

    name = BackendName.DOCKER

    def __init__(self, state_dir: Path) -> None:
        """Blocks for up to PING_TIMEOUT_S. Raises BackendUnavailable."""
        self._state = str(state_dir.absolute())
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="docker")
        self._starts = asyncio.Semaphore(STARTS_AT_ONCE)
        self._live: dict[SandboxId, LiveSandbox] = {}
        self._locks: WeakValueDictionary[SandboxId, asyncio.Lock] = WeakValueDictionary()
        try:
            # asks the daemon for its version at once
            self._client = docker.from_env(timeout=PING_TIMEOUT_S, max_pool_size=THREADS)
            self._client.api.timeout = CALL_TIMEOUT_S
        except DockerException as error:
            raise _no_daemon(error) from None

    async def probe(self) -> None:
        """Ask the daemon for a sign of life. Raises BackendUnavailable."""

        def ping() -> None:
            client = docker.from_env(timeout=PING_TIMEOUT_S)
            try:
                client.ping()
            finally:
                client.close()

        await self._call(ping)

    async def open(self, spec: SandboxSpec) -> Sandbox:
        if spec.image is None:
            raise SandboxRefused(
                f"sandbox {spec.id}: Docker needs an image, and the task names none",
                remedy="give the task an image, or run it on a node with bubblewrap",
            )
        async with self._lock(spec.id), self._starts:
            try:
                await self._discard(spec.id)
                container = await self._create(spec, spec.image)
                try:
                    sandbox = await self._start(container, spec)
                except BaseException:
                    await self._call(self._remove, str(container.id))
                    raise
            except APIError as error:
                raise SandboxRefused(
                    f"sandbox {spec.id}: image {spec.image} cannot run: {error.explanation}",
                    remedy=IMAGE_REMEDY,
                ) from None
            self._live[spec.id] = sandbox
            return sandbox

    async def list_open(self) -> list[SandboxId]:
        found = await self._call(self._containers, {STATE_LABEL: self._state})
        return [SandboxId(container["Labels"][ID_LABEL]) for container in found]

    async def remove(self, sandbox: SandboxId) -> None:
        async with self._lock(sandbox):
            await self._discard(sandbox)

    def _lock(self, sandbox: SandboxId) -> asyncio.Lock:
        return self._locks.setdefault(sandbox, asyncio.Lock())

    async def _create(self, spec: SandboxSpec, image: str) -> Container:
        def create() -> Container:
            return self._client.containers.create(
                image,
                entrypoint=["bash", "-l"],
                command=[],
                stdin_open=True,
                working_dir=spec.workdir,
                environment=ENVIRONMENT,
                labels={**spec.labels, ID_LABEL: spec.id, STATE_LABEL: self._state},
                network_mode="none",
                cap_drop=["ALL"],
                security_opt=["no-new-privileges"],
                mem_limit=f"{spec.limits.memory_mb}m",
                memswap_limit=f"{spec.limits.memory_mb}m",
                pids_limit=spec.limits.max_pids + OWN_PROCESSES,
                nano_cpus=int(spec.limits.cpus * 1e9),
                # what passes through stdout is ours already; the daemon need not keep it
                log_config=LogConfig(type="none"),
            )

        try:
            return await self._call(create)
        except ImageNotFound:
            await self._pull(spec, image)
        return await self._call(create)

    async def _pull(self, spec: SandboxSpec, image: str) -> None:
        try:
            await self._call(self._client.images.pull, image)
        except APIError as error:
            raise SandboxRefused(
                f"sandbox {spec.id}: image {image} is not on this node and cannot be pulled: "
                f"{error.explanation}",
                remedy="check the name, log in to its registry, or load it with `docker load`",
            ) from None

    async def _start(self, container: Container, spec: SandboxSpec) -> LiveSandbox:
        attached = await Attachment.opened(await self._call(Attachment.attach, container))

        async def send(data: bytes) -> None:
            await self._call(attached.send, data)

        async def destroy() -> None:
            attached.close()
            await self._call(self._remove, str(container.id))
            if self._live.get(spec.id) is sandbox:
                del self._live[spec.id]

        shell = Shell(attached.reader, send)
        sandbox = LiveSandbox(spec, RUN_DIR, shell, destroy)
        setup = ShellSetup(
            workdir=spec.workdir,
            run_dir=RUN_DIR,
            limits=f"ulimit -c 0 -f {spec.limits.disk_mb << 10}",
            output_bytes=spec.limits.output_bytes,
        )
        try:
            await self._call(container.start)
            status, said = await shell.boot(setup, BOOT_TIMEOUT_S)
            if status != 0:
                raise ShellGone("it lacks what a sandbox needs", said)
        except ShellGone as gone:
            await sandbox.close()
            raise SandboxRefused(
                f"sandbox {spec.id}: image {spec.image}: {gone}: "
                f"{gone.said.decode(errors='replace').strip()[-500:]}",
                remedy=IMAGE_REMEDY,
            ) from None
        except BaseException:
            await sandbox.close()
            raise
        return sandbox

    async def _discard(self, sandbox: SandboxId) -> None:
        if (live := self._live.pop(sandbox, None)) is not None:
            await live.close()
        labels = {STATE_LABEL: self._state, ID_LABEL: sandbox}
        for container in await self._call(self._containers, labels):
            await self._call(self._remove, container["Id"])

    def _containers(self, labels: dict[str, str]) -> list[dict[str, Any]]:
        wanted = [f"{name}={value}" for name, value in labels.items()]
        return self._client.api.containers(all=True, filters={"label": wanted})

    def _remove(self, container: str) -> None:
        """With its volumes; gone already, or on its way out, is fine."""
        try:
            self._client.api.remove_container(container, force=True, v=True)
        except APIError as error:
            if error.status_code not in (404, 409):
                raise

    async def _call(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        loop = asyncio.get_running_loop()
        try:
            return await loop.run_in_executor(self._threads, lambda: function(*args, **kwargs))
        except APIError:
            raise
        except (DockerException, RequestException) as error:
            raise _no_daemon(error) from None


def _no_daemon(error: Exception) -> BackendUnavailable:
    return BackendUnavailable(
        f"no Docker daemon answers: {error}",
        remedy="start Docker (or Podman's socket), or set DOCKER_HOST to where it listens",
    )
