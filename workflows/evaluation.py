"""An evaluation: one rollout per task of a split under one policy version, never trained on.

Started again after a cancel, a failure or a reset, it plays what has not ended with a verdict.
"""

import asyncio

from temporalio import workflow

with workflow.unsafe.imports_passed_through():
    from mainspring.protocol.activities import CREATE_EVALUATION, FINISH_GROUP
    from mainspring.protocol.campaign import EvaluationInput, EvaluationResult, FinishGroupInput
    from mainspring.protocol.names import Workflow
    from workflows import activity_calls
    from workflows.playing import EVALUATION_PRIORITY, run_rollout


@workflow.defn(name=Workflow.EVALUATION)
class EvaluationWorkflow:
    def __init__(self) -> None:
        self._broken: str | None = None

    @workflow.run
    async def run(self, start: EvaluationInput) -> EvaluationResult:
        made = await activity_calls.store(CREATE_EVALUATION, start)
        slots = asyncio.Semaphore(start.concurrency)
        summary = f"{start.split}, {'greedy' if start.greedy else 'sampled'}"

        async def one(index: int) -> None:
            async with slots:
                if self._broken is not None:
                    return
                result = await run_rollout(
                    start.campaign,
                    made.group,
                    index,
                    start.policy_version,
                    summary,
                    priority=EVALUATION_PRIORITY,
                )
                self._broken = self._broken or (result and result.broken)

        indexes = range(made.size) if made.unfinished is None else made.unfinished
        await asyncio.gather(*(one(index) for index in indexes))
        # Before it is closed: what is broken is measured once it is repaired.
        activity_calls.raise_if_broken([self._broken])
        finished = await activity_calls.store(FINISH_GROUP, FinishGroupInput(group=made.group))
        return EvaluationResult(
            group=made.group,
            num_rollouts=made.size,
            num_resolved=finished.num_resolved,
            num_masked=finished.num_masked,
        )
