"""SIGKILL of the rollout worker, the trainer and the engine in the middle of a real campaign.

The processes are the ones `mainspring quickstart` runs, on a smaller campaign. What must hold
afterwards is read from Postgres: contiguous turns, nothing stored twice, every step once.
"""

from pathlib import Path

import pytest
from temporalio.client import Client
from temporalio.contrib.pydantic import pydantic_data_converter
from temporalio.worker import Replayer

from cli.operations.machine.embedded_stack import StackInfo
from infra.db.database import Database
from infra.temporal.connection import connect
from mainspring.config.settings import load_settings
from mainspring.ids import CampaignId
from reports.collect import collect
from reports.summary import write
from tests.chaos.small_run import (
    TIMEOUT_S,
    check_everything_happened_once,
    small_campaign,
    small_run,
)
from tests.sandboxed import SANDBOXED
from workflows.campaign import CampaignWorkflow
from workflows.group import GroupWorkflow
from workflows.rollout import RolloutWorkflow
from workflows.run import RunWorkflow


@pytest.mark.chaos
@pytest.mark.timeout(3 * TIMEOUT_S)
async def test_a_campaign_survives_the_death_of_each_process(
    stack: StackInfo, tmp_path: Path
) -> None:
    settings = load_settings(stack.home)
    async with Database.open(stack.database_url) as db:
        client = await connect(settings)
        async with small_run(db, client, settings, small_campaign(), tmp_path) as run:
            await run.step_done(1)
            await run.rollouts_running()
            run.kill("rollout")
            await run.step_planned(2)
            run.kill("trainer")
            await run.step_done(2)
            await run.rollouts_running()
            run.kill("engine")
        assert set(run.restarted) == {"rollout", "trainer", "engine"}
        await check_everything_happened_once(db, run.campaign)
        await check_histories_replay(client, run.campaign)
        summary = write(await collect(db, run.campaign), tmp_path / "report")
        assert summary.exists()


async def check_histories_replay(client: Client, campaign: CampaignId) -> None:
    """One history of each workflow, as the killed and restarted workers wrote it."""
    kinds = (CampaignWorkflow, GroupWorkflow, RunWorkflow, RolloutWorkflow)
    replayer = Replayer(
        workflows=kinds, data_converter=pydantic_data_converter, workflow_runner=SANDBOXED
    )
    seen = set[str]()
    async for listed in client.list_workflows(f'CampaignId = "{campaign}"'):
        if listed.workflow_type not in seen:
            seen.add(listed.workflow_type)
            handle = client.get_workflow_handle(listed.id, run_id=listed.run_id)
            await replayer.replay_workflow(await handle.fetch_history())
    assert len(seen) == len(kinds), seen
