"""Connecting to Temporal: one client per process, with the project's data converter."""

import asyncio

from temporalio.client import Client
from temporalio.contrib.pydantic import pydantic_data_converter
from temporalio.service import RPCError

from mainspring.errors import TemporalError
from mainspring.settings import Settings

CONNECT_TIMEOUT_S = 10.0


async def connect(settings: Settings) -> Client:
    """Raises TemporalError naming the address when nothing answers there."""
    if not settings.temporal_address:
        raise TemporalError(
            f"no Temporal server is configured and none is recorded in {settings.stack_file}",
            remedy="run `mainspring up`, or set MAINSPRING_TEMPORAL_ADDRESS=host:port",
        )
    try:
        return await asyncio.wait_for(
            Client.connect(
                settings.temporal_address,
                namespace=settings.temporal_namespace,
                data_converter=pydantic_data_converter,
            ),
            CONNECT_TIMEOUT_S,
        )
    except (RuntimeError, RPCError, TimeoutError) as error:
        raise TemporalError(
            f"Temporal at {settings.temporal_address} does not answer: {error}",
            remedy="run `mainspring status`; `mainspring up` starts the embedded server",
        ) from None
