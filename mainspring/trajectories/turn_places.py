"""Where the turns of a rollout stand on their branches, and what each was given. Pure.

Invariant: a turn that several branches share has one place, in the branch that it is trained in
(`samples.samples_of`): the first. Imported by `activities.training.step_batch` and by the
estimators that give each turn an advantage of its own.
"""

from collections.abc import Container, Sequence
from dataclasses import dataclass

from mainspring.trajectories.packed_call import TokenCall
from mainspring.trajectories.tree import branches, check_tree, with_parents
from mainspring.trajectories.turn_rewards import TurnRewards


@dataclass(frozen=True, slots=True)
class TurnPlace:
    index: int
    """Number of turns before it on its branch, trained or not."""
    num_after: int
    """Number of turns after it on the branch that it is trained in."""
    reward: float | None = 0.0
    """Reward of the turn itself; 0 where none is given, None where it is missing."""


def turn_places(
    rollout: str,
    calls: Sequence[TokenCall],
    trained: Container[int] | None = None,
    rewards: TurnRewards | None = None,
) -> dict[int, TurnPlace]:
    """Places of the calls that are trained, by number, in the order of their samples and turns;
    `trained`: as `samples_of` has it. Raises BrokenTrajectory when the calls do not line up."""
    check_tree(rollout, calls)
    chosen = {call.number for call in calls if trained is None or call.number in trained}
    places: dict[int, TurnPlace] = {}
    for path in branches(with_parents(calls, chosen)):
        for index, call in enumerate(path):
            if call.number in chosen:
                reward = 0.0 if rewards is None else rewards.of(call.number)
                places.setdefault(call.number, TurnPlace(index, len(path) - 1 - index, reward))
    return places
