"""Campaigns whose row has them under way and whose workflow has ended: the row gets the end.

A workflow writes its end itself; `terminate` in Temporal runs none of its code. Invariant: a row
that changed since it was read is left alone, because the campaign may have been started again.
"""

from temporalio.client import Client, WorkflowExecutionStatus
from temporalio.service import RPCError, RPCStatusCode

from infra.db.database import Database
from infra.db.runs import campaigns
from infra.db.runs.campaigns import Underway
from mainspring.ids import CampaignId, campaign_workflow
from mainspring.status import CampaignStatus

_HOW = {
    WorkflowExecutionStatus.TERMINATED: "was terminated in Temporal",
    WorkflowExecutionStatus.TIMED_OUT: "timed out in Temporal",
    WorkflowExecutionStatus.FAILED: "failed in Temporal",
}


async def settle_campaigns(db: Database, client: Client) -> int:
    """How many rows were corrected."""
    underway = await campaigns.underway(db)
    return sum([await _settle(db, client, run) for run in underway])


async def settle_campaign(db: Database, client: Client, campaign: CampaignId) -> bool:
    """The same for one; whether its row was corrected."""
    underway = await campaigns.underway(db, campaign)
    return any([await _settle(db, client, run) for run in underway])


async def _settle(db: Database, client: Client, seen: Underway) -> bool:
    try:
        handle = client.get_workflow_handle(campaign_workflow(seen.campaign))
        status = (await handle.describe()).status
    except RPCError as error:
        if error.status is not RPCStatusCode.NOT_FOUND:
            raise
        how = "is not known to Temporal"
    else:
        if status is WorkflowExecutionStatus.CANCELED:
            return await campaigns.end_underway(db, seen, CampaignStatus.CANCELLED, None)
        if status is None or status not in _HOW:
            return False
        how = _HOW[status]
    error = f"its workflow {how}; start it again to resume"
    return await campaigns.end_underway(db, seen, CampaignStatus.FAILED, error)
