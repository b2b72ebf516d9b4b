"""Record of what a step did with each rollout of its batch, and the tokens on which engine and
trainer disagree most.

Pure. Made where the batch is put together and by the ranks, stored with the step, shown by screens.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from math import inf, isnan
from typing import TYPE_CHECKING

from mainspring.ids import RolloutId
from mainspring.status import Untrained

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

WORST_TOKENS = 200
"""Tokens of a step that are stored with their gap: 40 KB."""


@dataclass(frozen=True, slots=True)
class TrainedRollout:
    rollout: RolloutId
    advantage: float | None
    """The same for all its tokens, before any was masked; None: it has none."""
    is_mean: bool
    """Its tokens have different ones: `advantage` is their mean."""
    num_trained_tokens: int
    """Tokens of it that the loss was taken over."""
    masked_why: Untrained | None
    """Why there is no such token; None: there are some."""
    call_advantages: Mapping[int, float] | None = None
    """By call, where its calls have advantages of their own."""


@dataclass(frozen=True, slots=True)
class TokenGap:
    """One token as the engine served it, and as the trainer recomputed it under the same
    weights."""

    rollout: str
    branch: int
    """Number of the last call of the branch."""
    position: int
    """Place of the token in the branch, from 0."""
    served: float
    recomputed: float

    @property
    def size(self) -> float:
        """In nats; infinite where it is not a number, as in `mainspring.algorithms.gap`."""
        size = abs(self.recomputed - self.served)
        return inf if isnan(size) else size


@dataclass(frozen=True, slots=True)
class StoredGap:
    """The same by the token's place in the store."""

    rollout: RolloutId
    call: int
    offset: int
    """Place in the reply of the call, from 0."""
    served: float | None
    """None: not a finite number."""
    recomputed: float | None

    @property
    def size(self) -> float:
        """In nats."""
        if self.served is None or self.recomputed is None:
            return inf
        return abs(self.recomputed - self.served)


@dataclass(frozen=True, slots=True, eq=False)
class KeptSample:
    """Numbers of the action tokens of one sample: [A]."""

    logprobs: "NDArray[np.float32]"
    """Recomputed under the weights that the step began with."""
    entropies: "NDArray[np.float32] | None"
    """When the sample was first trained on; None: it was only compared."""


@dataclass(frozen=True, slots=True, eq=False)
class KeptCall:
    """The same of the reply of one call; NaN where a token was masked."""

    rollout: RolloutId
    call: int
    logprobs: "NDArray[np.float32]"
    entropies: "NDArray[np.float32] | None"


@dataclass(frozen=True, slots=True)
class StepDetails:
    """Details of one step, beside its figures."""

    gaps: tuple[TokenGap, ...] = ()
    """The largest, the largest first."""
    advantages: Mapping[str, float] = field(default_factory=dict[str, float])
    """Means over the tokens of each rollout, where a critic gave them."""
    kept: Mapping[int, KeptSample] = field(default_factory=dict[int, KeptSample])
    """By the sample's place in the step, where the campaign keeps them."""


def worst(gaps: Iterable[TokenGap]) -> tuple[TokenGap, ...]:
    """The largest gaps, in an order that repeats when the numbers do; a token that several ranks
    compared counts once."""
    of_places = {(gap.rollout, gap.branch, gap.position): gap for gap in gaps}
    ordered = sorted(
        of_places.values(), key=lambda gap: (-gap.size, gap.rollout, gap.branch, gap.position)
    )
    return tuple(ordered[:WORST_TOKENS])
