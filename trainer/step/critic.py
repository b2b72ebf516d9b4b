"""The critic of a rank: what its value engine judges, its steps, and its part of a checkpoint.

Invariants: values are those before the step, and every rank has all of the batch's; they make the
same advantages on every rank, whatever each one computed. The critic moves after the policy, so a
step that fails before the policy moved leaves both as they were. A checkpoint has it whole or is
refused. Micro-batches are the policy's. Made and called by `trainer.process.rank`; all ranks make
the same calls.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from mainspring.algorithms.gae import explained_variance, gae_of_branches, whitened
from mainspring.config.campaign import CampaignConfig
from mainspring.config.section import STORED
from mainspring.config.trainer import TrainerConfig
from mainspring.config.training.critic import CriticConfig
from mainspring.config.training.optimizer import OptimizerConfig
from mainspring.config.training.parallel import FSDP, MCORE, ParallelConfig
from mainspring.errors import ModelError
from mainspring.trajectories.samples import Sample
from mainspring.trajectories.sequences import MaskedSequence
from trainer.engines.checkpoint import CRITIC
from trainer.engines.protocol import (
    MovableOptimizer,
    ShardWeights,
    StepOptimizer,
    WatchedOptimizer,
)
from trainer.model.packed import packed
from trainer.model.processes import Processes
from trainer.step.mini_batch import parts_of
from trainer.step.update import update
from trainer.values.protocol import ValueEngineClass


@dataclass(frozen=True, slots=True)
class ValuedSample:
    """A branch with its critic's opinion. Arrays have the length [T] of the sample, and count where
    `sample.action_mask` is set."""

    sample: Sample
    """With its advantages."""
    values: NDArray[np.float32]
    """Before the step."""
    returns: NDArray[np.float32]
    """The values that would have been right."""


class Critic:
    def __init__(
        self,
        config: CampaignConfig,
        critic: CriticConfig,
        model_dir: Path,
        processes: Processes,
    ) -> None:
        """With the weights of a Hugging Face directory. Raises ModelError."""
        self._campaign = config.name
        self._trainer = config.trainer
        self._config = critic
        self._processes = processes
        make = value_engine_of(config.trainer)
        self.engine = make(config, model_dir, processes)
        self._optimizer = self._fresh_optimizer()

    def _fresh_optimizer(self) -> StepOptimizer:
        fields = {"lr": self._config.lr, "max_grad_norm": self._config.max_grad_norm}
        return self.engine.optimizer(OptimizerConfig.model_validate(fields, context=STORED))

    def held(self) -> Iterator[Tensor]:
        """Weights and moments, which leave the device with the policy's."""
        yield from self.engine.weights.named().values()
        if isinstance(self._optimizer, MovableOptimizer):
            yield from self._optimizer.held()

    def run_with(self, trainer: TrainerConfig) -> None:
        """Take what a campaign may change."""
        self._trainer = trainer

    def begin_as(self, policy: ShardWeights) -> None:
        """Take the layers that the policy has now; head and optimizer start anew."""
        self.engine.begin_as(policy)
        self._optimizer = self._fresh_optimizer()

    def watch(self, show: Callable[[nn.Module], None] | None) -> None:
        """See `trainer.engines.protocol.WatchedOptimizer`."""
        if isinstance(self._optimizer, WatchedOptimizer):
            self._optimizer.watch = show

    def judge(self, samples: Sequence[Sample]) -> tuple[list[Sample], list[ValuedSample]]:
        """All samples in their order, those with a reward with their advantages; and these."""
        places = [n for n, sample in enumerate(samples) if sample.is_for_critic]
        judged = self._judged([samples[n] for n in places])
        in_order = [*samples]
        for n, valued in zip(places, judged, strict=True):
            in_order[n] = valued.sample
        return in_order, judged

    def _judged(self, samples: Sequence[Sample]) -> list[ValuedSample]:
        masks = [sample.action_mask for sample in samples]
        values_N = self._values(samples)
        estimates_N = gae_of_branches(
            [values[mask] for values, mask in zip(values_N, masks, strict=True)],
            [sample.rollout for sample in samples],
            [sample.reward or 0.0 for sample in samples],
            gamma=self._config.gamma,
            gae_lambda=self._config.gae_lambda,
            turn_rewards_N=[turn_rewards_of(sample) for sample in samples],
        )
        advantages_N = [advantages for advantages, _ in estimates_N]
        if self._config.whiten:
            advantages_N = whitened(advantages_N)
        return [
            ValuedSample(
                sample=replace(sample, advantages=_placed(advantages, mask)),
                values=values,
                returns=_placed(returns, mask),
            )
            for sample, mask, values, advantages, (_, returns) in zip(
                samples, masks, values_N, advantages_N, estimates_N, strict=True
            )
        ]

    @staticmethod
    def advantages(judged: Sequence[ValuedSample]) -> dict[str, float]:
        """The mean over the action tokens of each rollout."""
        of_rollout: dict[str, list[NDArray[np.float32]]] = {}
        for valued in judged:
            sample = valued.sample
            of_rollout.setdefault(sample.rollout, []).append(sample.advantages[sample.action_mask])
        return {
            rollout: float(np.concatenate(parts).mean(dtype=np.float64))
            for rollout, parts in of_rollout.items()
        }

    def _values(self, samples: Sequence[Sample]) -> list[NDArray[np.float32]]:
        """[T] of each sample, 0 where no action is; on all ranks."""
        own = self.engine.values(_sequences(samples))
        by_place: dict[int, NDArray[np.float32]] = {}
        for share in self._processes.gather_objects_over_batch(own):
            by_place |= share
        return [by_place[n] for n in range(len(samples))]

    def train(self, judged: Sequence[ValuedSample], step: int) -> dict[str, float | None]:
        """As many updates as the policy's, on the same parts of the batch; the figures of
        CRITIC_NAMES. `step` counts from 0. Raises NonFiniteStep."""
        values = _flat([valued.values for valued in judged], judged)
        returns = _flat([valued.returns for valued in judged], judged)
        figures: dict[str, float | None] = {
            "value_mean": float(values.mean()) if len(values) else None,
            "value_explained_variance": explained_variance(values, returns.astype(np.float64)),
            "value_loss": None,
            "value_clip_fraction": None,
            "critic_grad_norm": None,
        }
        rollouts = [valued.sample.rollout for valued in judged]
        parts = parts_of(judged, self._trainer.mini_batches, rollouts)
        for number in range(self._trainer.updates_per_step if parts else 0):
            passed = [self._pass(part, f"the critic of step {step + 1}") for part in parts]
            norms = [norm for *_, norm in passed]
            loss, num_cut = (
                sum(figures_of[n] for figures_of in passed) / len(values) for n in range(2)
            )
            figures["value_clip_fraction"] = num_cut
            if number == 0:
                figures |= {"value_loss": loss, "critic_grad_norm": sum(norms) / len(norms)}
        return figures

    def _pass(self, part: Sequence[ValuedSample], what: str) -> tuple[float, float, float]:
        """One update: its loss and its clipped tokens, summed over the tokens of all ranks, and the
        norm of its gradient. `what`: for messages."""
        num_tokens = sum(valued.sample.num_action_tokens for valued in part)
        device = self._processes.device
        sums = torch.zeros(2, dtype=torch.float64, device=device)

        def loss_of(share: list[int], values: Tensor) -> Tensor:
            shared = [part[n] for n in share]
            masks = [valued.sample.action_mask for valued in shared]
            losses, is_cut = value_loss(
                values,
                packed([valued.values for valued in shared], masks, device),
                packed([valued.returns for valued in shared], masks, device),
                self._config.value_clip,
            )
            with torch.no_grad():
                sums.add_(torch.stack([losses.double().sum(), is_cut.double().sum()]))
            return losses.sum() / num_tokens

        self.engine.forward_backward(_sequences([valued.sample for valued in part]), loss_of)
        loss, num_cut = map(float, self._processes.sum_over_batch(sums))
        return loss, num_cut, update(self._optimizer, 1.0, self._campaign, what)

    def save(self, directory: Path) -> None:
        """Write this rank's share into an existing directory."""
        self.engine.files.save(directory, CRITIC, self._optimizer)

    def load(self, directory: Path) -> None:
        """Raises ModelError for a critic of another shape."""

        def fresh(_: str) -> StepOptimizer:
            self._optimizer = self._fresh_optimizer()
            return self._optimizer

        try:
            self.engine.files.load(directory, fresh)
        except ModelError as error:
            raise ModelError(
                f"campaign {self._campaign}: the critic in {directory} does not fit: "
                f"{error.message}",
                remedy="resume the campaign with the model it was started with",
            ) from None


def value_engine_of(parallel: ParallelConfig) -> ValueEngineClass:
    """The critic's engine beside this step engine; engines of your own have the plain one."""
    if parallel.engine_name == FSDP:
        from trainer.values.fsdp import FsdpValueEngine  # the others do without it

        return FsdpValueEngine
    if parallel.engine_name != MCORE:
        from trainer.values.plain import PlainValueEngine  # Megatron's layers

        return PlainValueEngine
    from trainer.values.mcore import McoreValueEngine  # Megatron's optimizer takes 3 s to import

    return McoreValueEngine


def turn_rewards_of(sample: Sample) -> NDArray[np.float64]:
    """Rewards given with each action token of a sample. A turn whose last tokens are context, as
    they are too old, has it with the last action token before."""
    actions = np.flatnonzero(sample.action_mask)
    rewards = np.zeros(len(actions), np.float64)
    for position, reward in sample.turn_rewards:
        place = int(np.searchsorted(actions, position, side="right")) - 1
        if place >= 0:
            rewards[place] += reward
    return rewards


def _sequences(samples: Sequence[Sample]) -> list[MaskedSequence]:
    return [MaskedSequence(sample.token_ids, sample.action_mask) for sample in samples]


def _placed(values: NDArray[np.float64], mask: NDArray[np.bool_]) -> NDArray[np.float32]:
    """[T] with the values where the mask is set, elsewhere 0."""
    placed = np.zeros(len(mask), np.float32)
    placed[mask] = values
    return placed


def _flat(
    values_N: Sequence[NDArray[np.float32]], judged: Sequence[ValuedSample]
) -> NDArray[np.float32]:
    """The values of all action tokens, branch after branch."""
    picked = [
        values[valued.sample.action_mask] for values, valued in zip(values_N, judged, strict=True)
    ]
    return np.concatenate([np.zeros(0, np.float32), *picked])


def value_loss(
    values_T: Tensor, before_T: Tensor, returns_T: Tensor, clip: float
) -> tuple[Tensor, Tensor]:
    """PPO's clipped loss of each token, half of a squared error, and whether the clip decides it
    (PPO's published code, arXiv 1707.06347; verl's `compute_value_loss`).

    `before_T`: values before the step. A value that moved from there by more than `clip` counts as
    if it had moved by `clip`, if that is worse, and then has no gradient."""
    free = (values_T - returns_T).square()
    bounded = before_T + (values_T - before_T).clamp(-clip, clip)
    clipped = (bounded - returns_T).square()
    return 0.5 * torch.maximum(free, clipped), clipped > free
