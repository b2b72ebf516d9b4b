"""Workflows replay the histories that earlier versions recorded: what runs survives an upgrade.

A folder holds the histories of one version, written by record.py. From 2026-11 on, every later
version must replay them: nothing before it was released. A change that cannot replay them needs
`workflow.patched`; a folder is deleted only with a note in the changelog.
"""

import gzip
from pathlib import Path

import pytest
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from temporalio.client import Interceptor, WorkflowHistory
from temporalio.contrib.pydantic import pydantic_data_converter
from temporalio.worker import Replayer
from temporalio.workflow import NondeterminismError

from infra.tracking.run_traces import RunTraces
from tests.sandboxed import SANDBOXED
from workflows.campaign import CampaignWorkflow
from workflows.group import GroupWorkflow
from workflows.rollout import RolloutWorkflow
from workflows.run import RunWorkflow

WORKFLOWS = (CampaignWorkflow, GroupWorkflow, RolloutWorkflow, RunWorkflow)
HERE = Path(__file__).parent
RECORDED = sorted(HERE.glob("*/*.json.gz"))


def replayer(*interceptors: Interceptor) -> Replayer:
    return Replayer(
        workflows=WORKFLOWS,
        data_converter=pydantic_data_converter,
        workflow_runner=SANDBOXED,
        interceptors=interceptors,
    )


class Ended(SpanProcessor):
    def __init__(self) -> None:
        self.names: list[str] = []

    def on_end(self, span: ReadableSpan) -> None:
        self.names.append(span.name)


def test_every_kind_of_workflow_is_recorded() -> None:
    names = {path.name.partition("-")[0].partition(".")[0] for path in RECORDED}
    assert {"campaign", "evaluation", "group", "rollout", "verification"} <= names


@pytest.mark.parametrize("path", RECORDED, ids=lambda path: f"{path.parent.name}-{path.stem[:-5]}")
async def test_a_recorded_history_replays(path: Path) -> None:
    history = WorkflowHistory.from_json(path.name, gzip.decompress(path.read_bytes()).decode())
    await replayer().replay_workflow(history)


async def test_recorded_histories_replay_under_workers_that_send_spans() -> None:
    """They were recorded without, and a replay sends none."""
    ended = Ended()
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(ended)
    with_spans = replayer(RunTraces(provider, ended))
    for path in RECORDED:
        text = gzip.decompress(path.read_bytes()).decode()
        await with_spans.replay_workflow(WorkflowHistory.from_json(path.name, text))
    assert ended.names == []


async def test_another_order_of_activities_does_not_replay() -> None:
    [path] = HERE.glob("2026-11/rollout-submitted.json.gz")
    text = gzip.decompress(path.read_bytes()).decode()
    other = WorkflowHistory.from_json(path.name, text.replace('"execute"', '"grade"'))
    with pytest.raises(NondeterminismError):
        await replayer().replay_workflow(other)
