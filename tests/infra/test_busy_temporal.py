"""A Temporal server that answers "too much at once" (HTTP 429 in its web UI): screens ask again.

The limit is that of a namespace's requests; a workflow whose lock is taken is told in the same way.
A busy machine adds answers of its own ("unavailable", HTTP 503), which mean the same.
"""

import asyncio
from pathlib import Path
from urllib.parse import quote

import httpx
import pytest
from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.workflowservice.v1 import DescribeWorkflowExecutionRequest
from temporalio.client import Client
from temporalio.service import RPCError, RPCStatusCode

from infra.db.database import Database
from infra.db.runs import campaigns
from infra.stack.temporal_server import Temporal
from infra.temporal.seen_waits import look
from infra.temporal.service import SeenNamespace
from mainspring.config.evaluations.evaluation import EvaluationConfig
from mainspring.config.policy import PolicyConfig
from mainspring.config.tasks import TasksConfig
from mainspring.ids import ROLLOUT_QUEUE, CampaignId, campaign_workflow
from mainspring.status import CampaignStatus

REQUESTS_PER_S = 10
NUM_AT_ONCE = 40
NUM_LOOKS = 10
TIMEOUT_S = 60.0
CAMPAIGN = CampaignId("busy")


@pytest.fixture
async def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    usual = Temporal._command
    limits = [f"frontend.namespaceRPS={REQUESTS_PER_S}", "frontend.namespaceBurstRatio=1.0"]

    def limited(self: Temporal, port: int, ui_port: int) -> list[str]:
        options = [part for limit in limits for part in ("--dynamic-config-value", limit)]
        return [*usual(self, port, ui_port), *options]

    monkeypatch.setattr(Temporal, "_command", limited)
    for folder in ("run", "logs"):
        (tmp_path / folder).mkdir()
    temporal = Temporal(tmp_path, "busy")
    try:
        await temporal.start()
        yield temporal
    finally:
        temporal.stop()


async def test_screens_ask_again_where_the_web_ui_shows_429(server: Temporal, db: Database) -> None:
    config = EvaluationConfig(
        name=CAMPAIGN,
        tasks=TasksConfig(source="none"),
        policy=PolicyConfig(model="scripted"),
        split="train",
    )
    await campaigns.create(db, config)
    await campaigns.set_status(db, CAMPAIGN, CampaignStatus.RUNNING)
    client = await Client.connect(server.address, namespace=server.namespace)
    workflow = campaign_workflow(CAMPAIGN)
    await client.start_workflow("Nothing", id=workflow, task_queue=ROLLOUT_QUEUE)

    page = f"{server.ui}/api/v1/namespaces/{server.namespace}/workflows/{quote(workflow, safe='')}"
    async with httpx.AsyncClient(timeout=TIMEOUT_S) as http, asyncio.timeout(TIMEOUT_S):
        statuses = set[int]()
        while 429 not in statuses:
            pages = await asyncio.gather(*(http.get(page) for _ in range(NUM_AT_ONCE)))
            statuses |= {each.status_code for each in pages}
    assert all(each in (200, 429) or each >= 500 for each in statuses), statuses
    service = client.workflow_service
    asked = DescribeWorkflowExecutionRequest(
        namespace=server.namespace, execution=WorkflowExecution(workflow_id=workflow)
    )
    refusals = set[RPCStatusCode]()
    async with asyncio.timeout(TIMEOUT_S):
        while RPCStatusCode.RESOURCE_EXHAUSTED not in refusals:
            alone = (service.describe_workflow_execution(asked) for _ in range(NUM_AT_ONCE))
            answers = await asyncio.gather(*alone, return_exceptions=True)
            refused = [answer for answer in answers if isinstance(answer, BaseException)]
            assert all(isinstance(each, RPCError) for each in refused), refused
            refusals |= {each.status for each in refused if isinstance(each, RPCError)}
    assert RPCStatusCode.NOT_FOUND not in refusals

    record = await campaigns.get(db, CAMPAIGN)
    seen = SeenNamespace(service, server.namespace)
    scenes = await asyncio.gather(*(look(db, seen, record) for _ in range(NUM_LOOKS)))
    assert all(scene.is_running and scene.stuck and scene.pollers for scene in scenes)
