"""What holds of every campaign that has finished, whatever was done to it on the way."""

from temporalio.contrib.pydantic import pydantic_data_converter
from temporalio.worker import Replayer

from infra.db.rollouts import groups
from infra.db.runs import campaigns
from infra.db.training import policies, steps
from mainspring.ids import CampaignId
from mainspring.status import CampaignStatus, GroupKind, GroupStatus, StepStatus
from tests.sandboxed import SANDBOXED
from workflows.campaign import CampaignWorkflow

NUM_STEPS = 3


async def check_finished(cluster, campaign: CampaignId) -> None:
    record = await campaigns.get(cluster.db, campaign)
    assert (record.status, record.error) == (CampaignStatus.FINISHED, None)
    done = await steps.list_steps(cluster.db, campaign)
    assert [(each.step, each.status) for each in done] == [
        (n, StepStatus.DONE) for n in range(1, NUM_STEPS + 1)
    ]
    versions = [each.version for each in await policies.list_policies(cluster.db, campaign)]
    assert versions == list(range(NUM_STEPS + 1))
    used = [
        group
        for step in range(1, NUM_STEPS + 1)
        for group in await steps.step_groups(cluster.db, campaign, step)
    ]
    assert len(set(used)) == len(used) == NUM_STEPS
    trained = await groups.list_groups(cluster.db, campaign, GroupKind.TRAIN)
    assert {each.id for each in trained if each.status is GroupStatus.CONSUMED} == set(used)
    evaluated = await groups.list_groups(cluster.db, campaign, GroupKind.EVAL)
    assert {each.policy_version: each.status for each in evaluated} == dict.fromkeys(
        (0, 2, 3), GroupStatus.READY
    )
    assert [each for each in cluster.policy.published if f"/{campaign}/" in each][-1].endswith("v3")


async def has_ended(cluster, campaign: CampaignId) -> bool:
    return (await campaigns.get(cluster.db, campaign)).status in campaigns.ENDS


async def replay(cluster, workflow_id: str, earlier: list[str]) -> None:
    """The newest run of a campaign's workflow, once it has closed, and these earlier runs."""
    newest = cluster.client.get_workflow_handle(workflow_id)
    await newest.result()
    replayer = Replayer(
        workflows=[CampaignWorkflow],
        data_converter=pydantic_data_converter,
        workflow_runner=SANDBOXED,
    )
    for run in earlier:
        handle = cluster.client.get_workflow_handle(workflow_id, run_id=run)
        await replayer.replay_workflow(await handle.fetch_history())
    await replayer.replay_workflow(await newest.fetch_history())
