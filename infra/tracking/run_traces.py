"""Traces of workflow runs: Temporal's interceptor for OpenTelemetry, with one trace for each run.

Invariants: the id of a run's trace is the run's own id, so that workers agree on it without asking,
a campaign of many days is no single trace, and a trace is found by what Temporal's UI shows; the
worker that ends a run sends its root span, and a replay sends nothing. Headers are all that is
added to a history: a run continues under workers with spans and without. Imported by `telemetry`
alone, as it loads OpenTelemetry.
"""

import uuid
from collections.abc import Mapping
from typing import Any

from opentelemetry.context import Context
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.trace import (
    SpanContext,
    SpanKind,
    Status,
    StatusCode,
    TraceFlags,
    get_current_span,
)
from temporalio import activity, workflow
from temporalio.api.common.v1 import Payload
from temporalio.contrib.opentelemetry import TracingInterceptor, TracingWorkflowInboundInterceptor
from temporalio.worker import (
    ActivityInboundInterceptor,
    ExecuteActivityInput,
    ExecuteWorkflowInput,
    WorkflowInterceptorClassInput,
)

from mainspring.trajectories.spans import attribute_name, present

_CONTEXT, _ENDED = "mainspring_run_context", "mainspring_run_ended"
"""Names of functions that workflow code calls outside the SDK's sandbox."""
_TOLD = (
    *("campaign", "group", "rollout", "epoch", "turn", "step", "version", "judge", "sandbox"),
    *("stop_reason", "verdict", "reward", "num_turns"),
)
"""Fields of the input of a workflow or an activity, and of a workflow's result, that spans have."""


class RunTraces(TracingInterceptor):
    def __init__(self, provider: TracerProvider, processor: SpanProcessor) -> None:
        super().__init__(provider.get_tracer("mainspring"))
        self._provider = provider
        self._processor = processor

    def workflow_interceptor_class(
        self, input: WorkflowInterceptorClassInput
    ) -> type[TracingWorkflowInboundInterceptor]:
        super().workflow_interceptor_class(input)
        input.unsafe_extern_functions[_CONTEXT] = self._context
        input.unsafe_extern_functions[_ENDED] = self._ended
        return RunTrace

    def intercept_activity(self, next: ActivityInboundInterceptor) -> ActivityInboundInterceptor:
        return super().intercept_activity(_ActivityFacts(next))

    def _context_from_headers(self, headers: Mapping[str, Payload]) -> Context | None:
        """The run's own context, where the worker of its workflow sends no spans."""
        found = super()._context_from_headers(headers)
        run_id = activity.info().workflow_run_id if activity.in_activity() else None
        if found is not None or run_id is None:
            return found
        return self.text_map_propagator.extract(self._context(run_id))

    def _context(self, run_id: str) -> dict[str, str]:
        """The root span of a run, as a header has it."""
        root = self._root(run_id)
        return {
            "traceparent": f"00-{root.trace_id:032x}-{root.span_id:016x}-{root.trace_flags:02x}"
        }

    def _root(self, run_id: str) -> SpanContext:
        trace_id = uuid.UUID(run_id).int
        sampled = self._provider.sampler.should_sample(None, trace_id, "workflow").decision
        flags = TraceFlags(TraceFlags.SAMPLED if sampled.is_sampled() else TraceFlags.DEFAULT)
        return SpanContext(trace_id, (trace_id & (2**64 - 1)) or 1, False, flags)

    def _ended(
        self, info: workflow.Info, end_ns: int, told: dict[str, Any], error: str | None
    ) -> None:
        attributes = {"temporalWorkflowID": info.workflow_id, "temporalRunID": info.run_id}
        attributes |= {attribute_name(name): value for name, value in told.items()}
        self._processor.on_end(
            ReadableSpan(
                name=info.workflow_type,
                context=self._root(info.run_id),
                resource=self._provider.resource,
                kind=SpanKind.SERVER,
                start_time=int(info.start_time.timestamp() * 1e6) * 1000,
                end_time=end_ns,
                attributes=attributes,
                status=Status(StatusCode.OK) if error is None else Status(StatusCode.ERROR, error),
            )
        )


class _ActivityFacts(ActivityInboundInterceptor):
    async def execute_activity(self, input: ExecuteActivityInput) -> Any:
        span = get_current_span()
        for name, value in _fields(input.args[0] if input.args else None).items():
            span.set_attribute(attribute_name(name), value)
        return await super().execute_activity(input)


class RunTrace(TracingWorkflowInboundInterceptor):
    """Takes the run's own trace in the place of the one that started it."""

    def _load_workflow_context_carrier(self) -> dict[str, Any]:
        if self._workflow_context_carrier is None:
            context = workflow.extern_functions()[_CONTEXT]
            self._workflow_context_carrier = context(workflow.info().run_id)
        return self._workflow_context_carrier or {}

    async def execute_workflow(self, input: ExecuteWorkflowInput) -> Any:
        told = _fields(input.args[0] if input.args else None)
        try:
            result = await super().execute_workflow(input)
        except workflow.ContinueAsNewError:
            self._end(told, None)
            raise
        except Exception as error:
            # Not an end where only its task failed: it is tried again.
            if workflow.is_failure_exception(error):
                self._end(told, f"{type(error).__name__}: {error}")
            raise
        self._end(told | _fields(result), None)
        return result

    def _end(self, told: dict[str, Any], error: str | None) -> None:
        if not workflow.unsafe.is_replaying():
            workflow.extern_functions()[_ENDED](workflow.info(), workflow.time_ns(), told, error)


def _fields(payload: object) -> dict[str, Any]:
    return present(**{name: getattr(payload, name, None) for name in _TOLD})
