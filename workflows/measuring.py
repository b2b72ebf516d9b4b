"""A policy version comes into the engines, and is measured: its evaluations, and served against
recomputed log-probs.

Each evaluation is a child: the same run workflow that measures outside campaigns.

Invariants: what the store has complete is not measured again; an evaluation that an earlier run of
the campaign left running is waited for; where engines share devices with the trainer's ranks, each
activity of the trainer leaves them without memory, so a version is published after it, also one
that they had, and also when the campaign fails or is cancelled.
"""

import asyncio
from contextlib import suppress

from temporalio import workflow
from temporalio.exceptions import FailureError, WorkflowAlreadyStartedError

with workflow.unsafe.imports_passed_through():
    from mainspring.ids import (
        ROLLOUT_QUEUE,
        CampaignId,
        GroupId,
        eval_group_id,
        evaluation_workflow,
        trainer_queue,
    )
    from mainspring.protocol.activities import (
        CHECK_LOGPROBS,
        PUBLISH_POLICY,
        PUBLISH_TIMEOUT_S,
        SEND_POLICY,
        STEP_TIMEOUT_S,
    )
    from mainspring.protocol.campaign import (
        CampaignPlan,
        CampaignState,
        CheckInput,
        PolicyRef,
        Survey,
    )
    from mainspring.protocol.names import WORKFLOW_TASK_TIMEOUT, Workflow
    from mainspring.protocol.run import PolicyEvaluation, RunProgress, RunState
    from mainspring.status import Publish
    from workflows import activity_calls, search
    from workflows.playing import cancel_elsewhere
    from workflows.waiting import Waits

ADOPT_LOOK_S = 10.0
"""Between looks at an evaluation that an earlier run of the campaign started."""
LAST_S = 300.0
"""For engines to take their memory again when a campaign fails or is cancelled."""


async def publish(state: CampaignState, version: int, waits: Waits, far: str) -> None:
    """`far`: how far the campaign is, in words."""
    ref = PolicyRef(campaign=state.campaign, version=version)
    if state.plan.publish is Publish.COLLECTIVE and version > 0:
        queue, what = trainer_queue(state.campaign), f"sending policy version {version}"
        with waits.on(what, queue=queue, timeout_s=PUBLISH_TIMEOUT_S, far=far):
            await activity_calls.anywhere(
                SEND_POLICY, ref, summary=f"policy version {version} over a process group"
            )
    # Of engines that have it, this is a look.
    what = f"publishing policy version {version}"
    with waits.on(what, queue=ROLLOUT_QUEUE, timeout_s=PUBLISH_TIMEOUT_S, far=far):
        await activity_calls.anywhere(PUBLISH_POLICY, ref, summary=f"policy version {version}")
    state.published_version = version


def left_without_memory(state: CampaignState) -> None:
    """An activity of the trainer has ended, whatever its end."""
    if state.plan.colocate:
        state.published_version = -1


async def publish_at_the_end(state: CampaignState, version: int | None) -> None:
    """Give engines that may lack memory `version`, as the campaign fails or is cancelled. An engine
    that cannot take it in LAST_S is left to the next campaign that publishes to it."""
    if not state.plan.colocate or version is None:
        return
    ref = PolicyRef(campaign=state.campaign, version=version)
    with suppress(FailureError, TimeoutError):
        await asyncio.wait_for(
            activity_calls.anywhere(PUBLISH_POLICY, ref, summary="engines take their memory again"),
            LAST_S,
        )


def evaluations_due(plan: CampaignPlan, version: int) -> list[tuple[str, bool]]:
    """Split and whether greedy: the first and the last version on every split and way of sampling,
    one in between on the first split only."""
    if version not in (0, plan.num_steps):
        is_due = version % plan.eval_every_steps == 0
        return [(split, False) for split in plan.eval_splits[:1] if is_due]
    greedy = [(split, True) for split in plan.eval_splits[:1] if plan.eval_greedy]
    return [*((split, False) for split in plan.eval_splits), *greedy]


def evaluation_groups(campaign: CampaignId, plan: CampaignPlan, version: int) -> list[GroupId]:
    """Groups of the evaluations that are due."""
    return [
        eval_group_id(campaign, split, _way(greedy), version)
        for split, greedy in evaluations_due(plan, version)
    ]


async def measure(state: CampaignState, seen: Survey, waits: Waits) -> None:
    version, plan = state.published_version, state.plan
    evaluations = evaluations_due(plan, version)
    missing = [
        (split, greedy)
        for split, greedy in evaluations
        if eval_group_id(state.campaign, split, _way(greedy), version) not in seen.evaluated
    ]
    if missing:
        with waits.on(f"evaluating policy version {version}", queue=ROLLOUT_QUEUE):
            await asyncio.gather(*(_evaluate(state, *evaluation) for evaluation in missing))
    if evaluations and version in (0, plan.num_steps) and not seen.is_checked:
        queue = trainer_queue(state.campaign)
        group = eval_group_id(state.campaign, plan.eval_splits[0], _way(False), version)
        what = "checking served against recomputed log-probs"
        with waits.on(what, queue=queue, timeout_s=STEP_TIMEOUT_S):
            await activity_calls.anywhere(
                CHECK_LOGPROBS,
                CheckInput(campaign=state.campaign, group=group, version=version),
                summary=f"log-probs of version {version}",
            )
        left_without_memory(state)


async def _evaluate(state: CampaignState, split: str, greedy: bool) -> RunProgress:
    version = state.published_version
    group = eval_group_id(state.campaign, split, _way(greedy), version)
    while True:
        try:
            return await workflow.execute_child_workflow(
                Workflow.RUN,
                RunState(
                    campaign=state.campaign,
                    concurrency=state.plan.eval_concurrency,
                    summary=f"{split}, {_way(greedy)}",
                    evaluation=PolicyEvaluation(policy_version=version, split=split, greedy=greedy),
                ),
                id=evaluation_workflow(group),
                task_queue=ROLLOUT_QUEUE,
                task_timeout=WORKFLOW_TASK_TIMEOUT,
                result_type=RunProgress,
                parent_close_policy=workflow.ParentClosePolicy.ABANDON,
                search_attributes=search.at_start(state.campaign, group, version),
                static_summary=f"{split}, {_way(greedy)}, policy version {version}",
            )
        except WorkflowAlreadyStartedError:
            # When it has ended, the one started then finds it complete, or plays what is missing.
            try:
                await asyncio.sleep(ADOPT_LOOK_S)
            except asyncio.CancelledError:
                await cancel_elsewhere(evaluation_workflow(group))
                raise


def _way(greedy: bool) -> str:
    return "greedy" if greedy else "sampled"
