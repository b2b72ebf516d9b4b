"""Waiting is never a rollout's time: an outage ends masked or not at all, never with a reward."""

from collections.abc import Callable

from cluster import Cluster
from scripted import SUBMIT, bash

from mainspring.errors import EngineUnreachable
from mainspring.status import StopReason

FIX = bash("echo 'def add(a, b): return a + b' > calc.py")


def away(times: int, then: list[str]) -> Callable[[str, int], str]:
    """The first reply fails `times` times, with half a second, then twice as long, ... between."""
    left = [times]

    def say(rollout: str, turn: int) -> str:
        if left[0]:
            left[0] -= 1
            raise EngineUnreachable("no policy engine answered")
        return then[turn]

    return say


async def test_an_engine_that_is_away_longer_than_the_rollouts_time(cluster: Cluster) -> None:
    cluster.policy.say = away(3, [FIX, bash("true"), SUBMIT])
    rollout, result = await cluster.play(rollout_timeout_s=3.0)
    assert (result.stop_reason, result.reward, result.num_turns) == (StopReason.SUBMITTED, 1.0, 3)
    assert (await cluster.row(rollout)).phase_s["generate"] > 3.0


async def test_commands_use_up_the_rollouts_time(cluster: Cluster) -> None:
    cluster.policy.say = away(0, [bash("sleep 1.5"), SUBMIT])
    _, result = await cluster.play(rollout_timeout_s=1.0)
    assert (result.stop_reason, result.num_turns) == (StopReason.WALL_TIME, 1)
