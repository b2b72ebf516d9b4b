"""An evaluation: one rollout per task of a split under one policy version, never trained on."""

import asyncio

from temporalio import workflow

with workflow.unsafe.imports_passed_through():
    from mainspring.protocol.campaign import (
        CreateEvaluationResult,
        EvaluationInput,
        EvaluationResult,
        FinishGroupInput,
        FinishGroupResult,
    )
    from mainspring.protocol.names import Activity, Workflow
    from workflows import calls
    from workflows.group import EVALUATION_PRIORITY, run_rollout


@workflow.defn(name=Workflow.EVALUATION)
class EvaluationWorkflow:
    @workflow.run
    async def run(self, start: EvaluationInput) -> EvaluationResult:
        made = await calls.store(Activity.CREATE_EVALUATION, start, CreateEvaluationResult)
        slots = asyncio.Semaphore(start.concurrency)
        summary = f"{start.split}, {'greedy' if start.greedy else 'sampled'}"

        async def one(index: int) -> float | None:
            async with slots:
                result = await run_rollout(
                    start.campaign,
                    made.group,
                    index,
                    start.policy_version,
                    summary,
                    priority=EVALUATION_PRIORITY,
                )
                return None if result is None else result.reward

        rewards = await asyncio.gather(*(one(index) for index in range(made.size)))
        await calls.store(
            Activity.FINISH_GROUP, FinishGroupInput(group=made.group), FinishGroupResult
        )
        return EvaluationResult(
            group=made.group,
            num_rollouts=made.size,
            num_resolved=sum(1 for reward in rewards if reward == 1.0),
            num_masked=sum(1 for reward in rewards if reward is None),
        )
