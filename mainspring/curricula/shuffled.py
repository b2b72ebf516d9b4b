"""Every task once in each pass, in random order; what was solved does not matter.

Invariant: every pass over the tasks is a fresh permutation, so no task is skipped or favoured and a
resumed campaign asks for exactly the tasks it would have asked for. It reads no history, so the
tasks of the next groups are known ahead.
"""

import random


def task_position(seed: int | str, draw: int, num_tasks: int) -> int:
    """Position in the task set, 0 to num_tasks - 1, of the task that draw number `draw` has."""
    epoch, offset = divmod(draw, num_tasks)
    order = list(range(num_tasks))
    random.Random(f"{seed}/{epoch}").shuffle(order)
    return order[offset]
