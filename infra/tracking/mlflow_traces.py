"""Traces of rollouts in MLflow, linked to the campaign's run.

Invariants: ids of traces and spans follow from the rollout, and MLflow keeps one span of an id, so
a trace that is sent again after a kill stands once; the metric that marks a step is written after
all its traces, so a step that has the mark has all of them. Spans go straight into MLflow's store
or to its server: MLflow's own tracing, which the OTEL_* variables steer, has no part in it.
"""

import json
from collections.abc import Mapping, Sequence

from infra.tracking.mlflow_run import CampaignRun  # isort: skip  # it sets MLflow's environment

from mlflow.entities import Metric
from mlflow.entities import Span as MlflowSpan
from mlflow.tracing.client import TracingClient
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.trace import SpanContext, Status, StatusCode, TraceFlags

from infra.tracking.protocol import TrackedBy
from mainspring.status import CampaignStatus
from mainspring.training.tracking import TRACES, PointId, TracedStep
from mainspring.trajectories.spans import PlacedSpan, SpanKind, Trace, Value, attribute_name

MARKER = "traces/logged"
"""Metric of the run: how many traces each step has."""
MAX_TAG = 250
"""Characters of a tag, which every store takes."""
_TYPES = {
    SpanKind.ROLLOUT: "AGENT",
    SpanKind.TURN: "CHAIN",
    SpanKind.REPLY: "CHAT_MODEL",
    SpanKind.COMMAND: "TOOL",
    SpanKind.JUDGE: "EVALUATOR",
    SpanKind.GRADE: "EVALUATOR",
}


class MlflowTraces:
    def __init__(self, tracked: TrackedBy) -> None:
        self._run = CampaignRun(tracked)
        self._client = self._run.client
        self._tracing = TracingClient(self._run.uri)
        self._run_id = self._experiment_id = ""

    def open(self) -> set[PointId]:
        run = self._run.found_or_made()
        self._run_id, self._experiment_id = run.info.run_id, run.info.experiment_id
        if MARKER not in run.data.metrics:
            return set()
        return {
            PointId(TRACES, metric.step, metric.timestamp)
            for metric in self._client.get_metric_history(self._run_id, MARKER)
        }

    def send(self, points: Sequence[TracedStep]) -> None:
        for step in points:
            for trace in step.traces:
                spans = [_span(trace, placed) for placed in trace.spans()]
                self._tracing.log_spans(self._experiment_id, spans)
            if ids := [_trace_id(trace) for trace in step.traces]:
                self._client.link_traces_to_run(ids, self._run_id)
            mark = Metric(MARKER, float(len(step.traces)), step.id.time_ms, step.id.step)
            self._client.log_batch(self._run_id, metrics=[mark])

    def end(self, status: CampaignStatus | None) -> None:
        """The tracker of figures ends the run."""


def _span(trace: Trace, placed: PlacedSpan) -> MlflowSpan:
    span = placed.span
    attributes = {
        "mlflow.traceRequestId": _trace_id(trace),
        "mlflow.spanType": _TYPES[span.kind],
        "mainspring.kind": span.kind,
        **{attribute_name(name): value for name, value in span.attributes.items()},
        **_content("mlflow.spanInputs", span.inputs),
        **_content("mlflow.spanOutputs", span.outputs),
        **_usage(span.attributes),
        **(_tags(trace) if placed.parent is None else {}),
    }
    is_error = span.error is not None
    return MlflowSpan(
        ReadableSpan(
            name=span.name,
            context=_context(trace, placed.id),
            parent=None if placed.parent is None else _context(trace, placed.parent),
            start_time=_nanoseconds(span.start.timestamp()),
            end_time=_nanoseconds(span.end.timestamp()),
            # In MLflow each attribute is JSON.
            attributes={name: json.dumps(value) for name, value in attributes.items()},
            status=Status(StatusCode.ERROR, span.error) if is_error else Status(StatusCode.OK),
            resource=Resource.get_empty(),
        )
    )


def _content(name: str, content: Mapping[str, Value]) -> dict[str, object]:
    return {name: dict(content)} if content else {}


def _usage(attributes: Mapping[str, Value]) -> dict[str, object]:
    """Where MLflow shows the tokens of a trace; nothing where they were not counted."""
    told, made = attributes.get("input_tokens"), attributes.get("output_tokens")
    if not isinstance(told, int) or not isinstance(made, int):
        return {}
    usage = {"input_tokens": told, "output_tokens": made, "total_tokens": told + made}
    return {"mlflow.chat.tokenUsage": usage}


def _tags(trace: Trace) -> dict[str, str]:
    tags = {"mlflow.traceName": trace.root.name, **trace.tags}
    return {f"mlflow.traceTag.{name}": value[:MAX_TAG] for name, value in tags.items()}


def _trace_id(trace: Trace) -> str:
    return f"tr-{trace.id:032x}"


def _context(trace: Trace, span_id: int) -> SpanContext:
    return SpanContext(trace.id, span_id, is_remote=False, trace_flags=TraceFlags(1))


def _nanoseconds(seconds: float) -> int:
    return int(seconds * 1e6) * 1000
