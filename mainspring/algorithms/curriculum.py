"""Which task a training group gets: a pure function of the campaign's seed and the group's index.

Invariant: every pass over the tasks is a fresh permutation, so no task is skipped or favoured and a
resumed campaign asks for exactly the tasks it would have asked for.
"""

import random


def task_position(seed: int, group_index: int, num_tasks: int) -> int:
    """Position in the train split, 0 to num_tasks - 1, of the `group_index`-th group's task."""
    epoch, offset = divmod(group_index, num_tasks)
    order = list(range(num_tasks))
    random.Random(f"{seed}/{epoch}").shuffle(order)
    return order[offset]
