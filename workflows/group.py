"""A group: n rollouts of one task, started together, closed together, told to the campaign.

A straggler delays only its group, and where the campaign has a quorum not for long. A rollout that
was masked by a fault which may pass is played a second time; masked again, or by its task, it stays
in the group without a reward. Started again or reset, a group continues with its own rollouts; a
closed one is left as it is. Rollouts that wait for a worker or a node are served in turn, campaign
by campaign.
"""

import asyncio
from collections.abc import Awaitable, Sequence

from temporalio import workflow
from temporalio.exceptions import ApplicationError, FailureError, is_cancelled_exception

with workflow.unsafe.imports_passed_through():
    from mainspring.ids import (
        CampaignId,
        GroupId,
        campaign_workflow,
        group_id,
        rollout_id,
        rollout_workflow,
    )
    from mainspring.protocol.activities import CREATE_GROUP, FINISH_GROUP
    from mainspring.protocol.campaign import (
        FinishGroupInput,
        FinishGroupResult,
        GroupDone,
        GroupInput,
        Quorum,
    )
    from mainspring.protocol.names import Workflow
    from mainspring.protocol.rollout import STRAGGLER_SIGNAL, RolloutResult
    from mainspring.status import GroupStatus
    from workflows import activity_calls
    from workflows.playing import run_rollout

MAX_FAULTS = 1
"""Times each rollout is played again after a fault that may pass masked it."""


@workflow.defn(name=Workflow.GROUP)
class GroupWorkflow:
    @workflow.run
    async def run(self, start: GroupInput) -> FinishGroupResult:
        try:
            created = await activity_calls.store(CREATE_GROUP, start)
        except (FailureError, asyncio.CancelledError) as error:
            if is_cancelled_exception(error):
                # Its campaign stored it before it was started: it would stay open for good.
                group = group_id(start.campaign, start.index)
                closing = FinishGroupInput(group=group, cancelled=True)
                await activity_calls.store(FINISH_GROUP, closing)
            raise
        if created.status is not GroupStatus.RUNNING:
            workflow.upsert_memo({"outcome": f"nothing done: the group is {created.status}"})
            await self._tell_campaign(
                start.campaign, GroupDone(index=start.index, status=created.status)
            )
            return FinishGroupResult(status=created.status)
        version = start.policy_version if created.policy_version is None else created.policy_version
        cancelled = False
        results: list[RolloutResult | None] = []
        unfinished = range(created.size) if created.unfinished is None else created.unfinished
        stragglers = Stragglers(created.group, created.quorum, unfinished)
        try:
            await stragglers.begin()
            results = await asyncio.gather(
                *(
                    stragglers.watch(
                        index,
                        run_rollout(
                            start.campaign,
                            created.group,
                            index,
                            version,
                            summary=created.task,
                            task=created.task,
                            max_faults=MAX_FAULTS,
                            is_late=lambda: stragglers.are_told,
                        ),
                    )
                    for index in unfinished
                )
            )
        except asyncio.CancelledError:
            cancelled = True
        finished = await activity_calls.store(
            FINISH_GROUP,
            FinishGroupInput(group=created.group, cancelled=cancelled),
        )
        broken = next((result.broken for result in results if result and result.broken), None)
        await self._tell_campaign(
            start.campaign, GroupDone(index=start.index, status=finished.status, broken=broken)
        )
        if cancelled:
            raise asyncio.CancelledError
        return finished

    async def _tell_campaign(self, name: CampaignId, done: GroupDone) -> None:
        campaign = workflow.get_external_workflow_handle(campaign_workflow(name))
        try:
            await campaign.signal("group_done", done)
        except (ApplicationError, FailureError) as error:
            # The campaign ended meanwhile; Postgres has the group, a later run will find it.
            workflow.logger.info("campaign %s does not listen: %s", name, error)


class Stragglers:
    """The slowest rollouts of a group, told that their time is short once enough others are scored.

    A rollout is told at most once, and only one that plays already: one that is begun later has its
    whole time. From then on a fault masks: to play again from the first turn within the time that
    is left would score a fault as a failure.
    """

    def __init__(self, group: GroupId, quorum: Quorum | None, open_indices: Sequence[int]) -> None:
        """`open_indices`: the rollouts that have not ended."""
        self._group = group
        self._quorum = quorum
        self._open = list(open_indices)
        self._num_missing = quorum.num_missing if quorum else 0
        self.are_told = False

    async def begin(self) -> None:
        """Look at a group that is started again: those that play already may be the last ones."""
        await self._look()

    async def watch(
        self, index: int, playing: Awaitable[RolloutResult | None]
    ) -> RolloutResult | None:
        """Result of `playing`, the rollout `index` of the group."""
        result = await playing
        self._open.remove(index)
        if result is not None and result.reward is not None:
            self._num_missing -= 1
        await self._look()
        return result

    async def _look(self) -> None:
        if self._quorum is None or self.are_told or self._num_missing > 0:
            return
        self.are_told = True
        for index in [*self._open]:
            rollout = rollout_workflow(rollout_id(self._group, index))
            try:
                await workflow.get_external_workflow_handle(rollout).signal(
                    STRAGGLER_SIGNAL, self._quorum.straggler_s
                )
            except ApplicationError as error:
                workflow.logger.info("%s has ended, or has not begun: %s", rollout, error)
