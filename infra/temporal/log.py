"""Lines of Temporal's SDK in the process's one log.

Every client of `connect` has them: the core's lines go to the standard library's logging instead of
standard output. Those of an activity: see `activity_log`.
"""

import logging
from functools import cache

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


@cache
def runtime(metrics_address: str = "") -> Runtime:
    """One for the process: its threads are shared by all clients. `metrics_address`: where it
    answers Prometheus. Raises ConfigError."""
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
