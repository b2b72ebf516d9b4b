"""Asks one process whether it can import the extensions of a run that is about to be stored.

A workflow, since only workflows reach a worker's queue through Temporal. Invariant: one attempt,
bounded by the command that started it; nothing of it is stored.
"""

from datetime import timedelta

from temporalio import workflow
from temporalio.common import RetryPolicy

with workflow.unsafe.imports_passed_through():
    from mainspring.protocol.activities import CHECK_EXTENSIONS
    from mainspring.protocol.extensions import ExtensionsInput, ExtensionsResult
    from mainspring.protocol.names import Workflow
    from mainspring.protocol.timeouts import SILENT_WORKER_S


@workflow.defn(name=Workflow.EXTENSIONS)
class ExtensionsWorkflow:
    @workflow.run
    async def run(self, ask: ExtensionsInput) -> ExtensionsResult:
        return await workflow.execute_activity(
            CHECK_EXTENSIONS.name,
            ask,
            result_type=CHECK_EXTENSIONS.gives,
            task_queue=CHECK_EXTENSIONS.queue(ask),
            schedule_to_start_timeout=timedelta(seconds=SILENT_WORKER_S),
            start_to_close_timeout=timedelta(seconds=CHECK_EXTENSIONS.timeout_s),
            retry_policy=RetryPolicy(maximum_attempts=1),
        )
