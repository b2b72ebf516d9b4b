"""The SDK's check for workflow code that would not replay; workers run without it."""

from temporalio.worker.workflow_sandbox import SandboxedWorkflowRunner, SandboxRestrictions

SANDBOXED = SandboxedWorkflowRunner(
    restrictions=SandboxRestrictions.default.with_passthrough_modules(
        "mainspring",
        "pydantic",
        "workflows.activity_calls",
        "workflows.sandbox_life",
        "workflows.search",
    )
)
"""Modules that hold no state are shared."""
