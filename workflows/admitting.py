"""Keeps a campaign's training groups in flight, within the bound of `algorithms.admission`.

Invariants: a group is stored before it is started, and started under its own id, so a group that is
stored and open is started or found running whatever became of the run that admitted it; groups are
abandoned children that report by signal, so that continue-as-new orphans nothing.
"""

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass

from temporalio import workflow
from temporalio.exceptions import WorkflowAlreadyStartedError

with workflow.unsafe.imports_passed_through():
    from mainspring.ids import ROLLOUT_QUEUE, group_id, group_workflow
    from mainspring.protocol.activities import ADMIT_GROUPS
    from mainspring.protocol.campaign import (
        AdmitInput,
        CampaignState,
        FinishGroupResult,
        GroupInput,
        Survey,
    )
    from mainspring.protocol.names import WORKFLOW_TASK_TIMEOUT, Workflow
    from workflows import activity_calls, search


@dataclass(frozen=True, slots=True)
class Memory:
    """Memory of a run of the campaign, before it looked into the store. All of it was stored first:
    a store that lacks some of it was restored from an older backup."""

    ended: frozenset[int]
    """Groups that reported their end."""
    newest: int
    """The newest group that it started; -1: none."""
    published: int
    """The policy version that engines were given; -1: none."""

    def is_ahead_of(self, seen: Survey) -> bool:
        if seen.next_index is None:
            return False
        lacks_version = self.published > (-1 if seen.version is None else seen.version)
        return lacks_version or self.newest >= seen.next_index


class GroupAdmission:
    """Runs beside the steps; closed until `open` is called."""

    def __init__(self, state: CampaignState) -> None:
        self._state = state
        self._is_open = False
        self._is_due = True
        self._is_busy = False
        self._ended: set[int] = set()
        self._newest = max(state.in_flight, default=-1)
        self.in_flight = set(state.in_flight)
        self._running: asyncio.Task[None] | None = None

    def begin(self) -> None:
        self._running = asyncio.create_task(self._run())

    @property
    def has_failed(self) -> bool:
        return self._running is not None and self._running.done()

    def raise_if_failed(self) -> None:
        """Raise what ended it: it ends the campaign."""
        if self._running is not None and self._running.done():
            self._running.result()

    def open(self) -> None:
        """From now on, under the version that was published last."""
        self._is_open = True

    def memory(self) -> Memory:
        """Memory of this run, as of now."""
        return Memory(
            ended=frozenset(self._ended),
            newest=self._newest,
            published=self._state.published_version,
        )

    def look(self) -> None:
        """Something changed: see whether more groups may start."""
        self._is_due = True

    def ended(self, index: int) -> None:
        self._ended.add(index)
        self.in_flight.discard(index)
        self.look()

    def forget(self, ended: Iterable[int]) -> None:
        """Take back that these ended: they are open in the store. It was restored from a backup, or
        somebody else sent the report. They are started again, or found running."""
        reopened = self._ended.intersection(ended)
        self._ended -= reopened
        if reopened:
            self.look()

    async def stop(self) -> None:
        """Start nothing more; returns when no start is under way."""
        self._is_open = False
        await workflow.wait_condition(lambda: not self._is_busy)
        if self._running is not None:
            self._running.cancel()

    async def _run(self) -> None:
        while True:
            await workflow.wait_condition(self._may_look)
            self._is_due, self._is_busy = False, True
            try:
                await self._admit()
            finally:
                self._is_busy = False

    def _may_look(self) -> bool:
        state = self._state
        return self._is_open and self._is_due and not state.paused and state.broken is None

    async def _admit(self) -> None:
        state, plan = self._state, self._state.plan
        admitted = await activity_calls.store(
            ADMIT_GROUPS,
            AdmitInput(
                campaign=state.campaign,
                policy_version=state.published_version,
                num_steps=plan.num_steps,
                groups_per_step=plan.groups_per_step,
                max_staleness=plan.max_staleness,
            ),
        )
        for index in admitted.running:
            if index not in self.in_flight and index not in self._ended:
                await self._start(index)

    async def _start(self, index: int) -> None:
        state = self._state
        group = group_id(state.campaign, index)
        version = state.published_version
        self.in_flight.add(index)
        self._newest = max(self._newest, index)
        try:
            await workflow.start_child_workflow(
                Workflow.GROUP,
                GroupInput(campaign=state.campaign, index=index, policy_version=version),
                id=group_workflow(group),
                task_queue=ROLLOUT_QUEUE,
                task_timeout=WORKFLOW_TASK_TIMEOUT,
                result_type=FinishGroupResult,
                parent_close_policy=workflow.ParentClosePolicy.ABANDON,
                search_attributes=search.at_start(state.campaign, group, version),
                static_summary=f"group {index} under policy version {version}",
            )
        except WorkflowAlreadyStartedError:
            # Started by an earlier run of the campaign; it reports to this one.
            workflow.logger.info("group %s runs already", group)
