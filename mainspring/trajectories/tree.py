"""A rollout's calls as a tree: which call extends which, and the branches from root to leaf.

Invariants: numbers rise and may have gaps (a program's request that was refused has one and no
call); a call comes after its parent and begins where its parent ends; a rollout whose calls each
extend the one before is a tree with one branch. Pure. Imported by samples, exports and tests.
"""

from bisect import bisect_left
from collections.abc import Sequence, Set
from typing import TypeVar

from mainspring.trajectories.packed_call import TokenCall
from mainspring.trajectories.turns import BrokenTrajectory

C = TypeVar("C", bound=TokenCall)


def branches(calls: Sequence[C]) -> list[tuple[C, ...]]:
    """Each path from a root to a leaf, in the order of the leaves' numbers. `calls` line up."""
    inner = {call.parent for call in calls}
    return [path_to(calls, call.number) for call in calls if call.number not in inner]


def path_to(calls: Sequence[C], number: int | None) -> tuple[C, ...]:
    """The calls from a root to call `number`, which they include; None: no call. `calls` stand by
    number. Raises BrokenTrajectory when one of them is missing."""
    path: list[C] = []
    while number is not None:
        # Without gaps a call stands at its number.
        call = calls[number] if 0 <= number < len(calls) else None
        if call is None or call.number != number:
            call = _call(calls, number)
        path.append(call)
        number = call.parent
    return tuple(reversed(path))


def with_parents(calls: Sequence[C], chosen: Set[int]) -> list[C]:
    """The chosen calls and all that they extend."""
    used = set(chosen)
    for call in reversed(calls):
        if call.number in used and call.parent is not None:
            used.add(call.parent)
    return [call for call in calls if call.number in used]


def _call(calls: Sequence[C], number: int) -> C:
    place = bisect_left(calls, number, key=lambda call: call.number)
    if place == len(calls) or calls[place].number != number:
        raise BrokenTrajectory(f"call {number} is not there, but another one extends it")
    return calls[place]


def check_tree(rollout: str, calls: Sequence[TokenCall]) -> None:
    """Raises BrokenTrajectory naming the rollout and the call where its record breaks."""
    ends: dict[int, int] = {}
    last = -1
    for call in calls:
        where = f"rollout {rollout}, call {call.number}"
        if call.number <= last:
            raise BrokenTrajectory(f"{where}: comes after call {last}")
        if call.parent is not None and call.parent not in ends:
            raise BrokenTrajectory(
                f"{where}: its parent is call {call.parent}, which is not before"
            )
        start = 0 if call.parent is None else ends[call.parent]
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
        ends[call.number], last = call.end, call.number
