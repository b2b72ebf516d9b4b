"""One supervised step: weighted next-token loss over a batch, and one update.

Invariants: the denominator is the weight of the whole batch, so that the gradient does not depend
on how ranks and micro-batches share it; a step that fails leaves weights and optimizer as they
were. Made by the rank, for the bundled model's warm start and for supervised runs.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from mainspring.training.step_metrics import SupervisedMetrics
from mainspring.training.training_faults import NonFiniteStep
from mainspring.trajectories.sequences import WeightedSequence
from trainer.engines.protocol import StepEngine, StepOptimizer
from trainer.model.packed import packed
from trainer.model.processes import Processes
from trainer.step.update import update


class SupervisedStep:
    def __init__(self, engine: StepEngine, optimizer: StepOptimizer, processes: Processes) -> None:
        self._engine = engine
        self._optimizer = optimizer
        self._processes = processes

    def run(
        self, sequences: Sequence[WeightedSequence], scale: float, campaign: str, what: str
    ) -> SupervisedMetrics:
        """At `scale` times the configured rates; `what`: the step, for messages. Raises
        NonFiniteStep."""
        total_weight = float(sum(sequence.weights[1:].sum() for sequence in sequences))
        if not total_weight > 0:
            raise ValueError("a supervised batch needs a token with a positive weight")
        rows = [sequence.masked() for sequence in sequences]
        loss_sum = torch.zeros((), dtype=torch.float64, device=self._processes.device)

        def weighted(share: list[int], logprobs: Tensor, entropy: Tensor) -> Tensor:
            values, masks = [sequences[n].weights for n in share], [rows[n].mask for n in share]
            weights = packed(values, masks, logprobs.device) / total_weight
            loss = -torch.dot(logprobs, weights)
            loss_sum.add_(loss.item())
            return loss

        self._engine.forward_backward(rows, weighted)
        try:
            norm = update(self._optimizer, scale, campaign, what)
        except NonFiniteStep as error:
            raise NonFiniteStep(
                error.message,
                remedy="lower trainer.optimizer.lr, raise its warmup_steps, or look for samples "
                "that are not text; then start it under another name",
            ) from None
        loss = float(self._processes.sum_over_batch(loss_sum))
        return SupervisedMetrics(loss=loss, grad_norm=norm, lr_scale=scale)
