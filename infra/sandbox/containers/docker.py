"""Sandboxes by Docker: one container per sandbox from the task's image, with bash as its process 1.

The host talks to that bash over the container's attached stdin and stdout, about ten times
faster than an exec per command. A container's name is made from the node's state directory and the
sandbox's id, so that the next process after a crash resumes or removes it; labels name its
owner. One that ends itself is removed by the daemon. Podman's Docker API works too. The SDK blocks,
so its calls run in threads. Imported by the sandbox activities through `infra.sandbox.backends`.
"""

import asyncio
import hashlib
import os
import re
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path, PurePosixPath
from typing import ParamSpec, TypeVar
from weakref import WeakValueDictionary

import docker
from docker.errors import APIError, DockerException, ImageNotFound, NotFound
from docker.models.containers import Container
from docker.types import LogConfig
from requests.exceptions import RequestException

from infra.sandbox import clock
from infra.sandbox.containers.docker_stdio import Attachment
from infra.sandbox.containers.image_faults import FIT_REMEDY, daemon_lost, start_fault, text_of
from infra.sandbox.containers.image_history import Seals
from infra.sandbox.containers.images import ImageStore
from infra.sandbox.mounts import checked_mounts
from infra.sandbox.netns import NoEntry
from infra.sandbox.protocol import (
    ImageUnfit,
    Sandbox,
    SandboxBroken,
    SandboxLost,
    SandboxRefused,
    SandboxSpec,
)
from infra.sandbox.session import Handle, LiveSandbox
from infra.sandbox.shell.channel import OWN_PROCESSES, Shell, ShellSetup
from infra.sandbox.variables import exports
from mainspring.ids import SandboxId
from mainspring.protocol.timeouts import DOCKER_BOOT_TIMEOUT_S
from mainspring.tasks.sandbox_choice import DOCKER

ENFORCED: tuple[str, ...] = (
    "no network beyond a task's allow_hosts, no capabilities, no new privileges",
    "Docker's seccomp filter",
    "max_pids, memory_mb (no swap) and cpus of the whole container (cgroup)",
    "disk_mb: size of each file (RLIMIT_FSIZE), of all files where the storage driver has quotas",
)
NOT_ENFORCED: tuple[str, ...] = (
    "disk_mb summed over a container's files, unless the storage driver has quotas",
)
PING_TIMEOUT_S = 2
CALL_TIMEOUT_S = 120
STARTS_AT_ONCE = 2 * (os.cpu_count() or 1)
"""More starts at once only wait for each other in the daemon."""
THREADS = 32
_NO_QUOTA = re.compile("storage-opt|quota", re.IGNORECASE)
"""How storage drivers refuse a size: overlay by the option's name, others by the quota's."""
RUN_DIR = "/tmp/.mainspring"  # inside the container
LABEL = "mainspring"
STATE_LABEL = f"{LABEL}.state"
CHANGE_KINDS = "CAD"
"""As shell.sh has them, in the order of the API's numbers: changed, added, deleted."""
NAME_TAKEN = 409
GONE = (404, 409)
"""The container is not there, or does not run."""
IMAGES_DIR = "images"
"""In the node's state directory: what ImageStore knows of the images it pulled."""
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
    """All containers of one daemon that carry the label of `state_dir`."""

    name = DOCKER
    not_enforced = NOT_ENFORCED

    def __init__(self, state_dir: Path, mirrors: Sequence[str] = ()) -> None:
        """Blocks for up to PING_TIMEOUT_S. Raises BackendUnavailable."""
        self._state = str(state_dir.absolute())
        self._prefix = f"{LABEL}-{hashlib.sha256(self._state.encode()).hexdigest()[:8]}-"
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="docker")
        self._has_quotas = True  # until the storage driver refuses one
        self._starts = asyncio.Semaphore(STARTS_AT_ONCE)
        self._live: dict[SandboxId, LiveSandbox] = {}
        self._locks: WeakValueDictionary[SandboxId, asyncio.Lock] = WeakValueDictionary()
        try:
            # asks the daemon for its version at once
            self._client = docker.from_env(timeout=PING_TIMEOUT_S, max_pool_size=THREADS)
            self._client.api.timeout = CALL_TIMEOUT_S
        except DockerException as error:
            raise daemon_lost(error) from None
        self.images = ImageStore(self._client, state_dir / IMAGES_DIR, mirrors)
        self._seals = Seals(self._client)

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
        # Before taking a turn to start: a pull must not hold up others.
        image = await self._sealed(spec)
        async with self._lock(spec.id), self._starts:
            await self._close_live(spec.id)
            try:
                container = await self._create(spec, image)
                try:
                    return await self._start(container, spec)
                except BaseException:
                    await self._call(self._remove, str(container.id))
                    raise
            except APIError as error:
                fault = start_fault(spec.image, text_of(error))
                raise type(fault)(
                    f"sandbox {spec.id}: {fault.message}", remedy=fault.remedy
                ) from None

    async def attach(self, spec: SandboxSpec, busy_s: float) -> Sandbox:
        async with self._lock(spec.id):
            try:
                container = await self._call(self._client.containers.get, self._name(spec.id))
                if container.status != "running":
                    raise SandboxLost(f"sandbox {spec.id}: its container is {container.status}")
                sandbox = await self._register(container, spec)
                await sandbox.let_out()
            except NotFound:
                raise SandboxLost(f"sandbox {spec.id}: its container is gone") from None
            sandbox.rejoin(busy_s)
            return sandbox

    async def rename(self, sandbox: SandboxId, spec: SandboxSpec) -> Sandbox:
        names = self._name(sandbox), self._name(spec.id)
        async with self._lock(spec.id):
            live = self._live.pop(sandbox, None)
            if live is None:
                raise SandboxLost(f"sandbox {sandbox}, to become {spec.id}, is gone")
            try:
                try:
                    await self._call(self._client.api.rename, *names)
                except APIError as error:
                    if error.status_code != NAME_TAKEN:
                        raise
                    await self._discard(spec.id)
                    await self._call(self._client.api.rename, *names)
            except APIError as error:
                await live.close()
                raise SandboxLost(f"sandbox {sandbox} cannot be taken: {text_of(error)}") from None
            live.rename(spec)
            self._live[spec.id] = live
            self.images.touch(str(spec.image))
            return live

    async def list_open(self) -> list[SandboxId]:
        label = {"label": f"{STATE_LABEL}={self._state}"}
        containers = await self._call(self._client.api.containers, all=True, filters=label)
        return [self._id(container["Names"][0]) for container in containers if container["Names"]]

    async def remove(self, sandbox: SandboxId) -> None:
        async with self._lock(sandbox):
            await self._discard(sandbox)

    async def _sealed(self, spec: SandboxSpec) -> str:
        image = await self.images.ensure(str(spec.image))
        return await self._seals.sealed(image, spec.workdir, spec.alteration)

    def _name(self, sandbox: SandboxId) -> str:
        return (
            self._prefix
            + re.sub(
                rb"[^a-zA-Z0-9.-]", lambda match: b"_%02x" % match[0][0], sandbox.encode()
            ).decode()
        )

    def _id(self, name: str) -> SandboxId:
        quoted = name.removeprefix("/").removeprefix(self._prefix).encode()
        return SandboxId(
            re.sub(rb"_(..)", lambda match: bytes([int(match[1], 16)]), quoted).decode()
        )

    def _lock(self, sandbox: SandboxId) -> asyncio.Lock:
        return self._locks.setdefault(sandbox, asyncio.Lock())

    async def _create(self, spec: SandboxSpec, image: str) -> Container:
        sized = self._has_quotas
        volumes = {
            str(folder.absolute()): {"bind": inside, "mode": "ro"}
            for inside, folder in checked_mounts(spec)
        }
        if spec.clock is not None:
            volumes[str(clock.library())] = {"bind": clock.INSIDE, "mode": "ro"}

        def create() -> Container:
            return self._client.containers.create(
                image,
                name=self._name(spec.id),
                auto_remove=True,
                entrypoint=["bash", "-l"],
                command=[],
                stdin_open=True,
                detach=True,  # or else its stdin would end with the first process that attaches
                working_dir=spec.workdir,
                hostname="sandbox",
                volumes=volumes,
                environment=ENVIRONMENT,
                labels={
                    **{f"{LABEL}.{name}": value for name, value in spec.labels.items()},
                    STATE_LABEL: self._state,
                },
                tmpfs=dict.fromkeys(spec.writable_dirs, "exec,mode=1777"),
                network_mode="none",
                cap_drop=["ALL"],
                security_opt=["no-new-privileges"],
                mem_limit=f"{spec.limits.memory_mb}m",
                memswap_limit=f"{spec.limits.memory_mb}m",
                pids_limit=spec.limits.max_pids + OWN_PROCESSES,
                nano_cpus=int(spec.limits.cpus * 1e9),
                # what passes through stdout is ours already; the daemon need not keep it
                log_config=LogConfig(type="none"),
                storage_opt={"size": f"{spec.limits.disk_mb}m"} if sized else None,
            )

        try:
            return await self._call(create)
        except ImageNotFound:  # collected a moment ago
            self._seals.forget()
            image = await self._sealed(spec)
        except APIError as error:
            if sized and _NO_QUOTA.search(text_of(error)):
                self._has_quotas = False
                return await self._create(spec, image)
            if error.status_code != NAME_TAKEN:
                raise
            await self._discard(spec.id)
        return await self._call(create)

    async def _start(self, container: Container, spec: SandboxSpec) -> LiveSandbox:
        sandbox = await self._register(container, spec)
        setup = ShellSetup(
            workdir=spec.workdir,
            run_dir=RUN_DIR,
            limits=f"ulimit -c 0 -f {spec.limits.disk_mb << 10}",
            variables=exports(spec),
            output_bytes=spec.limits.output_bytes,
        )
        try:
            await self._call(container.start)
            await sandbox.boot(setup, DOCKER_BOOT_TIMEOUT_S)
            await sandbox.let_out()
            await sandbox.ping()  # what serves its turns starts now
        except SandboxRefused as unfit:
            await sandbox.close()
            raise ImageUnfit(f"image {spec.image}: {unfit.message}", remedy=FIT_REMEDY) from None
        except SandboxBroken as broken:
            await sandbox.close()
            fault = start_fault(str(spec.image), broken.message)
            raise fault if isinstance(fault, ImageUnfit) else broken from None
        except BaseException:
            await sandbox.close()
            raise
        return sandbox

    async def _register(self, container: Container, spec: SandboxSpec) -> LiveSandbox:
        """Attached before the container starts, nothing it writes is missed."""
        attached = await Attachment.opened(await self._call(Attachment.attach, container))

        async def send(data: bytes) -> None:
            await self._call(attached.send, data)

        async def destroy() -> None:
            attached.close()
            await self._call(self._remove, str(container.id))
            if self._live.get(sandbox.id) is sandbox:
                del self._live[sandbox.id]

        async def find_pid() -> int:
            try:
                await self._call(container.reload)
            except NotFound:
                raise SandboxLost(f"sandbox {sandbox.id}: its container is gone") from None
            return _process_here(container)

        async def interrupt() -> None:
            try:
                await self._call(container.kill, "SIGUSR1")
            except APIError as error:
                if error.status_code not in GONE:
                    raise

        async def list_changes() -> bytes | None:
            return await self._list_changes(container)

        shell = Shell(attached.reader, send)
        handle = Handle(destroy, find_pid, interrupt, list_changes)
        sandbox = LiveSandbox(spec, RUN_DIR, shell, handle)
        self._live[spec.id] = sandbox
        return sandbox

    async def _list_changes(self, container: Container) -> bytes | None:
        """None with volumes that can be written, which the daemon does not compare with the image,
        and with names that are not UTF-8, which it mangles."""
        if any(mount["RW"] for mount in container.attrs["Mounts"]):
            return None
        mounted = [PurePosixPath(mount["Destination"]) for mount in container.attrs["Mounts"]]
        try:
            entries = await self._call(container.diff) or []
        except APIError as error:
            raise daemon_lost(error) from None
        changes = {str(entry["Path"]): CHANGE_KINDS[int(entry["Kind"])] for entry in entries}
        if any("\N{REPLACEMENT CHARACTER}" in path for path in changes):
            return None
        return b"".join(
            f"{kind}{path}\0".encode()
            for path, kind in changes.items()
            if path != RUN_DIR
            and not path.startswith(f"{RUN_DIR}/")
            # Docker makes them, as it does in the next container.
            and not any(mount.is_relative_to(path) for mount in mounted)
        )

    async def _close_live(self, sandbox: SandboxId) -> None:
        if (live := self._live.pop(sandbox, None)) is not None:
            await live.close()

    async def _discard(self, sandbox: SandboxId) -> None:
        await self._close_live(sandbox)
        async with asyncio.timeout(CALL_TIMEOUT_S):
            while not await self._call(self._remove, self._name(sandbox)):
                await asyncio.sleep(0.1)

    def _remove(self, container: str) -> bool:
        """With its volumes; False when that is under way already."""
        try:
            self._client.api.remove_container(container, force=True, v=True)
        except APIError as error:
            if error.status_code not in GONE:
                raise
            return error.status_code == 404
        return True

    async def _call(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        loop = asyncio.get_running_loop()
        try:
            return await loop.run_in_executor(self._threads, lambda: function(*args, **kwargs))
        except APIError:
            raise
        except (DockerException, RequestException) as error:
            raise daemon_lost(error) from None


def _process_here(container: Container) -> int:
    """The container's first process as this machine counts. Raises NoEntry when the daemon counts
    otherwise: it runs elsewhere, or this process in a container itself."""
    pid = int(container.attrs["State"]["Pid"])
    try:
        if str(container.id) in Path(f"/proc/{pid}/mountinfo").read_text():
            return pid
    except OSError:
        pass
    raise NoEntry(
        f"container {container.name}: its processes cannot be seen from here",
        remedy="run the worker as root beside its Docker daemon, or give the task no network",
    )
