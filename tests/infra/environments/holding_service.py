"""A process that starts a service as a node does, tells its id, and waits to be killed."""

import asyncio
import sys
from pathlib import Path

from infra.environments.gym.services import GymServices
from mainspring.config.agents.environments import EnvironmentConfig


async def main(folder: str, *command: str) -> None:
    services = GymServices(Path(folder))
    fields = {"kind": "agentgym", "family": "textcraft", "command": command}
    service = services.of("c", "rooms", EnvironmentConfig.model_validate(fields))
    await service.running()
    assert service.process is not None
    print(service.process.pid, flush=True)
    await asyncio.sleep(600)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
