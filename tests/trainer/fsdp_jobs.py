"""What tests run in the ranks of the fsdp engine, on CPU with gloo."""

from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor

from mainspring.config.campaign import CampaignConfig
from mainspring.training.training_faults import AlgorithmBroken
from mainspring.trajectories.samples import Sample
from tests.trainer.critics import moved_from_before
from trainer.engines.fsdp.adapters import is_b
from trainer.engines.fsdp.engine import FsdpEngine
from trainer.engines.fsdp.sharding import CHECKPOINTED
from trainer.engines.fsdp.weights import FsdpWeights
from trainer.model.processes import join
from trainer.process.rank import TrainerRank
from trainer.step.critic import _sequences
from trainer.step.mini_batch import MiniBatch
from trainer.step.policy_step import PolicyStep


def gradients_of(
    rank: TrainerRank, config: CampaignConfig, samples: list[Sample]
) -> dict[str, Any]:
    """Loss, norm and clipped gradients, whole and by name, of one pass over the batch."""
    engine = rank._engine
    assert isinstance(engine, FsdpEngine)
    optimizer = engine.optimizer(config.trainer.optimizer)
    step = PolicyStep(config, engine, optimizer, rank._processes, loss=rank._loss, reference=None)
    figures, _ = step._accumulate(MiniBatch(samples), 0)
    norm = optimizer.reduce_and_clip()
    grads = {name: _whole(p.grad) for name, p in engine.weights.trained().items()}
    optimizer.zero_grad()
    return {"loss": figures.loss, "norm": norm, "grads": grads}


def _whole(grad: Tensor | None) -> Tensor:
    assert grad is not None
    return grad.full_tensor() if isinstance(grad, DTensor) else grad.clone()


def _ranks(rank: int, store: str, config: CampaignConfig, model_dir: Path) -> TrainerRank:
    torch.set_num_threads(1)
    join(rank, config.trainer, dist.FileStore(store, config.trainer.world_size))
    return TrainerRank(config, model_dir, rank=rank)


def passes_and_steps(
    rank: int, store: str, config: CampaignConfig, model_dirs: dict[str, Path], samples: Any
) -> dict[str, Any]:
    """Of each model: log-probs of this rank's share, gradients, then three steps, exported beside
    the model."""
    found: dict[str, Any] = {}
    for name, model_dir in model_dirs.items():
        trainer = _ranks(rank, store, config, model_dir)
        before = trainer.logprobs(samples)
        found[name] = gradients_of(trainer, config, samples) | {"logprobs": before}
        steps = [trainer.train_step(samples, step=step, current_version=0) for step in range(3)]
        found[name]["losses"] = [metrics.loss for metrics in steps]
        trainer.export_hf(model_dir / "trained")
    return found


def saved_after_two_steps(
    rank: int, store: str, config: CampaignConfig, model_dir: Path, samples: Any, out: Path
) -> float | None:
    """Two steps, a checkpoint in `out`, a third step that is exported; its loss. The checkpoint is
    written in the background of the third step."""
    trainer = _ranks(rank, store, config, model_dir)
    for step in range(2):
        trainer.train_step(samples, step=step, current_version=0)
    trainer.save_checkpoint(out / "at_once")
    trainer.begin_checkpoint(out / "behind")
    metrics = trainer.train_step(samples, step=2, current_version=0)
    assert trainer.is_checkpoint_written(True)
    trainer.export_hf(out / "third")
    return metrics.loss


def step_after_loading(
    rank: int, store: str, config: CampaignConfig, model_dir: Path, samples: Any, out: Path
) -> float | None:
    """The third step from each of these checkpoints, exported; the last loss."""
    trainer = _ranks(rank, store, config, model_dir)
    loss: float | None = None
    for name in ("at_once", "behind"):
        trainer.load_checkpoint(out / name)
        loss = trainer.train_step(samples, step=2, current_version=0).loss
        trainer.export_hf(out / f"{name}-{config.trainer.data_parallel}")
    return loss


def adapted_steps(
    rank: int, store: str, config: CampaignConfig, model_dirs: dict[str, Path], samples: Any
) -> dict[str, Any]:
    """Of each model, with adapters that add something: those, a gradient, then three steps, and the
    log-probs of this rank's share under the weights that are exported beside the model."""
    found: dict[str, Any] = {}
    for name, model_dir in model_dirs.items():
        trainer = _ranks(rank, store, config, model_dir)
        weights = trainer._weights
        assert isinstance(weights, FsdpWeights)
        generator = torch.Generator().manual_seed(3)
        with torch.no_grad():
            for part_name, part in weights.trained().items():
                if is_b(part_name):
                    weights._put(part, 0.02 * torch.randn(part.shape, generator=generator))
        parts = {n: _whole(part.detach()).clone() for n, part in weights.trained().items()}
        kept = [sample for sample in samples if sample.carries_advantage]
        found[name] = gradients_of(trainer, config, kept) | {"parts": parts}
        steps = [trainer.train_step(samples, step=step, current_version=0) for step in range(3)]
        found[name]["losses"] = [metrics.loss for metrics in steps]
        trainer.export_hf(model_dir / "trained")
        found[name]["logprobs"] = trainer.logprobs(samples)
    return found


def set_head(trainer: TrainerRank) -> tuple[Tensor, Tensor]:
    """A head that is not zero, so that values differ; its weight and bias, whole."""
    assert trainer._critic is not None
    weights = trainer._critic.engine.weights
    assert isinstance(weights, FsdpWeights)
    own = weights.parameters()
    weight, bias = own["value_head.weight"], own["value_head.bias"]
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        weights._put(weight, 0.1 * torch.randn(weight.shape, generator=generator))
        weights._put(bias, torch.full_like(_whole(bias), 0.25))
    return _whole(weight.detach()).clone(), _whole(bias.detach()).clone()


def valued_steps(
    rank: int, store: str, config: CampaignConfig, model_dirs: dict[str, Path], samples: Any
) -> dict[str, Any]:
    """Of each model: the first values; with a head that is not zero those of all samples, the loss
    and the gradient of the critic by name; then, from version 0, the metrics of three steps."""
    found: dict[str, Any] = {}
    for name, model_dir in model_dirs.items():
        trainer = _ranks(rank, store, config, model_dir)
        critic = trainer._critic
        assert critic is not None
        first = critic._values(samples)
        head = set_head(trainer)
        _, valued = critic.judge(samples)
        judged = moved_from_before(valued)
        grads: dict[str, Tensor] = {}
        critic.watch(partial(_keep_gradients, grads))
        figures = critic.train(judged, 0)
        critic.watch(None)
        trainer.begin_critic()
        steps = [trainer.train_step(samples, step=step, current_version=0) for step in range(3)]
        found[name] = {
            "first": first,
            "head": head,
            "values": [each.values[each.sample.action_mask] for each in valued],
            "judged": judged,
            "grads": grads,
            "figures": figures,
            "steps": steps,
        }
    return found


def _keep_gradients(grads: dict[str, Tensor], module: torch.nn.Module) -> None:
    for name, parameter in module.named_parameters():
        grads[name.removeprefix("lm.").replace(CHECKPOINTED, "")] = _whole(parameter.grad).clone()


def failing_values(
    rank: int, store: str, config: CampaignConfig, model_dir: Path, samples: Any
) -> dict[str, Any]:
    """A pass of the critic whose loss fails on the second rank, then the gradient of a whole one;
    how many samples are this rank's."""
    trainer = _ranks(rank, store, config, model_dir)
    critic = trainer._critic
    assert critic is not None
    set_head(trainer)
    _, judged = critic.judge(samples)
    sequences = _sequences(samples)

    def broken(share: list[int], values: Tensor) -> Tensor:
        if rank == 1:
            raise AlgorithmBroken("of a test")
        return values.sum()

    raised = False
    try:
        critic.engine.forward_backward(sequences, broken)
    except AlgorithmBroken:
        raised = True
    critic._optimizer.zero_grad()
    grads: dict[str, Tensor] = {}
    critic.watch(partial(_keep_gradients, grads))
    critic.train(moved_from_before(judged), 0)
    num_own = len(critic.engine.values(sequences))
    return {"raised": raised, "grads": grads, "num_own": num_own}


def _third_step(trainer: TrainerRank, samples: Any) -> dict[str, Any]:
    assert trainer._critic is not None
    metrics = trainer.train_step(samples, step=2, current_version=0)
    weights = trainer._critic.engine.weights
    assert isinstance(weights, FsdpWeights)
    whole = {name: _whole(each.detach()).clone() for name, each in weights.parameters().items()}
    return {"step": metrics, "weights": whole}


def critic_saved(
    rank: int, store: str, config: CampaignConfig, model_dir: Path, samples: Any, out: Path
) -> dict[str, Any]:
    """Two steps, a checkpoint in `out`, a third step; its metrics and the critic after it."""
    trainer = _ranks(rank, store, config, model_dir)
    for step in range(2):
        trainer.train_step(samples, step=step, current_version=0)
    trainer.save_checkpoint(out)
    return _third_step(trainer, samples)


def critic_loaded(
    rank: int, store: str, config: CampaignConfig, model_dir: Path, samples: Any, out: Path
) -> dict[str, Any]:
    """The third step from that checkpoint."""
    trainer = _ranks(rank, store, config, model_dir)
    trainer.load_checkpoint(out)
    return _third_step(trainer, samples)
