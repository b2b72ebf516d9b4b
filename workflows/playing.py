"""One rollout as a child: started, adopted from another run, or played again, until it has ended.

Invariants: a rollout has one workflow at a time, whose id is its own, so a group that is started
again or reset finds the rollouts of the run before under the same ids; they outlive it (abandoned,
and cancelled only explicitly). Imported by the workflows of groups and runs.
"""

import asyncio
from collections.abc import Callable

from temporalio import workflow
from temporalio.common import Priority, WorkflowIDReusePolicy
from temporalio.exceptions import (
    ApplicationError,
    CancelledError,
    ChildWorkflowError,
    TerminatedError,
    WorkflowAlreadyStartedError,
)

with workflow.unsafe.imports_passed_through():
    from mainspring.ids import (
        CampaignId,
        GroupId,
        RolloutId,
        TaskId,
        rollout_id,
        rollout_workflow,
    )
    from mainspring.protocol.activities import READ_OUTCOME
    from mainspring.protocol.campaign import OutcomeInput
    from mainspring.protocol.names import WORKFLOW_TASK_TIMEOUT, Workflow
    from mainspring.protocol.rollout import RolloutInput, RolloutResult
    from mainspring.status import StopReason
    from mainspring.status.fates import Fate, rule_of
    from workflows import activity_calls, search

TRAINING_PRIORITY = 3
"""Temporal's own default; smaller numbers go first."""
EVALUATION_PRIORITY = 2
"""Ahead of training: the campaign takes no step until the evaluation is in."""
FIRST_LOOK_S = 2.0
LAST_LOOK_S = 30.0
"""Between looks at a rollout that another run plays; each wait is twice the one before."""
_UNLESS_COMPLETED = WorkflowIDReusePolicy.ALLOW_DUPLICATE_FAILED_ONLY
"""One that completed since it was found unfinished is not played a second time."""
MAX_TERMINATED = 1
"""Times a rollout that was terminated is played again."""


async def run_rollout(
    campaign: CampaignId,
    group: GroupId,
    index: int,
    policy_version: int,
    summary: str,
    task: TaskId | None = None,
    *,
    priority: int = TRAINING_PRIORITY,
    max_faults: int = 0,
    is_late: Callable[[], bool] = lambda: False,
) -> RolloutResult | None:
    """The group's `index`-th rollout to its end; None when its workflow failed. One that was masked
    by a fault which may pass (Fate.RETRY) is played again `max_faults` times, unless `is_late`.

    Its activities inherit its priority: the smallest number first, and among equals a turn for
    every campaign."""
    rollout = rollout_id(group, index)
    num_terminated = num_faults = 0
    look_s = FIRST_LOOK_S
    reuse = _UNLESS_COMPLETED
    while True:
        try:
            result = await workflow.execute_child_workflow(
                Workflow.ROLLOUT,
                RolloutInput(
                    rollout=rollout,
                    campaign=campaign,
                    group=group,
                    min_policy_version=policy_version,
                ),
                id=rollout_workflow(rollout),
                id_reuse_policy=reuse,
                task_timeout=WORKFLOW_TASK_TIMEOUT,
                result_type=RolloutResult,
                parent_close_policy=workflow.ParentClosePolicy.ABANDON,
                search_attributes=search.at_start(campaign, group, policy_version, task),
                static_summary=f"{index:03}" if task else f"{index:03}, {summary}",
                static_details=_about(campaign, group, rollout, task),
                priority=Priority(priority_key=priority, fairness_key=campaign),
            )
        except WorkflowAlreadyStartedError:
            outcome = await activity_calls.store(READ_OUTCOME, OutcomeInput(rollout=rollout))
            result = outcome.result
            if result is None or _is_fault(result):
                if outcome.is_free and reuse is _UNLESS_COMPLETED:
                    # Cut off, masked or given back: what asks for it wants it played again.
                    reuse = WorkflowIDReusePolicy.ALLOW_DUPLICATE
                else:
                    await _wait_elsewhere(rollout, look_s)
                    look_s = min(LAST_LOOK_S, 2 * look_s)
                    # Or what completes meanwhile would be played a second time.
                    reuse = _UNLESS_COMPLETED
                continue
        except ChildWorkflowError as error:
            activity_calls.raise_if_cancelled()
            # Reset in Temporal, it plays on under the same id; only terminated, it begins anew.
            if isinstance(error.cause, TerminatedError) and num_terminated < MAX_TERMINATED:
                num_terminated += 1
                continue
            # A workflow that failed has written no reward: the group's close treats it as masked.
            workflow.logger.warning("rollout %s failed: %s", rollout, error.cause)
            if isinstance(error.cause, CancelledError) or num_faults >= max_faults or is_late():
                return None
            num_faults += 1
            reuse = WorkflowIDReusePolicy.ALLOW_DUPLICATE
            continue
        activity_calls.raise_if_cancelled()
        if num_faults >= max_faults or is_late() or not _may_pass(result):
            return result
        num_faults += 1
        reuse = WorkflowIDReusePolicy.ALLOW_DUPLICATE


def _about(campaign: CampaignId, group: GroupId, rollout: RolloutId, task: TaskId | None) -> str:
    """Markdown, for the rollout's page in Temporal's UI."""
    names = [f"task `{task}`"] if task else []
    names += [f"campaign `{campaign}`", f"group `{group}`"]
    return (
        f"{', '.join(names)}\n\nTo retry it: Reset to the first workflow task, or "
        f"`mainspring rollout retry {rollout}`. A rollout of a closed training group is final."
    )


def _is_fault(result: RolloutResult) -> bool:
    stopped = result.stop_reason is StopReason.CANCELLED or result.broken is not None
    return result.reward is None and not stopped


def _may_pass(result: RolloutResult) -> bool:
    """Whether it was masked by what may be over when it is played again: not by its task, nor by a
    policy that refuses. A fault without a kind may pass."""
    kind = activity_calls.kind_in(result.fault)
    return _is_fault(result) and (kind is None or rule_of(kind).fate is Fate.RETRY)


async def _wait_elsewhere(rollout: RolloutId, look_s: float) -> None:
    """Another run plays it, or lets go of it; a cancel of this one reaches it there."""
    try:
        await asyncio.sleep(look_s)
    except asyncio.CancelledError:
        await cancel_elsewhere(rollout_workflow(rollout))
        raise


async def cancel_elsewhere(workflow_id: str) -> None:
    """Cancel a workflow that is no child of this run."""
    try:
        await workflow.get_external_workflow_handle(workflow_id).cancel()
    except ApplicationError as error:
        workflow.logger.info("%s had ended: %s", workflow_id, error)
