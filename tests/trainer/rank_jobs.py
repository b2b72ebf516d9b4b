"""What tests run in the ranks of the mcore engine, on CPU under the shim."""

from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from mainspring.config.campaign import CampaignConfig
from mainspring.config.training.parallel import MCORE
from mainspring.trajectories.samples import Sample
from tests.trainer import cuda_shim
from trainer.engines.mcore import McoreEngine
from trainer.engines.mcore_module import _finalize, finalize_model_grads
from trainer.model import model_conversion
from trainer.model.convert import from_hf, hf_names
from trainer.model.hf_directory import load_weights
from trainer.model.lora import adapters
from trainer.model.processes import Processes, join
from trainer.process.rank import TrainerRank
from trainer.step.mini_batch import MiniBatch
from trainer.step.policy_step import PolicyStep


def joined(rank: int, store: str, config: CampaignConfig) -> Processes:
    world_size = config.trainer.world_size
    processes = join(rank, config.trainer, dist.FileStore(store, world_size))
    cuda_shim.install()
    return processes


def place(processes: Processes) -> dict[str, int]:
    return {
        "tp": processes.tp_rank,
        "pp": processes.pp_group.rank(),
        "copy": processes.dp_rank + processes.cp_group.rank(),
        "expert": processes.expert_rank,
    }


def gradients(
    rank: int,
    store: str,
    config: CampaignConfig,
    model_dir: Path,
    samples: list[Sample],
) -> dict[str, Any]:
    """Of one pass of the campaign's loss over the batch, summed over all copies; by global name."""
    processes = joined(rank, store, config)
    trainer = TrainerRank(config, model_dir, rank=rank)
    engine = trainer._engine
    assert isinstance(engine, McoreEngine)
    engine.module.config.finalize_model_grads_func = _summed
    optimizer = engine.optimizer(config.trainer.optimizer)
    step = PolicyStep(config, engine, optimizer, processes, loss=trainer._loss, reference=None)
    figures, _ = step._accumulate(MiniBatch(samples), 0)
    grads = {
        engine.weights._global(name): parameter.main_grad.float().numpy().copy()
        for name, parameter in engine.weights._model.named_parameters()
    }
    return place(processes) | {"loss": figures.loss, "entropy": figures.entropy, "grads": grads}


def steps(
    rank: int, store: str, config: CampaignConfig, model_dir: Path, samples: list[Sample], out: Path
) -> list[Any]:
    """Three steps; the metrics of each. The weights are exported to `out`."""
    joined(rank, store, config)
    trainer = TrainerRank(config, model_dir, rank=rank)
    if config.trainer.critic is not None:
        trainer.begin_critic()
    found = [trainer.train_step(samples, step=step, current_version=0) for step in range(3)]
    trainer.export_hf(out)
    return found


def changed_steps(
    rank: int,
    store: str,
    before: CampaignConfig,
    after: CampaignConfig,
    model_dir: Path,
    samples: list[Sample],
    out: Path,
) -> None:
    """Three steps, of which the last two run with a changed configuration."""
    joined(rank, store, before)
    trainer = TrainerRank(before, model_dir, rank=rank)
    for step, config in enumerate((before, after, after)):
        trainer.train_step(samples, step=step, current_version=0, config=config)
    trainer.export_hf(out)


def plain_steps(
    rank: int, store: str, config: CampaignConfig, model_dir: Path, samples: list[Sample], out: Path
) -> list[Any]:
    """Three steps of the plain engine, without the shim; the metrics of each."""
    join(rank, config.trainer, dist.FileStore(store, config.trainer.world_size))
    trainer = TrainerRank(config, model_dir, rank=rank)
    return [trainer.train_step(samples, step=step, current_version=0) for step in range(3)]


def saved_after_two_steps(
    rank: int, store: str, config: CampaignConfig, model_dir: Path, samples: list[Sample], out: Path
) -> Any:
    """Two steps, a checkpoint in `out`, a third step; its metrics."""
    joined(rank, store, config)
    cuda_shim.use_optimizer_with_fused_layout()
    trainer = TrainerRank(config, model_dir, rank=rank)
    for step in range(2):
        trainer.train_step(samples, step=step, current_version=0)
    trainer.save_checkpoint(out)
    metrics = trainer.train_step(samples, step=2, current_version=0)
    trainer.export_hf(out / "third")
    return metrics


def step_after_loading(
    rank: int, store: str, config: CampaignConfig, model_dir: Path, samples: list[Sample], out: Path
) -> Any:
    """The third step, from the checkpoint in `out`."""
    joined(rank, store, config)
    cuda_shim.use_optimizer_with_fused_layout()
    trainer = TrainerRank(config, model_dir, rank=rank)
    trainer.load_checkpoint(out)
    metrics = trainer.train_step(samples, step=2, current_version=0)
    trainer.export_hf(
        out / f"again{config.trainer.pipeline_parallel}{config.trainer.data_parallel}"
    )
    return metrics


def logprobs(
    rank: int, store: str, config: CampaignConfig, model_dir: Path, samples: list[Sample]
) -> dict[int, Any]:
    joined(rank, store, config)
    return TrainerRank(config, model_dir, rank=rank).logprobs(samples)


def converted(rank: int, store: str, config: CampaignConfig, model_dir: Path, out: Path) -> None:
    """To Megatron's form at `out`, which needs CUDA."""
    joined(rank, store, config)
    model_conversion.to_torch_dist(model_dir, out)


def one_step(
    rank: int, store: str, config: CampaignConfig, model_dir: Path, samples: list[Sample]
) -> Any:
    joined(rank, store, config)
    trainer = TrainerRank(config, model_dir, rank=rank)
    return trainer.train_step(samples, step=0, current_version=0)


def supervised(
    rank: int,
    store: str,
    config: CampaignConfig,
    model_dir: Path,
    samples: list[Sample],
    num_steps: int,
    out: Path,
) -> list[Any]:
    """All steps of a supervised run on one batch; what each measured. Exported to `out`."""
    joined(rank, store, config)
    trainer = TrainerRank(config, model_dir, rank=rank)
    found = [trainer.sft_step(samples, step=n, num_steps=num_steps) for n in range(num_steps)]
    trainer.export_hf(out)
    return found


def gathered(
    rank: int, store: str, config: CampaignConfig, model_dir: Path, out: Path
) -> list[dict[str, Any]]:
    """The buckets that this rank would send, of at most a few weights each. Exported to `out`."""
    joined(rank, store, config)
    trainer = TrainerRank(config, model_dir, rank=rank)
    trainer.export_hf(out)
    sender = trainer.sender
    meeting = sender.open("127.0.0.1", "engines", 1)
    found: list[dict[str, Any]] = []
    while any(trainer._weights._everywhere(bucket := sender.gather(4 << 10))):
        if bucket is not None:
            assert meeting is not None and bucket.group == meeting.group == f"engines-{rank}"
            assert [tuple(tensor.shape) for tensor in sender._bucket] == list(bucket.shapes)
            assert {str(t.dtype) for t in sender._bucket} == {f"torch.{d}" for d in bucket.dtypes}
            found.append({n: t.numpy() for n, t in zip(bucket.names, sender._bucket, strict=True)})
    sender.close()
    return found


def written_in_background(
    rank: int, store: str, config: CampaignConfig, model_dir: Path, samples: list[Sample], out: Path
) -> Any:
    """As `saved_after_two_steps`, with the third step taken while the checkpoint is written."""
    joined(rank, store, config)
    cuda_shim.use_optimizer_with_fused_layout()
    trainer = TrainerRank(config, model_dir, rank=rank)
    for step in range(2):
        trainer.train_step(samples, step=step, current_version=0)
    trainer.begin_checkpoint(out)
    metrics = trainer.train_step(samples, step=2, current_version=0)
    assert trainer.is_checkpoint_written(wait=True)
    trainer.export_hf(out / "third")
    return metrics


def adapted(
    rank: int, store: str, config: CampaignConfig, model_dir: Path, samples: list[Sample], out: Path
) -> dict[str, Any]:
    """Of adapters that add something: the gradient of one pass, by the global name of their matrix,
    then three steps. The weights are exported to `out`."""
    if config.trainer.engine_name == MCORE:
        processes = joined(rank, store, config)
    else:
        processes = join(rank, config.trainer, dist.FileStore(store, config.trainer.world_size))
    trainer = TrainerRank(config, model_dir, rank=rank)
    engine: Any = trainer._engine
    own = {engine.weights._global(n): each for n, each in adapters(engine.weights._model).items()}
    sources = load_weights(model_dir)
    for name, adapter in own.items():
        parts = {}
        for hf_name in hf_names(name, engine.weights._hf):
            generator = torch.Generator().manual_seed(
                len(sources[hf_name]) + int(name.split(".")[2])
            )
            shape = (len(sources[hf_name]), config.trainer.lora.rank)
            parts[hf_name] = 0.02 * torch.randn(shape, generator=generator)
        [*_, last] = parts.values()
        tensor = {"tp_rank": processes.tp_rank, "tp_size": processes.tp_size}
        whole = last if adapter.dim else from_hf(name, parts, engine.weights._hf, **tensor)
        adapter.b.data.copy_(whole)
    optimizer = engine.optimizer(config.trainer.optimizer)
    if isinstance(engine, McoreEngine):
        engine.module.config.finalize_model_grads_func = _summed
    step = PolicyStep(config, engine, optimizer, processes, loss=trainer._loss, reference=None)
    figures, _ = step._accumulate(MiniBatch(samples), 0)
    norm = optimizer.reduce_and_clip()
    grads = {
        name: [
            (part.main_grad if isinstance(engine, McoreEngine) else part.grad).numpy().copy()
            for part in (adapter.a, adapter.b)
        ]
        for name, adapter in own.items()
    }
    optimizer.zero_grad()
    if isinstance(engine, McoreEngine):
        engine.module.config.finalize_model_grads_func = _finalize
    steps = [trainer.train_step(samples, step=n, current_version=0) for n in range(3)]
    trainer.export_hf(out)
    found = {"loss": figures.loss, "norm": norm, "grads": grads}
    return place(processes) | found | {"losses": [metrics.loss for metrics in steps]}


def _summed(model: list[Any], num_tokens: object = None, **options: Any) -> None:
    finalize_model_grads(model, None, **options | {"force_all_reduce": True})


def plain_third_steps(
    rank: int, store: str, config: CampaignConfig, model_dir: Path, samples: list[Sample], out: Path
) -> list[Any]:
    """The metrics of the plain engine's third step, and of the one from a checkpoint before it."""
    join(rank, config.trainer, dist.FileStore(store, config.trainer.world_size))
    trainer = TrainerRank(config, model_dir, rank=rank)
    for step in range(2):
        trainer.train_step(samples, step=step, current_version=0)
    trainer.save_checkpoint(out)
    again = TrainerRank(config, model_dir, rank=rank)
    dist.barrier()
    again.load_checkpoint(out)
    return [each.train_step(samples, step=2, current_version=0) for each in (trainer, again)]
