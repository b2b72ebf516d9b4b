"""Reset of a workflow to one of its workflow tasks, as an operator does it in Temporal's UI."""

from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.enums.v1 import EventType
from temporalio.api.workflowservice.v1 import ResetWorkflowExecutionRequest
from temporalio.client import WorkflowHandle


async def reset(cluster, handle: WorkflowHandle, *, share: float) -> None:
    """To the workflow task that lies at this share of its history."""
    history = await handle.fetch_history()
    ends = [
        event.event_id
        for event in history.events
        if event.event_type == EventType.EVENT_TYPE_WORKFLOW_TASK_COMPLETED
    ]
    await cluster.client.workflow_service.reset_workflow_execution(
        ResetWorkflowExecutionRequest(
            namespace=cluster.client.namespace,
            workflow_execution=WorkflowExecution(workflow_id=handle.id),
            reason="a test",
            workflow_task_finish_event_id=ends[int(share * (len(ends) - 1))],
            request_id=f"{handle.id}-{share}",
        )
    )
