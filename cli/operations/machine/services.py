"""The services a command needs, opened for one call; errors worded for a person."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from temporalio.client import Client, WorkflowUpdateFailedError
from temporalio.service import RPCError, RPCStatusCode

from cli.operations.machine.spoken import spoken
from infra.db.connect import open_database
from infra.db.database import Database
from infra.log_setup import set_up
from infra.temporal.connection import connect
from mainspring.config.settings import Settings, load_settings
from mainspring.errors import TemporalError, UsageError

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Services:
    settings: Settings
    db: Database
    client: Client


async def with_services(
    home: Path | None,
    call: Callable[[Services], Awaitable[T]],
    *,
    say: Callable[[str], None],
    what: str = "",
) -> T:
    """`say` and `what`: of `spoken`. Raises DatabaseError, TemporalError, and UsageError for a
    workflow that is not there."""
    return await spoken(_with_services(home, call), lambda: load_settings(home), say, what=what)


async def _with_services(home: Path | None, call: Callable[[Services], Awaitable[T]]) -> T:
    settings = load_settings(home)
    set_up(settings.log_format, for_a_person=True)
    async with opened(settings) as services:
        return await call(services)


@asynccontextmanager
async def opened(settings: Settings) -> AsyncIterator[Services]:
    """Both services, for what is done within. Raises as `with_services`."""
    async with open_database(settings) as db:
        client = await connect(settings, db)
        settings = settings.in_namespace(client.namespace)
        try:
            yield Services(settings, db, client)
        except RPCError as error:
            if error.status is RPCStatusCode.NOT_FOUND:
                raise UsageError(
                    f"no such running workflow: {error.message}",
                    remedy="see `mainspring campaign list`",
                ) from None
            raise TemporalError(f"Temporal refused: {error.message}") from None
        except WorkflowUpdateFailedError as error:
            raise TemporalError(f"the workflow refused: {error.cause}") from None
