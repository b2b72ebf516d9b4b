"""The slowest rollouts of a group: told when enough others were scored that their time is short.

Invariants: a rollout is told at most once, and only one that plays already: one that is begun later
has its whole time. From then on a fault masks: to play again from the first turn within the time
that is left would score a fault as a failure. Imported by the workflow of groups.
"""

from collections.abc import Awaitable, Sequence

from temporalio import workflow
from temporalio.exceptions import ApplicationError

with workflow.unsafe.imports_passed_through():
    from mainspring.ids import GroupId, rollout_id, rollout_workflow
    from mainspring.protocol.campaign import Quorum
    from mainspring.protocol.rollout import STRAGGLER_SIGNAL, RolloutResult


class Stragglers:
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
