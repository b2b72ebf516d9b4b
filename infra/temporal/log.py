"""Lines of Temporal's SDK in the process's one log; those of an activity with whose they are.

Every client of `connect` has both: the core's lines go to the standard library's
logging instead of standard output, and whatever is logged while an activity runs carries the
campaign, rollout and turn that its input names.
"""

import logging
from functools import cache
from typing import Any

import structlog
import temporalio.client
import temporalio.worker
from temporalio import activity, workflow
from temporalio.runtime import (
    LogForwardingConfig,
    LoggingConfig,
    PrometheusConfig,
    Runtime,
    TelemetryConfig,
    TelemetryFilter,
)

from mainspring.errors import ConfigError

CORE_LOGGER = "temporalio.core"
BOUND = ("campaign", "rollout", "turn")
"""Fields of an activity's input that each of its lines carries."""


@cache
def runtime(metrics_address: str = "") -> Runtime:
    """One for the process: its threads are shared by all clients. `metrics_address`: where it
    answers Prometheus. Raises ConfigError."""
    # What runs is in the fields; the SDK would write all it knows into each message.
    activity.logger.activity_info_on_message = False
    workflow.logger.workflow_info_on_message = False
    forwarding = LogForwardingConfig(
        logger=logging.getLogger(CORE_LOGGER),
        append_target_to_name=False,
        prepend_target_on_message=False,
    )
    levels = TelemetryFilter(core_level="WARN", other_level="ERROR")
    logs = LoggingConfig(filter=levels, forwarding=forwarding)
    if not metrics_address:
        return Runtime(telemetry=TelemetryConfig(logging=logs))
    prometheus = PrometheusConfig(bind_address=metrics_address)
    try:
        return Runtime(telemetry=TelemetryConfig(logging=logs, metrics=prometheus))
    except (ValueError, RuntimeError) as error:
        raise ConfigError(
            f"MAINSPRING_METRICS_ADDRESS = {metrics_address!r} cannot be used: {error}",
            remedy="give an IP address and a free port of this machine, as 0.0.0.0:9464, for each "
            "process that has metrics",
        ) from None


class BindLogFields(temporalio.client.Interceptor, temporalio.worker.Interceptor):
    def intercept_activity(
        self, next: temporalio.worker.ActivityInboundInterceptor
    ) -> temporalio.worker.ActivityInboundInterceptor:
        return _BindOfActivity(next)


class _BindOfActivity(temporalio.worker.ActivityInboundInterceptor):
    async def execute_activity(self, input: temporalio.worker.ExecuteActivityInput) -> Any:
        request = input.args[0] if input.args else None
        fields = {name: getattr(request, name) for name in BOUND if hasattr(request, name)}
        with structlog.contextvars.bound_contextvars(
            activity=activity.info().activity_type, **fields
        ):
            return await super().execute_activity(input)
