"""An endpoint as a process of its own, which a test kills and starts again."""

import asyncio
import subprocess
import sys
from dataclasses import dataclass, field

from infra.stack import ports


@dataclass(slots=True)
class EndpointProcess:
    """A process that is started again after each kill."""

    module: str
    arguments: tuple[str, ...] = ()
    port: int = field(default_factory=ports.pick)
    process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    def start(self) -> None:
        command = [sys.executable, "-m", self.module, str(self.port), *self.arguments]
        self.process = subprocess.Popen(command)

    def kill(self) -> None:
        assert self.process is not None
        self.process.kill()
        self.process.wait()

    async def answers(self) -> bool:
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", self.port)
        except OSError:
            return False
        writer.close()
        return True
