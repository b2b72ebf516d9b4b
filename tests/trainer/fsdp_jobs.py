"""What tests run in the ranks of the fsdp engine, on CPU with gloo."""

from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor

from mainspring.config.campaign import CampaignConfig
from mainspring.trajectories.samples import Sample
from trainer.engines.fsdp.adapters import is_b
from trainer.engines.fsdp.engine import FsdpEngine
from trainer.engines.fsdp.weights import FsdpWeights
from trainer.model.processes import join
from trainer.process.rank import TrainerRank
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
