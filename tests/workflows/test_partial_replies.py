"""A reply whose engine or process died continues from the tokens that were stored."""

import pytest
from cluster import Cluster
from scripted import SUBMIT, bash

from infra.db.rollouts import partial_calls
from mainspring.status import StopReason
from mainspring.trajectories.turns import PartialCall, VersionSpan

SERVED = PartialCall((84, 72, 79), (-0.5, -0.25, -1.0), (VersionSpan(0, 0, 3),), 2.0)


@pytest.mark.parametrize("turns_per_activity", [1, 3])
@pytest.mark.parametrize("turn", [0, 1])
async def test_the_next_attempt_is_given_what_was_stored(
    cluster: Cluster, turn: int, turns_per_activity: int
) -> None:
    """Also when that attempt is an activity of its own, because turns before it were played."""
    cluster.policy.say = lambda rollout, number: (bash("true"), SUBMIT)[number]

    async def cut(rollout: str) -> None:
        if not cluster.policy.asked:
            cluster.policy.cut[f"{rollout}.t{turn}"] = SERVED

    cluster.policy.hold = cut
    rollout, result = await cluster.play(turns_per_activity=turns_per_activity)
    assert result.stop_reason is StopReason.SUBMITTED
    assert cluster.policy.begun == {f"{rollout}.t{turn}": SERVED}
    assert await partial_calls.get(cluster.db, rollout, 0, turn) is None
