"""Which of several task sets each draw takes its task from, by their weights.

Invariants: pure, a function of the weights and the number of the draw alone, so a campaign that
resumes, is prolonged or is trained anew asks the same sets; after any number of draws each set has
had its share of them, to less than one draw. The draws are slots of one processor that
the sets share: of the sets whose share has room for their next draw, the one whose draw is due
first has the slot (Baruah and others, "Proportionate progress", 1996), the earlier set of two that
are due at once. Which task of the set it is, the curriculum tells. Imported by `config.campaign`.
"""

from collections.abc import Sequence
from fractions import Fraction
from math import lcm


def draw_of(weights: Sequence[float], draw: int) -> tuple[int, int]:
    """The set that draw number `draw` (from 0) takes, by its place, and how many draws it had
    before."""
    # A weight is the number that was written, not the binary fraction that is next to it.
    written = [Fraction(str(weight)) for weight in weights]
    scale = lcm(*(weight.denominator for weight in written))
    shares = [int(weight * scale) for weight in written]
    total = sum(shares)
    if len(shares) == 1:
        return 0, draw
    rounds, last = divmod(draw, total)  # each round of this many draws is like the first one
    num_drawn = [0] * len(shares)
    chosen = 0
    for slot in range(last + 1):
        due = {
            place: -(-(num + 1) * total // share)
            for place, (num, share) in enumerate(zip(num_drawn, shares, strict=True))
            if num * total // share <= slot
        }
        chosen = min(due, key=lambda place: (due[place], place))
        num_drawn[chosen] += 1
    return chosen, rounds * shares[chosen] + num_drawn[chosen] - 1
