"""SHA-256 over the gradients of a step: every update's, of every parameter in order of names.

Part of a policy version's fingerprint. Fed by the optimizer (`WatchedOptimizer.watch`) after ranks
have added up their gradients and before they are clipped. Imported by the rank.
"""

import hashlib

from torch import nn

from trainer.engines.gradients import trained


class GradientDigest:
    def __init__(self) -> None:
        self._found = hashlib.sha256()
        self._num_updates = 0

    def add(self, model: nn.Module) -> None:
        """The gradients of one update."""
        self._num_updates += 1
        for name, parameter in sorted(trained(model), key=lambda named: named[0]):
            assert parameter.grad is not None, name
            self._found.update(name.encode())
            self._found.update(parameter.grad.detach().contiguous().cpu().numpy().data)

    @property
    def sha256(self) -> str | None:
        """In hex; None where nothing was added."""
        return self._found.hexdigest() if self._num_updates else None
