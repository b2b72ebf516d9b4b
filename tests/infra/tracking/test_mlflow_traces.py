"""Traces of rollouts in a real MLflow: each once, whatever was cut off, and as its server shows
them."""

import os
import subprocess
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import httpx
import pytest

from tests.infra.tracking.tracked import given, step
from tests.processes import free_address

pytest.importorskip("mlflow", reason="the extra mlflow is not installed")

from mlflow.entities import SpanStatusCode
from mlflow.entities import Trace as MlflowTrace
from mlflow.tracking import MlflowClient

from infra.tracking.mlflow_traces import MARKER, MlflowTraces
from infra.tracking.mlflow_tracker import MlflowTracker
from mainspring.training.tracking import TRACES, PointId, TracedStep
from mainspring.trajectories.spans import SpanKind, Trace, TraceSpan

SERVER = Path(os.environ.get("MLFLOW_PROGRAM", ".venv-mlflow/bin/mlflow"))
"""The whole package mlflow has it; the extra has its client alone."""
START = datetime(2026, 11, 28, 12, 0, tzinfo=UTC)
needs_server = pytest.mark.skipif(
    not SERVER.exists(),
    reason=f"no program mlflow at {SERVER}: `python -m venv .venv-mlflow && "
    ".venv-mlflow/bin/pip install mlflow==3.17.2`, or set MLFLOW_PROGRAM",
)


def span(
    name: str, kind: SpanKind, start_s: float, end_s: float, *children: TraceSpan
) -> TraceSpan:
    tokens = {"input_tokens": 30, "output_tokens": 12, "model": "tiny"}
    return TraceSpan(
        name,
        kind,
        START + timedelta(seconds=start_s),
        START + timedelta(seconds=end_s),
        attributes=tokens if kind is SpanKind.REPLY else {"exit_code": 1},
        inputs={"text": f"to {name}"},
        outputs={"text": f"from {name}"},
        error="killed" if kind is SpanKind.COMMAND else None,
        children=children,
    )


def trace(number: int) -> Trace:
    reply = span("reply", SpanKind.REPLY, 0.5, 1.5)
    command = span("command 1", SpanKind.COMMAND, 1.5, 2.0)
    turn = span("turn 1", SpanKind.TURN, 0.5, 2.0, reply, command)
    root = span(f"rollout {number}", SpanKind.ROLLOUT, 0.0, 3.0, turn)
    return Trace(f"uid\nfirst/{number}\n0", root, {"mainspring.rollout": f"first/{number}"})


def traced(number: int, *traces: Trace) -> TracedStep:
    return TracedStep(PointId(TRACES, number, 1_790_000_000_000 + number), traces)


@pytest.fixture
def uri(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/mlflow.db"


@pytest.fixture
def server(tmp_path: Path, uri: str) -> Iterator[str]:
    """The address of MLflow's own server, on sqlite."""
    at = free_address()
    port = at.rpartition(":")[2]
    command = [SERVER, "server", "--backend-store-uri", uri, "--port", port, "--workers", "1"]
    log = tmp_path / "server.log"
    # Its own packages, and nothing of this process.
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    with log.open("w") as file:
        process = subprocess.Popen(
            command, cwd=tmp_path, stdout=file, stderr=file, env=environment, process_group=0
        )
    try:
        while not answers(f"http://{at}/health"):
            assert process.poll() is None, log.read_text()
            time.sleep(0.2)
        yield f"http://{at}"
    finally:
        os.killpg(process.pid, 9)
        process.wait()


def answers(url: str) -> bool:
    try:
        return httpx.get(url, timeout=1.0).status_code == 200
    except httpx.TransportError:
        return False


def tracker(uri: str, tmp_path: Path) -> MlflowTraces:
    return MlflowTraces(given(tmp_path, mlflow={"uri": uri, "traces_per_step": 2}))


def stored(uri: str) -> list[MlflowTrace]:
    client = MlflowClient(tracking_uri=uri)
    experiment = client.get_experiment_by_name("mainspring")
    assert experiment is not None
    return list(client.search_traces(locations=[experiment.experiment_id]))


def marks(uri: str) -> list[tuple[int, float]]:
    client = MlflowClient(tracking_uri=uri)
    [experiment] = [each for each in client.search_experiments() if each.name == "mainspring"]
    [run] = client.search_runs([experiment.experiment_id])
    return [(each.step, each.value) for each in client.get_metric_history(run.info.run_id, MARKER)]


def check_one(found: MlflowTrace) -> None:
    assert found.info.tags["mainspring.rollout"] == "first/1"
    assert found.info.request_time == START.timestamp() * 1000
    assert found.info.execution_duration == 3000
    spans = {each.name: each for each in found.data.spans}
    assert sorted(spans) == ["command 1", "reply", "rollout 1", "turn 1"]
    assert spans["rollout 1"].parent_id is None
    assert spans["turn 1"].parent_id == spans["rollout 1"].span_id
    assert spans["reply"].parent_id == spans["command 1"].parent_id == spans["turn 1"].span_id
    reply, command = spans["reply"], spans["command 1"]
    assert (reply.end_time_ns - reply.start_time_ns, reply.span_type) == (10**9, "CHAT_MODEL")
    assert reply.inputs == {"text": "to reply"} and reply.outputs == {"text": "from reply"}
    assert reply.attributes["gen_ai.usage.output_tokens"] == 12
    assert found.info.token_usage == {"input_tokens": 30, "output_tokens": 12, "total_tokens": 42}
    assert command.status.status_code is SpanStatusCode.ERROR
    assert (command.status.description, command.attributes["mainspring.exit_code"]) == ("killed", 1)


def test_what_was_cut_off_is_sent_again_and_stands_once(uri: str, tmp_path: Path) -> None:
    first = tracker(uri, tmp_path)
    assert first.open() == set()
    first.send([traced(1, trace(1), trace(2)), traced(2)])
    # Killed after the traces of step 3, and before its mark.
    first._tracing.log_spans(first._experiment_id, _spans(trace(3)))
    second = tracker(uri, tmp_path)
    assert second.open() == {traced(1).id, traced(2).id}
    second.send([traced(3, trace(3), trace(4))])
    found = stored(uri)
    assert sorted(each.info.tags["mainspring.rollout"] for each in found) == [
        f"first/{number}" for number in (1, 2, 3, 4)
    ]
    assert {len(each.data.spans) for each in found} == {4}
    assert marks(uri) == [(1, 2.0), (2, 0.0), (3, 2.0)]
    assert tracker(uri, tmp_path).open() == {traced(number).id for number in (1, 2, 3)}


def test_traces_are_those_of_the_run_that_has_the_figures(
    uri: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # MLflow's own tracing would send them there instead.
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "http://127.0.0.1:9/v1/traces")
    figures = MlflowTracker(given(tmp_path, mlflow={"uri": uri}))
    figures.open()
    traces = tracker(uri, tmp_path)
    traces.open()
    traces.send([traced(1, trace(1))])
    figures.send([step(1)])
    client = MlflowClient(tracking_uri=uri)
    [experiment] = [each for each in client.search_experiments() if each.name == "mainspring"]
    [run] = client.search_runs([experiment.experiment_id])
    linked = client.search_traces(locations=[experiment.experiment_id], run_id=run.info.run_id)
    assert len(linked) == 1
    check_one(linked[0])
    # The mark of traces is no step of the figures.
    assert MlflowTracker(given(tmp_path, mlflow={"uri": uri})).open() == {step(1).id}


@needs_server
def test_mlflows_own_server_shows_the_spans(server: str, tmp_path: Path) -> None:
    first = tracker(server, tmp_path)
    first.open()
    first.send([traced(1, trace(1))])
    second = tracker(server, tmp_path)
    assert second.open() == {traced(1).id}
    second.send([traced(1, trace(1))])
    [found] = stored(server)
    check_one(found)


def _spans(one: Trace) -> list:
    from infra.tracking.mlflow_traces import _span

    return [_span(one, placed) for placed in one.spans()]
