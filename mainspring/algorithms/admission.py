"""When another group may start: pure arithmetic (invariant 9).

Groups in flight + ready (not yet in a committed step) never exceed (max_staleness + 1) x
groups_per_step, so nothing has to be thrown away for being stale. That bounds how many there are,
not how old one of them is: while a straggler holds its place, the others make steps.
Source: the capacity rule of AReaL, arXiv 2505.24298, counted in groups.
"""


def num_admissible_groups(
    *,
    num_steps: int,
    steps_done: int,
    groups_per_step: int,
    max_staleness: int,
    in_flight: int,
    ready: int,
) -> int:
    """How many groups may be started now; 0 also when the remaining steps have enough."""
    outstanding = in_flight + ready
    room = (max_staleness + 1) * groups_per_step - outstanding
    remaining = (num_steps - steps_done) * groups_per_step - outstanding
    return max(0, min(room, remaining))
