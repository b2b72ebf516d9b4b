"""A Docker daemon of a test's own, that it may stop, kill and start again."""

import asyncio
import os
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass
from pathlib import Path

import docker
from docker.errors import DockerException

START_TIMEOUT_S = 180.0
STOP_TIMEOUT_S = 180.0


@dataclass(slots=True)
class Dockerd:
    directory: Path
    process: asyncio.subprocess.Process | None = None

    @property
    def address(self) -> str:
        return f"unix://{self.directory}/docker.sock"

    async def start(self) -> None:
        with (self.directory / "log").open("ab") as log:
            self.process = await asyncio.create_subprocess_exec(
                *("setpriv", "--pdeathsig", "TERM", "dockerd", "--host", self.address),
                *("--data-root", f"{self.directory}/data", "--exec-root", f"{self.directory}/exec"),
                *("--pidfile", f"{self.directory}/pid", "--bridge=none", "--iptables=false"),
                stdout=log,
                stderr=log,
            )
        async with asyncio.timeout(START_TIMEOUT_S):
            while not await asyncio.to_thread(self._answers):
                if self.process.returncode is not None:
                    raise OSError((self.directory / "log").read_text()[-500:])
                await asyncio.sleep(0.2)

    async def stop(self) -> None:
        """As a restart of the service does it: containers end with the daemon."""
        if self.process is None or self.process.returncode is not None:
            return
        self.process.terminate()
        async with asyncio.timeout(STOP_TIMEOUT_S):
            await self.process.wait()

    def load(self, image: str) -> None:
        """Blocking: copy `image` from the daemon of the environment."""
        with closing(docker.from_env(timeout=120)) as theirs, self.client() as ours:
            ours.images.load(theirs.images.get(image).save(named=True))

    def client(self) -> "closing[docker.DockerClient]":
        return closing(docker.DockerClient(base_url=self.address, timeout=120))

    def _answers(self) -> bool:
        try:
            with self.client() as client:
                return client.ping()
        except DockerException:
            return False


def reason_for_none() -> str | None:
    if os.geteuid() != 0:
        return "only root can start a Docker daemon"
    return None if shutil.which("dockerd") else "there is no dockerd on this machine"


@asynccontextmanager
async def own_dockerd(directory: Path) -> AsyncIterator[Dockerd]:
    """Raises OSError when it cannot start."""
    directory.mkdir()
    daemon = Dockerd(directory)
    try:
        await daemon.start()
        yield daemon
    finally:
        await daemon.stop()
        mounts = [line.split()[1] for line in Path("/proc/mounts").read_text().splitlines()]
        for mount in mounts:
            if mount.startswith(f"{directory}/"):
                umount = await asyncio.create_subprocess_exec("umount", "--lazy", mount)
                await umount.wait()
        shutil.rmtree(directory, ignore_errors=True)
