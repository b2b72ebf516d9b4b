"""Temporal's service by itself: what screens ask, without the SDK's client and workers, which take
twice as long to load. And which namespace a store's work is in.

Invariants: a server that is not configured, does not answer or refuses is a TemporalError with its
address. Imported by `connection`, and by screens that only look.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Protocol

from temporalio.service import ConnectConfig, RPCError, ServiceClient, WorkflowService

from infra.db.connect import with_recorded_namespace
from infra.db.database import Database
from infra.temporal.log import runtime
from infra.temporal.transport import transport, unanswered
from mainspring.config.settings import USUAL_NAMESPACE, Settings
from mainspring.errors import TemporalError

CONNECT_TIMEOUT_S = 10.0


class OtherNamespace(TemporalError):
    """The store's work is in another namespace than the one this process is to use."""


class Namespace(Protocol):
    """A namespace of a server that answers: the SDK's client is one as well."""

    @property
    def workflow_service(self) -> WorkflowService: ...

    @property
    def namespace(self) -> str: ...


@dataclass(frozen=True, slots=True)
class SeenNamespace:
    """A namespace to look at."""

    workflow_service: WorkflowService
    namespace: str


async def connect_to_look(settings: Settings, database: Database) -> SeenNamespace:
    """The namespace of the database's work. Raises as `connection.connect`."""
    settings = await settled(settings, database)
    async with reaching(settings) as spoken:
        config = ConnectConfig(settings.temporal_address, runtime=runtime(), **spoken)
        service = await ServiceClient.connect(config)
    return SeenNamespace(service.workflow_service, namespace_of(settings))


@asynccontextmanager
async def reaching(settings: Settings) -> AsyncIterator[dict[str, Any]]:
    """For connecting in its block: gives the arguments of that, beside the address. Raises
    TemporalError, ConfigError."""
    if not settings.temporal_address:
        raise TemporalError(
            f"no Temporal server is configured and none is recorded in {settings.stack_file}",
            remedy="run `mainspring up`, or set MAINSPRING_TEMPORAL_ADDRESS=host:port",
        )
    spoken = transport(settings)
    try:
        async with asyncio.timeout(CONNECT_TIMEOUT_S):
            yield spoken
    except (RuntimeError, RPCError, TimeoutError) as error:
        raise unanswered(settings, error) from None


def namespace_of(settings: Settings) -> str:
    return settings.temporal_namespace or USUAL_NAMESPACE


async def settled(settings: Settings, database: Database) -> Settings:
    """With the namespace that the database records, where it records one. Raises OtherNamespace,
    DatabaseError."""
    recorded = await with_recorded_namespace(settings, database)
    if settings.temporal_namespace:
        refuse_other(settings.temporal_namespace, recorded.temporal_namespace, database)
    return recorded


def refuse_other(requested: str, recorded: str, database: Database) -> None:
    """Raises OtherNamespace."""
    if requested != recorded:
        raise OtherNamespace(
            f"the work of database {database.name} is in Temporal namespace {recorded}, and this "
            f"process is to use namespace {requested}, where it would find none of it",
            remedy=f"set MAINSPRING_TEMPORAL_NAMESPACE={recorded}, or leave it unset; `mainspring "
            "temporal move` moves the work to another namespace",
        )
