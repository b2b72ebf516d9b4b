"""A sandbox that is killed while it opens costs another one, never the rollout."""

import pytest
from cluster import Cluster
from scripted import SUBMIT, bash

from infra.db.nodes import sandboxes
from infra.sandbox.bubblewrap.backend import BwrapBackend
from infra.sandbox.protocol import Sandbox, SandboxLost, SandboxSpec
from mainspring.status import StopReason

FIX = bash("sed -i 's/a - b/a + b/' calc.py")


async def test_the_rollout_gets_another_sandbox(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    opens = BwrapBackend.open
    doomed = [3]

    async def open_and_die(self: BwrapBackend, spec: SandboxSpec) -> Sandbox:
        sandbox = await opens(self, spec)
        if doomed[0] and ".grade" not in spec.id:
            doomed[0] -= 1
            await sandbox.close()
            raise SandboxLost(f"sandbox {spec.id} is gone: its shell ended")
        return sandbox

    monkeypatch.setattr(BwrapBackend, "open", open_and_die)
    cluster.policy.say = lambda rollout, turn: (FIX, SUBMIT)[turn]
    rollout, result = await cluster.play()
    assert (result.stop_reason, result.reward, result.fault) == (StopReason.SUBMITTED, 1.0, None)
    assert doomed == [0]
    assert await cluster.open_sandboxes() == []
    leases = await sandboxes.rollout_leases(cluster.db, rollout)
    assert not [lease for lease in leases if lease.status == "open"]
