"""The services of an action, opened for one of them: the viewer's own sessions can change nothing.

Invariant: nothing that an action opens outlives it. Imported by the actions beside this file.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from cli.operations.machine.services import Services, opened
from cli.operations.machine.spoken import spoken
from infra.db.connect import with_database
from infra.db.database import Database
from mainspring.config.settings import load_settings
from view.actions.protocol import Say

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Place:
    """The home folder whose services are asked."""

    home: Path | None

    async def read(self, call: Callable[[Database], Awaitable[T]]) -> T:
        """Read for a preview. Raises DatabaseError."""
        return await with_database(self.home, call)

    async def act(self, call: Callable[[Services], Awaitable[T]], say: Say) -> T:
        """Do what needs Temporal, too. Raises DatabaseError, TemporalError."""

        async def work() -> T:
            async with opened(load_settings(self.home)) as services:
                return await call(services)

        return await spoken(work(), lambda: load_settings(self.home), say)


def counted(number: int, noun: str, plural: str = "") -> str:
    """The number with its noun."""
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"
