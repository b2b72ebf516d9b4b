"""Search attributes: how people find rollouts in Temporal's UI.

Registered by the embedded stack under the same names. Each upsert is an event in the history, so
they change with the phase, never with the turn.
"""

from typing import Any

from temporalio import workflow
from temporalio.common import (
    SearchAttributeKey,
    SearchAttributePair,
    SearchAttributeUpdate,
    TypedSearchAttributes,
)

with workflow.unsafe.imports_passed_through():
    from mainspring.protocol.rollout import RolloutResult
    from mainspring.status import FaultKind, RolloutPhase

CAMPAIGN = SearchAttributeKey.for_keyword("CampaignId")
TASK = SearchAttributeKey.for_keyword("TaskId")
GROUP = SearchAttributeKey.for_keyword("GroupId")
POLICY_VERSION = SearchAttributeKey.for_int("PolicyVersion")
PHASE = SearchAttributeKey.for_keyword("RolloutPhase")
EXIT_STATUS = SearchAttributeKey.for_keyword("ExitStatus")
REWARD = SearchAttributeKey.for_float("Reward")
VERDICT = SearchAttributeKey.for_keyword("Verdict")
FAULT = SearchAttributeKey.for_keyword("Fault")
NUM_TURNS = SearchAttributeKey.for_int("NumTurns")


def at_start(
    campaign: str, group: str, policy_version: int, task: str | None = None
) -> TypedSearchAttributes:
    """Attributes of a group, an evaluation or (with its task) a rollout when it is started."""
    pairs: list[SearchAttributePair[Any]] = [
        SearchAttributePair(CAMPAIGN, campaign),
        SearchAttributePair(GROUP, group),
        SearchAttributePair(POLICY_VERSION, policy_version),
    ]
    if task is not None:
        pairs.append(SearchAttributePair(TASK, task))
        pairs.append(SearchAttributePair(PHASE, RolloutPhase.RUNNING.value))
    return TypedSearchAttributes(pairs)


def running(task: str) -> None:
    """For rollouts started without their task (evaluations span tasks)."""
    if workflow.info().typed_search_attributes.get(TASK) is None:
        workflow.upsert_search_attributes(
            [TASK.value_set(task), PHASE.value_set(RolloutPhase.RUNNING.value)]
        )


def phase(value: RolloutPhase) -> None:
    workflow.upsert_search_attributes([PHASE.value_set(value.value)])


def done(result: RolloutResult, fault: FaultKind | None) -> None:
    updates: list[SearchAttributeUpdate[Any]] = [
        PHASE.value_set(RolloutPhase.DONE.value),
        EXIT_STATUS.value_set(result.stop_reason.value),
        NUM_TURNS.value_set(result.num_turns),
    ]
    if result.reward is not None:
        updates.append(REWARD.value_set(result.reward))
    if result.verdict is not None:
        updates.append(VERDICT.value_set(result.verdict.value))
    if fault is not None:
        updates.append(FAULT.value_set(fault.value))
    workflow.upsert_search_attributes(updates)
