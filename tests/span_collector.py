"""A collector of OpenTelemetry for tests: takes spans over HTTP, as any collector does."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue


@dataclass(frozen=True, slots=True)
class TakenSpan:
    trace: str
    id: str
    parent: str
    """Empty: a root."""
    name: str
    start_ns: int
    end_ns: int
    attributes: dict[str, Any]
    error: str | None
    service: dict[str, Any]


@dataclass(slots=True)
class Collector:
    url: str = ""
    status: int = 200
    """Status of each answer."""
    spans: list[TakenSpan] = field(default_factory=list)
    num_requests: int = 0

    def trace(self, id: str) -> dict[str, TakenSpan]:
        """Spans of one trace, by their id."""
        return {span.id: span for span in list(self.spans) if span.trace == id}

    def take(self, body: bytes) -> None:
        request = ExportTraceServiceRequest.FromString(body)
        for of_resource in request.resource_spans:
            service = _values(of_resource.resource.attributes)
            for scope in of_resource.scope_spans:
                self.spans += [
                    TakenSpan(
                        span.trace_id.hex(),
                        span.span_id.hex(),
                        span.parent_span_id.hex(),
                        span.name,
                        span.start_time_unix_nano,
                        span.end_time_unix_nano,
                        _values(span.attributes),
                        span.status.message if span.status.code == 2 else None,
                        service,
                    )
                    for span in scope.spans
                ]


def _values(attributes: Any) -> dict[str, Any]:
    def value(given: AnyValue) -> Any:
        return getattr(given, given.WhichOneof("value") or "string_value")

    def pair(each: KeyValue) -> tuple[str, Any]:
        return each.key, value(each.value)

    return dict(map(pair, attributes))


@contextmanager
def collecting(status: int = 200) -> Iterator[Collector]:
    collector = Collector(status=status)

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            collector.num_requests += 1
            if collector.status == 200 and self.path == "/v1/traces":
                collector.take(body)
            self.send_response(collector.status)
            self.end_headers()
            self.wfile.write(ExportTraceServiceResponse().SerializeToString())

        def log_message(self, format: str, *args: Any) -> None:
            """The test's output has no place for it."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    collector.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield collector
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
