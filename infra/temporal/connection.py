"""Connecting to Temporal: one client per process, with the project's data converter.

Invariants: a namespace holds the work of one store, and a store's work is in one namespace. The
first to connect writes the store's identity into the namespace's metadata, and the namespace into
the store. A client of another store is refused, since it would take that store's tasks and end its
rollouts; one that is to use another namespace is refused, since it would poll where nothing is.
"""

from typing import Literal

import structlog
from temporalio import activity, workflow
from temporalio.api.namespace.v1 import UpdateNamespaceInfo
from temporalio.api.workflowservice.v1 import DescribeNamespaceRequest, UpdateNamespaceRequest
from temporalio.client import Client
from temporalio.contrib.pydantic import pydantic_data_converter
from temporalio.service import RPCError, RPCStatusCode

from infra.db.database import Database
from infra.db.store import StoreId, identity, put_namespace
from infra.temporal.activity_log import BindLogFields
from infra.temporal.log import runtime
from infra.temporal.service import namespace_of, reaching, refuse_other, settled
from infra.tracking import telemetry
from mainspring.config.settings import Settings
from mainspring.errors import TemporalError

OWNER_KEY = "mainspring-store"
"""In the namespace's metadata: the identity of the store whose work it holds."""

_MAY_NOT = (RPCStatusCode.PERMISSION_DENIED, RPCStatusCode.UNIMPLEMENTED)

log = structlog.get_logger()


class ForeignNamespace(TemporalError):
    """The namespace is missing there, or holds the work of another store."""


async def connect(
    settings: Settings,
    database: Database | None = None,
    *,
    name: str | None = None,
    metrics_address: str = "",
) -> Client:
    """With `database`, given by code that starts or polls its work: in the namespace of that work,
    which is marked and recorded as that when it is the first. `name`: of this process, as Temporal
    shows it; else its number and host. `metrics_address`: see `runtime`.

    Raises TemporalError naming the address when nothing answers there, ForeignNamespace,
    OtherNamespace, DatabaseError, ConfigError.
    """
    if database is not None:
        settings = await settled(settings, database)
    # What runs is in the fields; the SDK would write all it knows into each message.
    activity.logger.activity_info_on_message = False
    workflow.logger.workflow_info_on_message = False
    async with reaching(settings) as spoken:
        client = await Client.connect(
            settings.temporal_address,
            namespace=namespace_of(settings),
            data_converter=pydantic_data_converter,
            identity=name,
            interceptors=[BindLogFields(), *telemetry.interceptors()],
            runtime=runtime(metrics_address),
            **spoken,
        )
        if database is not None:
            await _claim_namespace(client, settings.temporal_address, database)
    return client


async def _claim_namespace(client: Client, address: str, database: Database) -> None:
    """Make the namespace this store's, or find that it is. Raises ForeignNamespace, OtherNamespace,
    RPCError, DatabaseError."""
    store = await identity(database)
    owner = await check_owner(client, address, store)
    # Only now: a namespace that is missing there, or another store's, must not be recorded.
    refuse_other(client.namespace, await put_namespace(database, client.namespace), database)
    if owner == "":
        info = UpdateNamespaceInfo(data={OWNER_KEY: store})
        try:
            await client.workflow_service.update_namespace(
                UpdateNamespaceRequest(namespace=client.namespace, update_info=info)
            )
        except RPCError as error:
            if error.status not in _MAY_NOT:
                raise
            log.warning(
                "the namespace is not marked as this store's: this account may not update it",
                namespace=client.namespace,
                data=f"{OWNER_KEY}={store}",
                reason=error.message,
            )
            return
        await check_owner(client, address, store)


async def check_owner(client: Client, address: str, store: StoreId) -> StoreId | Literal[""]:
    """The store, or empty where the namespace has no owner. Raises ForeignNamespace, RPCError."""
    owner = await _owner(client, address)
    if owner not in ("", store):
        raise ForeignNamespace(
            f"namespace {client.namespace} of Temporal at {address} holds the work of store "
            f"{owner[:8]}, and this database is store {store[:8]}: each would end the other's work",
            remedy="set MAINSPRING_TEMPORAL_NAMESPACE to a namespace of its own; or, when that "
            f"store is gone for good, free it: `temporal operator namespace update --data "
            f"{OWNER_KEY}= {client.namespace}`",
        )
    return store if owner else ""


async def _owner(client: Client, address: str) -> str:
    try:
        described = await client.workflow_service.describe_namespace(
            DescribeNamespaceRequest(namespace=client.namespace), retry=True
        )
    except RPCError as error:
        if error.status in _MAY_NOT:
            return ""  # nor may it be looked at, so nothing can be told
        if error.status is not RPCStatusCode.NOT_FOUND:
            raise
        raise ForeignNamespace(
            f"Temporal at {address} has no namespace {client.namespace}",
            remedy="it may be another home's server: compare with `mainspring status`; or set "
            "MAINSPRING_TEMPORAL_NAMESPACE to one that exists there",
        ) from None
    return described.namespace_info.data.get(OWNER_KEY, "")
