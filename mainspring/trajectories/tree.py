"""A rollout's calls as a tree: which call extends which, and the branches from root to leaf.

Invariants: a call comes after its parent and begins where its parent ends; a rollout whose calls
each extend the one before is a tree with one branch. Pure. Imported by samples, exports and tests.
"""

from collections.abc import Sequence
from typing import TypeVar

from mainspring.trajectories.packed_call import TokenCall
from mainspring.trajectories.turns import BrokenTrajectory

C = TypeVar("C", bound=TokenCall)


def branches(calls: Sequence[C]) -> list[tuple[C, ...]]:
    """Each path from a root to a leaf, in the order of the leaves' numbers. `calls` line up."""
    inner = {call.parent for call in calls}
    return [path_to(calls, call.number) for call in calls if call.number not in inner]


def path_to(calls: Sequence[C], number: int | None) -> tuple[C, ...]:
    """The calls from a root to call `number`, which they include; None: no call."""
    path: list[C] = []
    while number is not None:
        path.append(calls[number])
        number = calls[number].parent
    return tuple(reversed(path))


def check_tree(rollout: str, calls: Sequence[TokenCall]) -> None:
    """Raises BrokenTrajectory naming the rollout and the call where its record breaks."""
    for expected, call in enumerate(calls):
        where = f"rollout {rollout}, call {call.number}"
        if call.number != expected:
            raise BrokenTrajectory(f"{where}: expected call {expected}")
        if call.parent is not None and not 0 <= call.parent < call.number:
            raise BrokenTrajectory(
                f"{where}: its parent is call {call.parent}, which is not before"
            )
        start = 0 if call.parent is None else calls[call.parent].end
        if call.prompt_start != start:
            raise BrokenTrajectory(
                f"{where}: starts at token {call.prompt_start}, expected {start}"
            )
        if len(call.logprobs) != len(call.completion_ids):
            raise BrokenTrajectory(f"{where}: log-probs and tokens differ in number")
        covered = 0
        for span in call.spans:
            if span.start != covered or span.end < span.start:
                raise BrokenTrajectory(f"{where}: version spans are not contiguous")
            covered = span.end
        if covered != len(call.completion_ids):
            raise BrokenTrajectory(f"{where}: version spans end at {covered}")
