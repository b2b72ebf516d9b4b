"""OpenTelemetry of one process: its spans go to the collector that OTEL_* variables name.

Invariants: without OTEL_EXPORTER_OTLP_ENDPOINT (or its variant for traces) nothing of it is loaded;
what cannot work is refused when the process starts, never later; a collector that is slow or away
costs a line of the log, and spans that find no room, and nothing waits for it but the end of the
process, which has a bound. Imported by worker processes and by the connection to Temporal.
"""

import logging
import os
import socket
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import structlog

from infra.tracking import spans
from mainspring import __version__
from mainspring.errors import ConfigError

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import ReadableSpan
    from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
    from temporalio.client import Interceptor

ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
PROTOCOLS = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
EXPORTER = "OTEL_TRACES_EXPORTER"
DISABLED = "OTEL_SDK_DISABLED"
FLUSH_S = 3.0
"""At the end of the process, for spans that are not sent yet."""
TOLD_EVERY_S = 60.0
"""Between two lines of the log about a collector that does not answer."""

log = structlog.get_logger()
_provider: Any = None
_interceptors: list[Any] = []


def begin(role: str) -> None:
    """Send spans from now on, where a collector is named. Raises ConfigError."""
    global _provider
    endpoint = _endpoint()
    if endpoint is None or _provider is not None:
        return
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import OTELResourceDetector, Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor

        from infra.tracking.run_traces import RunTraces
    except ImportError as error:
        raise ConfigError(
            f"{endpoint.name} is set, and the extra 'otel' is not installed here ({error})",
            remedy="pip install 'mainspring[otel]', or unset the variable",
        ) from None
    own = Resource(
        {
            "service.name": f"mainspring-{role}",
            "service.instance.id": f"{socket.gethostname()}/{os.getpid()}",
            "service.version": __version__,
        }
    )
    # What OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES set comes before it.
    resource = Resource.create().merge(own).merge(OTELResourceDetector().detect())
    # Not the global one: that is left to libraries which have spans of their own.
    provider = TracerProvider(resource=resource, shutdown_on_exit=False)
    processor = BatchSpanProcessor(_told(OTLPSpanExporter(), endpoint.shown))
    provider.add_span_processor(processor)
    _provider = provider
    _interceptors.append(RunTraces(provider, processor))
    spans.use(provider.get_tracer("mainspring"))
    log.info("spans are sent to a collector", collector=endpoint.shown)


def interceptors() -> "Sequence[Interceptor]":
    """For a client of Temporal and its workers; empty where no spans are sent."""
    return _interceptors


def end() -> None:
    """Send what is left, for at most FLUSH_S."""
    global _provider
    provider, _provider = _provider, None
    if provider is None:
        return
    spans.use(None)
    _interceptors.clear()
    # A daemon, because the SDK has no bound that holds while a request is under way.
    flushing = threading.Thread(target=provider.shutdown, name="last spans", daemon=True)
    flushing.start()
    flushing.join(FLUSH_S)


@dataclass(frozen=True, slots=True)
class _Endpoint:
    name: str
    """Name of the variable."""
    shown: str
    """Its URL without a name and a password."""


def _endpoint() -> _Endpoint | None:
    """None: no spans are asked for. Raises ConfigError."""
    if os.environ.get(DISABLED, "").strip().lower() == "true":
        return None
    name = next((each for each in ENDPOINTS if os.environ.get(each)), None)
    exporter = os.environ.get(EXPORTER, "") or "otlp"
    if name is None or exporter == "none":
        return None
    if exporter != "otlp":
        raise ConfigError(
            f"{EXPORTER} = {exporter!r}: Mainspring sends spans as otlp alone",
            remedy="set it to otlp, or to none to send no spans",
        )
    protocol = next((os.environ[each] for each in PROTOCOLS if os.environ.get(each)), None)
    if protocol not in (None, "http/protobuf"):
        raise ConfigError(
            f"OTEL_EXPORTER_OTLP_PROTOCOL = {protocol!r}: Mainspring sends spans over "
            "http/protobuf alone",
            remedy="unset it, and give the collector's address for HTTP, usually with port 4318",
        )
    url = os.environ[name]
    if not url.startswith(("http://", "https://")):
        raise ConfigError(
            f"{name} = {url!r} is no URL of a collector",
            remedy="give one with its scheme, as http://collector:4318",
        )
    parts = urlsplit(url)
    return _Endpoint(name, parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl())


def _told(exporter: "SpanExporter", collector: str) -> "SpanExporter":
    """The exporter, with one line a minute in the place of its own many."""
    from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

    last = _LastWords()
    theirs = logging.getLogger("opentelemetry")
    theirs.addHandler(last)
    theirs.propagate = False

    class Told(SpanExporter):
        def __init__(self) -> None:
            self._num_lost = 0
            self._told_at: float | None = None

        def export(self, spans: "Sequence[ReadableSpan]") -> "SpanExportResult":
            result = exporter.export(spans)
            if result is SpanExportResult.SUCCESS:
                if self._num_lost:
                    log.info(
                        "the collector answers again", collector=collector, lost=self._num_lost
                    )
                self._num_lost, self._told_at = 0, None
                return result
            self._num_lost += len(spans)
            now = time.monotonic()
            if self._told_at is None or now - self._told_at >= TOLD_EVERY_S:
                self._told_at = now
                log.warning(
                    "the collector takes no spans; they are lost, and all else continues",
                    collector=collector,
                    lost=self._num_lost,
                    reason=last.text,
                )
            return result

        def shutdown(self) -> None:
            exporter.shutdown()

        def force_flush(self, timeout_millis: int = 30_000) -> bool:
            return exporter.force_flush(timeout_millis)

    return Told()


class _LastWords(logging.Handler):
    """Keeps the newest message of OpenTelemetry's own loggers."""

    text = ""

    def emit(self, record: logging.LogRecord) -> None:
        self.text = record.getMessage()
