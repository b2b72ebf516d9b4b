"""Other weights in the place of the policy's: those that a KL penalty compares with, kept in the
host's memory, and those of an exported version.

Invariant: after `in_place` and `exported` the shard holds the weights that it held before, in all
bits, which needs `take(named())` of an engine's weights to change nothing, also in what an
optimizer keeps of them. Imported by the rank and by `trainer.step.policy_step`.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from torch import Tensor

from trainer.engines.protocol import ShardWeights


class Reference:
    def __init__(self, weights: ShardWeights) -> None:
        """A copy of what the shard holds now."""
        self._weights = weights
        self._reference = _copied(weights)

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """The shard holds the reference meanwhile."""
        current = _copied(self._weights)
        self._weights.take(self._reference)
        try:
            yield
        finally:
            self._weights.take(current)


@contextmanager
def exported(weights: ShardWeights, model_dir: Path) -> Iterator[None]:
    """The shard holds the weights of a Hugging Face directory meanwhile. Raises ModelError."""
    current = _copied(weights)
    try:
        weights.load_hf(model_dir)
        yield
    finally:
        weights.take(current)


def _copied(weights: ShardWeights) -> dict[str, Tensor]:
    return {name: weight.to("cpu", copy=True) for name, weight in weights.named().items()}
