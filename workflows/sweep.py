"""The sweep: one activity that brings the store in line with what Temporal really runs.

Started by a schedule, one at a time; two at once do no harm. Its result says what was found.
"""

from temporalio import workflow

with workflow.unsafe.imports_passed_through():
    from mainspring.protocol.names import Activity, Workflow
    from mainspring.protocol.sweep import SweepInput, SweepResult
    from workflows import calls

ATTEMPT_TIMEOUT_S = 300.0
"""Thousands of rollouts, each looked up on its own, take seconds."""


@workflow.defn(name=Workflow.SWEEP)
class SweepWorkflow:
    @workflow.run
    async def run(self, start: SweepInput) -> SweepResult:
        return await calls.anywhere(Activity.SWEEP, start, SweepResult, timeout_s=ATTEMPT_TIMEOUT_S)
