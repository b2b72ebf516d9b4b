"""A part of a step's batch with an optimizer update of its own, and what was recomputed of it.

Invariants: the parts of a batch depend on the order of its samples and on their rollouts alone;
each sample is in one part, and all branches of a rollout are in the same. Imported by
`trainer.step.policy_step` and `trainer.step.loss_pass`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from mainspring.trajectories.samples import Sample

T = TypeVar("T")
Recomputed = Mapping[int, NDArray[np.float32]]
"""[T] log-probs of the samples of this rank's share, by index, as `StepEngine.logprobs` has it."""


@dataclass(frozen=True, slots=True)
class MiniBatch:
    samples: Sequence[Sample]
    """The samples of all ranks, each with action tokens."""
    proximal: Recomputed | None = None
    """Under the weights that the step began with; None: as served."""
    reference: Recomputed | None = None
    """Under the reference's weights; None: there is no reference."""


def parts_of(samples: Sequence[T], number: int, rollouts_N: Sequence[str]) -> list[list[T]]:
    """At most `number` parts, none empty: the n-th rollout is in part n modulo `number`, so that a
    group's rollouts, which stand side by side, are in different ones. `rollouts_N`: whose branch
    each sample is."""
    places = {rollout: n for n, rollout in enumerate(dict.fromkeys(rollouts_N))}
    parts: list[list[T]] = [[] for _ in range(min(number, len(places)))]
    for sample, rollout in zip(samples, rollouts_N, strict=True):
        parts[places[rollout] % number].append(sample)
    return parts
