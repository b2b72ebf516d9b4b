"""Tasks of services over HTTP: one for each number of each section of a campaign file.

Invariants: a task's issue is what the service shows first for its number, so its agent is shown
that, and what is stored is checked against the service whenever a world is opened; the training
tasks come first, then the held-out ones. Every world is closed again where the service has a route.
Imported by `resolve`.
"""

import asyncio
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from infra.environments.gym.services import GymServices
from infra.sandbox.protocol import SandboxRefused
from infra.sources.protocol import ImportOptions, Place, RowError, RowProblem, SourceRow
from infra.sources.rows import read_row
from mainspring.config.agents.environments import EnvironmentConfig
from mainspring.config.files.reading import read_environments
from mainspring.environments.families import DATA_IDX
from mainspring.environments.protocol import WorldLost
from mainspring.errors import ServiceError, UsageError

SUFFIX = ".toml"


class ServiceSource:
    """Implements `protocol.TaskSource`."""

    def __init__(self, path: Path, options: ImportOptions) -> None:
        """Raises ConfigError."""
        self._path = path
        self._options = options
        self._sections = read_environments(path)
        if not self._sections:
            raise UsageError(
                f"{path} has no section [environments.NAME] of a service",
                remedy="tasks of another kind are imported from a file of rows (docs/tasks.md)",
            )

    def rows(self) -> Iterator[SourceRow]:
        for name, config in self._sections.items():
            # In a thread, as this one may have a loop. A service lives as long as its thread.
            with ThreadPoolExecutor(1) as thread:
                shown = thread.submit(asyncio.run, _openings(name, config)).result()
            for number, opening in enumerate(shown):
                row = self._row(name, config, number, opening)
                if row is not None:
                    yield row

    def _row(
        self, name: str, config: EnvironmentConfig, number: int, opening: str | SandboxRefused
    ) -> SourceRow | None:
        place = Place(f"{self._path}, environments.{name}", number + 1)
        if isinstance(opening, SandboxRefused):
            error = RowError(RowProblem.IMPOSSIBLE, opening.message, remedy=opening.remedy)
            return SourceRow(place, f"{name}-{number}", error)
        raw = {
            "id": f"{name}-{number}",
            "kind": name,
            "split": "train" if number < config.num_tasks else "heldout",
            "issue": opening,
            "data": {DATA_IDX: number},
        }
        return read_row(raw, place, self._options, source=name)


async def _openings(name: str, config: EnvironmentConfig) -> list[str | SandboxRefused]:
    """Texts that the service shows first, by number. Raises ServiceError and EnvironmentBroken."""
    services = GymServices(None)
    service = services.of("import", name, config)
    timeout_s = config.request_timeout_s
    shown: list[str | SandboxRefused] = []
    try:
        await service.running()
        for number in range(config.num_tasks + config.num_heldout):
            ident = await service.take_id(number)
            try:
                async with service.asking() as client:
                    shown.append((await client.reset(ident, number, timeout_s)).observation)
            except SandboxRefused as refused:
                shown.append(refused)
            finally:
                await service.give_back(ident, service.life)
        return shown
    except WorldLost as lost:
        raise ServiceError(lost.message, remedy=lost.remedy) from lost
    finally:
        await services.close()
