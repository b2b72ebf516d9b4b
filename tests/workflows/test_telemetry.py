"""Spans of a real rollout at a real collector, and nothing that waits for one."""

import os
import subprocess
import sys
import time
import uuid
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
import structlog
from cluster import Cluster, cluster_of
from opentelemetry.trace import get_current_span
from program_cluster import one_node
from scripted import SUBMIT, bash
from temporalio import workflow
from temporalio.client import WorkflowFailureError
from temporalio.contrib.pydantic import pydantic_data_converter
from temporalio.exceptions import ApplicationError
from temporalio.testing import ActivityEnvironment
from temporalio.worker import Replayer, Worker

from cli.operations.machine.embedded_stack import StackInfo
from infra.temporal.connection import connect
from infra.tracking import spans, telemetry
from infra.tracking.run_traces import RunTraces
from mainspring.config.settings import load_settings
from mainspring.errors import ConfigError
from mainspring.ids import rollout_workflow
from mainspring.status import StopReason
from tests.processes import free_address
from tests.sandboxed import SANDBOXED
from tests.span_collector import Collector, TakenSpan, collecting
from tests.waiting import until
from workers.polling import workflow_runner
from workflows.rollout import RolloutWorkflow

FIX = bash("sed -i 's/a - b/a + b/' calc.py")
ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    for name in [name for name in os.environ if name.startswith("OTEL_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "50")
    yield monkeypatch
    telemetry.end()


@pytest.fixture
def collector(environment: pytest.MonkeyPatch) -> Iterator[Collector]:
    with collecting() as collector:
        environment.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url)
        environment.setenv("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment.name=test")
        telemetry.begin("rollout")
        yield collector
        telemetry.end()


@pytest.fixture
async def traced(
    collector: Collector, stack: StackInfo, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Cluster]:
    async with cluster_of(stack, await one_node(tmp_path_factory, 4)) as cluster:
        cluster.policy.say = lambda rollout, turn: [bash("cat calc.py"), FIX, SUBMIT][turn]
        yield cluster


def up_to_root(span: TakenSpan, trace: dict[str, TakenSpan]) -> list[str]:
    names = [span.name]
    while span.parent:
        span = trace[span.parent]
        names.append(span.name)
    return names


async def test_a_rollout_is_one_trace_with_the_id_of_its_run(
    traced: Cluster, collector: Collector
) -> None:
    rollout, result = await traced.play()
    assert result.reward == 1.0
    described = await traced.client.get_workflow_handle(rollout_workflow(rollout)).describe()
    run = described.run_id.replace("-", "")
    await until(lambda: any(not span.parent for span in collector.trace(run).values()))
    trace = collector.trace(run)
    [root] = [span for span in trace.values() if not span.parent]
    assert root.name == described.workflow_type and root.error is None
    assert root.attributes["mainspring.rollout"] == rollout
    assert root.attributes["mainspring.reward"] == 1.0
    assert root.attributes["mainspring.verdict"] == "resolved"
    assert all(up_to_root(span, trace)[-1] == root.name for span in trace.values())
    assert all(root.start_ns <= span.start_ns <= span.end_ns for span in trace.values())
    within = {(span.name, up_to_root(span, trace)[1]) for span in trace.values() if span.parent}
    assert within >= {
        ("chat", "RunActivity:generate"),
        ("command", "RunActivity:execute"),
        ("open sandbox", "RunActivity:open_sandbox"),
        ("grade", "RunActivity:grade"),
        ("RunActivity:finish_rollout", "StartActivity:finish_rollout"),
    }
    named = [span for span in trace.values() if span.name == "chat"]
    chats = sorted(named, key=lambda span: span.start_ns)
    assert [chat.attributes["mainspring.call"] for chat in chats] == [0, 1, 2]
    assert chats[0].attributes["gen_ai.operation.name"] == "chat"
    assert chats[0].attributes["gen_ai.request.model"] == "scripted"
    assert chats[1].attributes["gen_ai.usage.output_tokens"] == len(FIX) + 1
    [grade] = [span for span in trace.values() if span.name == "grade"]
    assert grade.attributes["mainspring.verdict"] == "resolved"
    commands = [span for span in trace.values() if span.name == "command"]
    assert {span.attributes["mainspring.exit_code"] for span in commands} == {0}
    service = {**root.service}
    assert service["service.name"] == "mainspring-rollout" and service["service.version"]
    assert service["deployment.environment.name"] == "test"
    words = str([span.attributes for span in trace.values()])
    assert "sed -i" not in words and "THOUGHT" not in words, "a span has no text of the rollout"


@workflow.defn
class Ending:
    @workflow.run
    async def run(self, how: str) -> None:
        if how == "fails":
            raise ApplicationError("no such thing")
        if how == "begins anew":
            workflow.continue_as_new("ends")


async def test_each_run_has_a_root_however_it_ends(collector: Collector, stack: StackInfo) -> None:
    client = await connect(load_settings(stack.home))
    queue = f"ending-{uuid.uuid4()}"
    runs: dict[str, list[str]] = {}
    runner = workflow_runner()
    async with Worker(client, task_queue=queue, workflows=[Ending], workflow_runner=runner):
        for how in ("ends", "begins anew", "fails"):
            id = f"{queue}-{how}"
            handle = await client.start_workflow(Ending.run, how, id=id, task_queue=queue)
            with suppress(WorkflowFailureError):
                await handle.result()
            last = await client.get_workflow_handle(id).describe()
            found = [handle.first_execution_run_id or "", last.run_id]
            runs[how] = sorted({run.replace("-", "") for run in found})
    telemetry.end()
    roots = {span.trace: span for span in collector.spans if span.name == "Ending"}
    assert sorted(roots) == sorted(run for of in runs.values() for run in of)
    assert len(runs["begins anew"]) == 2 and all(not span.parent for span in roots.values())
    failed = {trace: span.error for trace, span in roots.items() if span.error}
    assert failed == {runs["fails"][0]: "ApplicationError: no such thing"}


async def test_an_activity_finds_its_run_without_a_header(collector: Collector) -> None:
    """As where another release, or a worker without spans, runs the workflow."""
    run, [traces] = uuid.uuid4(), telemetry.interceptors()
    assert isinstance(traces, RunTraces)
    environment = ActivityEnvironment()
    environment.info = replace(environment.info, workflow_run_id=str(run))
    found = environment.run(lambda: traces._context_from_headers({}))
    assert get_current_span(found).get_span_context().trace_id == run.int


async def test_a_span_tells_how_it_failed(collector: Collector) -> None:
    with pytest.raises(ConfigError), spans.span("broken", step=3, engine=None):
        raise ConfigError("no such file")
    telemetry.end()
    [span] = collector.spans
    assert span.error == "ConfigError: no such file"
    assert span.attributes == {"mainspring.step": 3}


async def test_a_history_with_spans_replays_under_workers_with_and_without_them(
    traced: Cluster, collector: Collector
) -> None:
    rollout, _ = await traced.play()
    handle = traced.client.get_workflow_handle(rollout_workflow(rollout))
    with_spans = await handle.fetch_history()
    assert any("_tracer-data" in str(event) for event in with_spans.events)
    telemetry.end()  # all that the play sent has arrived
    before = len(collector.spans)
    telemetry.begin("rollout")
    for interceptors in ([], list(telemetry.interceptors())):
        replayer = Replayer(
            workflows=[RolloutWorkflow],
            data_converter=pydantic_data_converter,
            workflow_runner=SANDBOXED,
            interceptors=interceptors,
        )
        await replayer.replay_workflow(with_spans)
    telemetry.end()
    assert len(collector.spans) == before, "a replay sends nothing"


async def test_a_run_that_is_not_sampled_sends_nothing(
    environment: pytest.MonkeyPatch, stack: StackInfo, tmp_path_factory: pytest.TempPathFactory
) -> None:
    environment.setenv("OTEL_TRACES_SAMPLER", "parentbased_traceidratio")
    environment.setenv("OTEL_TRACES_SAMPLER_ARG", "0")
    with collecting() as collector:
        environment.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url)
        telemetry.begin("rollout")
        async with cluster_of(stack, await one_node(tmp_path_factory, 4)) as cluster:
            cluster.policy.say = lambda rollout, turn: SUBMIT
            _, result = await cluster.play()
        telemetry.end()
        assert result.stop_reason is StopReason.SUBMITTED and collector.num_requests == 0


@pytest.mark.parametrize("answers", [False, True])
async def test_a_collector_that_takes_nothing_holds_up_nothing(
    answers: bool,
    environment: pytest.MonkeyPatch,
    stack: StackInfo,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    with collecting(status=400) as refusing, structlog.testing.capture_logs() as lines:
        url = refusing.url if answers else f"http://{free_address()}"
        environment.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", url)
        environment.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "1")
        telemetry.begin("rollout")
        async with cluster_of(stack, await one_node(tmp_path_factory, 4)) as cluster:
            cluster.policy.say = lambda rollout, turn: [FIX, SUBMIT][turn]
            for _ in range(3):
                _, result = await cluster.play()
                assert result.reward == 1.0
            await until(lambda: any("takes no spans" in line["event"] for line in lines))
        begun = time.monotonic()
        telemetry.end()
        assert time.monotonic() - begun < telemetry.FLUSH_S + 1.0
    told = [line for line in lines if line["log_level"] == "warning" and "collector" in line]
    assert len(told) == 1 and told[0]["collector"] == url and told[0]["reason"], told


def test_a_collector_that_answers_again_is_told_of(collector: Collector) -> None:
    collector.status = 400
    with structlog.testing.capture_logs() as lines:
        for status, event in ((400, "takes no spans"), (200, "answers again")):
            collector.status = status
            with spans.span("x"):
                pass
            for _ in range(200):
                if any(event in line["event"] for line in lines):
                    break
                time.sleep(0.05)
    assert ["takes no spans" in lines[0]["event"], lines[1]["lost"]] == [True, 1]


@pytest.mark.parametrize(
    ("name", "value", "told"),
    [
        ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc", "http/protobuf alone"),
        ("OTEL_TRACES_EXPORTER", "console", "as otlp alone"),
        ("OTEL_EXPORTER_OTLP_ENDPOINT", "collector:4318", "is no URL"),
    ],
)
def test_what_cannot_work_is_refused(
    environment: pytest.MonkeyPatch, name: str, value: str, told: str
) -> None:
    environment.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:4318")
    environment.setenv(name, value)
    with pytest.raises(ConfigError, match=told) as caught:
        telemetry.begin("rollout")
    assert value in caught.value.message


def test_a_password_of_the_collector_is_not_told(environment: pytest.MonkeyPatch) -> None:
    environment.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://me:s3cret@127.0.0.1:4318")
    with structlog.testing.capture_logs() as lines:
        telemetry.begin("rollout")
    assert [line["collector"] for line in lines] == ["http://127.0.0.1:4318"]


@pytest.mark.parametrize(
    ("name", "value"), [("OTEL_SDK_DISABLED", "true"), ("OTEL_TRACES_EXPORTER", "none")]
)
def test_spans_that_are_switched_off_are_not_made(
    environment: pytest.MonkeyPatch, name: str, value: str
) -> None:
    environment.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:4318")
    environment.setenv(name, value)
    telemetry.begin("rollout")
    assert not telemetry.interceptors() and isinstance(spans.span("x"), spans.NoSpan)


def test_a_worker_without_the_package_ends_with_one_sentence(tmp_path: Path) -> None:
    missing = tmp_path / "opentelemetry"
    missing.mkdir()
    (missing / "__init__.py").touch()
    environment = {
        **os.environ,
        "PYTHONPATH": f"{tmp_path}:{ROOT}",
        "OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:4318",
    }
    command = [sys.executable, "-m", "mainspring", "worker", "rollout", "--home", str(tmp_path)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2, done.stderr
    assert (
        "OTEL_EXPORTER_OTLP_ENDPOINT is set, and the extra 'otel' is not installed" in done.stderr
    )
    assert "pip install 'mainspring[otel]'" in done.stderr and "Traceback" not in done.stderr


def test_without_a_collector_nothing_is_loaded() -> None:
    program = (
        "import sys, workers.rollout, workers.sandbox, workers.gateway;"
        "from infra.tracking import telemetry; telemetry.begin('rollout');"
        "sys.exit(any(name.startswith('opentelemetry') for name in sys.modules))"
    )
    environment = {k: v for k, v in os.environ.items() if not k.startswith("OTEL_")}
    subprocess.run([sys.executable, "-c", program], env=environment, check=True, timeout=60)
