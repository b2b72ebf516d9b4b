"""A reply whose engine or process died continues from the tokens that were stored."""

from cluster import Cluster

from infra.db import partial_calls
from mainspring.status import StopReason
from mainspring.trajectories.turns import PartialCall, VersionSpan

SERVED = PartialCall((84, 72, 79), (-0.5, -0.25, -1.0), (VersionSpan(0, 0, 3),), 2.0)


async def test_the_next_attempt_is_given_what_was_stored(cluster: Cluster) -> None:
    cut: list[str] = []

    async def hold(rollout: str) -> None:
        """The first reply of the rollout is cut off."""
        if not cut:
            cut.append(rollout)
            cluster.policy.cut[f"{rollout}.t0"] = SERVED

    cluster.policy.hold = hold
    rollout, result = await cluster.play()
    assert result.stop_reason is StopReason.SUBMITTED
    assert cut == [rollout]
    assert cluster.policy.begun == {f"{rollout}.t0": SERVED}
    assert await partial_calls.get(cluster.db, rollout, 0, 0) is None
