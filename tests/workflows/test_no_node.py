"""A wait that nothing ends has an end: here no node ever opens a sandbox."""

from dataclasses import replace
from datetime import timedelta

import pytest
from cluster import cluster_of

from cli.operations.machine.embedded_stack import StackInfo
from mainspring.protocol.activities import OPEN_SANDBOX
from mainspring.status import StopReason
from workflows import activity_calls, sandbox_life


async def test_without_any_node_a_rollout_is_masked_in_the_end(
    stack: StackInfo, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(activity_calls, "OUTAGE", timedelta(seconds=2))
    monkeypatch.setattr(sandbox_life, "OPEN_SANDBOX", replace(OPEN_SANDBOX, timeout_s=1))
    async with cluster_of(stack, {}) as nobody:
        rollout, result = await nobody.play()
        row = await nobody.row(rollout)
    assert (result.stop_reason, result.reward) == (StopReason.INFRA_FAULT, None)
    assert row.fault is not None and row.fault.startswith("open_sandbox: ")
