"""A worker under systemd arms the watchdog while it polls, and disarms it before it drains."""

import asyncio
import os
import socket
import sys
from pathlib import Path

from cli.operations.machine.embedded_stack import StackInfo
from workers.watchdog import ALIVE, OFF, tell_watchdog


async def test_a_worker_tells_systemd_that_it_runs_until_it_stops(
    stack: StackInfo, tmp_path: Path
) -> None:
    with listening(tmp_path / "notify") as systemd:
        worker = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "mainspring", "worker", "rollout", "--home", str(stack.home)),
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.DEVNULL,
            env=os.environ | {"NOTIFY_SOCKET": str(tmp_path / "notify")},
        )
        try:
            assert await told(systemd) == ALIVE == b"WATCHDOG_USEC=60000000\nWATCHDOG=1"
            worker.terminate()
            assert await told(systemd) == OFF == b"WATCHDOG_USEC=0"
        finally:
            if worker.returncode is None:
                worker.kill()
            await worker.wait()


async def test_a_systemd_that_does_not_read_ends_no_worker(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "gone"))
    telling = asyncio.ensure_future(tell_watchdog())
    await asyncio.sleep(0.1)
    assert not telling.done()
    telling.cancel()


async def test_without_systemd_nothing_is_told(monkeypatch) -> None:
    monkeypatch.delenv("NOTIFY_SOCKET", raising=False)
    telling = asyncio.ensure_future(tell_watchdog())
    await asyncio.sleep(0.1)
    assert not telling.done()
    telling.cancel()


def listening(path: Path) -> socket.socket:
    systemd = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    systemd.bind(str(path))
    systemd.setblocking(False)
    return systemd


async def told(systemd: socket.socket) -> bytes:
    async with asyncio.timeout(60):
        return await asyncio.get_running_loop().sock_recv(systemd, 100)
