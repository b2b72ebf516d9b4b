"""The sweep: ends in the store what Temporal does not run any more (invariant 7).

`terminate` and a lost namespace run no `finally`: the rollout's row would stay alive, its lease
owned, its group open, its campaign waiting. Temporal is asked before anything is ended; what ends
here is masked, its sandbox falls to its node's reaper. Safe to run twice at once and at any time.
One database belongs to one Temporal namespace: another one's rollouts would count as lost.
"""

import asyncio
from collections.abc import Collection

from temporalio.client import Client, WorkflowExecutionStatus
from temporalio.service import RPCError, RPCStatusCode

from infra.db.database import Database
from infra.db.nodes import nodes, sandboxes
from infra.db.rollouts import groups, orphans
from infra.db.rollouts.orphans import OpenGroup
from infra.db.runs import events
from infra.temporal.lost_campaigns import settle_campaigns
from mainspring.ids import campaign_workflow, group_workflow, rollout_workflow
from mainspring.protocol.campaign import GroupDone
from mainspring.protocol.names import Workflow
from mainspring.protocol.sweep import SweepInput, SweepResult
from mainspring.status import SandboxStatus

MAX_LOOKUPS = 16
"""In flight at once: a namespace that was lost leaves thousands of rollouts to ask about."""
BEATS_S = 15.0
"""Three beats of a node."""


class SweepActivities:
    def __init__(self, db: Database, client: Client, beats_s: float = BEATS_S) -> None:
        self._db = db
        self._client = client
        self._beats_s = beats_s

    async def sweep(self, ask: SweepInput) -> SweepResult:
        """Raises DatabaseError, and RPCError when Temporal does not answer."""
        num_alive, num_ended = await self._end_rollouts(ask.min_age_s)
        num_closed = await self._close_groups(ask.min_age_s)
        num_campaigns = await settle_campaigns(self._db, self._client)
        num_lost = await self._lose_leases()
        await nodes.forget_gone(self._db)
        await events.prune(self._db)
        return SweepResult(
            num_rollouts_alive=num_alive,
            num_rollouts_ended=num_ended,
            num_groups_closed=num_closed,
            num_leases_lost=num_lost,
            num_campaigns_ended=num_campaigns,
        )

    async def _end_rollouts(self, min_age_s: float) -> tuple[int, int]:
        """Returns how many play on and how many were ended."""
        playing = await orphans.playing_rollouts(self._db, min_age_s)
        how = await self._not_running(
            Workflow.ROLLOUT, [rollout_workflow(row.rollout) for row in playing]
        )
        num_ended = 0
        for row in playing:
            workflow_id = rollout_workflow(row.rollout)
            if workflow_id in how:
                fault = f"its workflow {workflow_id} is {how[workflow_id]}"
                num_ended += await orphans.end_rollout(self._db, row, fault)
        return len(playing) - len(how), num_ended

    async def _close_groups(self, min_age_s: float) -> int:
        """Close groups without a workflow, once their last rollout has ended.

        Evaluations are left open: their campaign takes them up again, it does not replace them.
        """
        waiting = await orphans.open_groups(self._db, min_age_s)
        how = await self._not_running(
            Workflow.GROUP, [group_workflow(row.group) for row in waiting]
        )
        orphaned = [
            row for row in waiting if group_workflow(row.group) in how and not row.num_playing
        ]
        for row in orphaned:
            await self._close(row)
        return len(orphaned)

    async def _close(self, group: OpenGroup) -> None:
        """A complete group is closed as its workflow would have closed it; a cut one is replaced.

        A campaign that is not told, because this process dies in between, looks by itself.
        """
        status = await groups.finish_group(self._db, group.group, cancelled=not group.is_complete)
        campaign = self._client.get_workflow_handle(campaign_workflow(group.campaign))
        try:
            await campaign.signal("group_done", GroupDone(index=group.index, status=status))
        except RPCError as error:
            if error.status is not RPCStatusCode.NOT_FOUND:
                raise
            # The campaign does not run; when it is started again it reads its groups anew.

    async def _lose_leases(self) -> int:
        """Close leases of lost nodes, for the listings: nothing is left to remove there."""
        if not await sandboxes.leases_on_dead_nodes(self._db):
            return 0
        # After the database was away, or the machine asleep, every node looks dead until it beats.
        await asyncio.sleep(self._beats_s)
        lost = await sandboxes.leases_on_dead_nodes(self._db)
        for lease in lost:
            await sandboxes.close_lease(self._db, lease.sandbox, lease.node, SandboxStatus.LOST)
        return len(lost)

    async def _not_running(self, kind: Workflow, ids: Collection[str]) -> dict[str, str]:
        """Those of these workflows that do not run, and how each ended.

        One listing finds nearly all that run; it may lag, so the rest is looked up one by one.
        """
        if not ids:
            return {}
        query = f"WorkflowType = '{kind}' AND ExecutionStatus = 'Running'"
        running = {execution.id async for execution in self._client.list_workflows(query)}
        lookups = asyncio.Semaphore(MAX_LOOKUPS)

        async def ended(workflow_id: str) -> str | None:
            async with lookups:
                return await self._ended(workflow_id)

        missing = [workflow_id for workflow_id in ids if workflow_id not in running]
        hows = await asyncio.gather(*map(ended, missing))
        return {
            workflow_id: how
            for workflow_id, how in zip(missing, hows, strict=True)
            if how is not None
        }

    async def _ended(self, workflow_id: str) -> str | None:
        """How the newest run ended; None while it runs."""
        try:
            described = await self._client.get_workflow_handle(workflow_id).describe()
        except RPCError as error:
            if error.status is RPCStatusCode.NOT_FOUND:
                return "not known to Temporal"
            raise
        if described.status is None or described.status is WorkflowExecutionStatus.RUNNING:
            return None
        return described.status.name.lower().replace("_", " ")
